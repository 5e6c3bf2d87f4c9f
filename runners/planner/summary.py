"""The summary of a plan on the terminal; its texts are those of the page, too."""

import math

from registry.records.quantities import hardware_text, peak_parts
from registry.tool import render
from runners.planner import budget, explained, network, pipeline
from runners.planner.cost import Plan
from runners.reports.results import title


def parts(content: Plan) -> dict[str, int]:
    """Splits the peak into weights, optimizer, gradients, and the rest: activations, copies and the batch."""
    return {name: amount for name, amount in peak_parts(content["memory_bytes_per_device"]).items() if amount}


def fit_message(content: Plan) -> str:
    """Returns a sentence on whether the step fits into memory, and by how much."""
    if "compiler" in content:
        needed, available = (content["compiler"].get(key) for key in ("needed_bytes", "available_bytes"))
        if needed is None or available is None:
            return f"Does not fit: {content['compiler']['message']}."
        over = render.size(needed - available)
        return f"Does not fit: the compiler needs {render.size(needed)} of {render.size(available)}, {over} too much."
    capacity, peak = content["capacity_bytes_per_device"], content["memory_bytes_per_device"].get("peak")
    if capacity is None or peak is None:
        return (
            "Capacity and speed are unknown. Set --chip=v3 or --topology=v3:8x8 for a comparison with the capacity "
            "and an estimate of the step time."
        )
    amounts = "{} of {}".format(*render.apart(peak, capacity, render.size))
    share = _share(content["hbm_bytes_per_device"], capacity, peak)
    if content["fits"]:
        return f"Fits: {amounts}, {render.size(capacity - peak)} free.{share}"
    message = f"Does not fit: {amounts}, {render.size(peak - capacity)} too much.{share}"
    if content["topology"] is not None:
        return message
    return (
        f"{message} A program compiled for the CPU needs more memory than for the chip: --topology uses its compiler."
    )


def _share(card: int, capacity: int, peak: int) -> str:
    """Returns what the capacity is a share of, if it is one of the card's memory."""
    if capacity == card:
        return ""
    text = f" JAX preallocates {render.percent(capacity / card)} of the card's {render.size(card)}"
    if not capacity < peak <= card:
        return f"{text}."
    least = math.ceil(100 * peak / card) / 100
    return (
        f"{text}. The peak is {render.percent(peak / card)} of it: set XLA_PYTHON_CLIENT_MEM_FRACTION={least} or more "
        "in runs, and --memory_fraction here, if the CUDA context and NCCL fit into the rest."
    )


def machine_text(content: Plan) -> str:
    """Description of the machine: devices, chip or topology, mesh."""
    return f"{content['devices']} devices ({hardware_text(content)}), mesh {render.mesh_text(content['mesh'])}"


def numbers(content: Plan) -> list[tuple[str, str]]:
    """Returns the names and values of a plan's figures."""
    rows = [
        ("tokens per step", f"{content['tokens_per_step']:,}"),
        ("FLOPs per step, all devices", f"{content['flops_per_step']:.4g}"),
        ("FLOPs per token, model", f"{content['flops_per_token']:.4g}"),
        ("compiled in", f"{content['compile_seconds']:.1f} s"),
    ]
    if "roofline" in content:
        bounds = ", ".join(
            f"{name.removesuffix('_seconds').replace('_', ' ')} {seconds:.3g} s"
            for name, seconds in content["roofline"].items()
        )
        is_estimate = content["roofline_is_estimate"]
        least, most = ("about", "about") if is_estimate else ("at least", "at most")
        kind = "estimated" if is_estimate else "roofline"
        rows[3:3] = [
            (f"{kind} step time", f"{least} {content['roofline_step_seconds']:.3g} s ({bounds})"),
            (f"{kind} tokens per second", f"{most} {rate(content['roofline_tokens_per_second'])}"),
            (f"{kind} MFU", render.percent(content["roofline_mfu"])),
        ]
    rows[-1:-1] = [*_host_rows(content), *pipeline.rows(content), *network.rows(content), *budget.rows(content)]
    return rows


def _host_rows(content: Plan) -> list[tuple[str, str]]:
    """Returns the bytes that move to and from the host's memory; none if nothing does."""
    moved = content.get("host_transfers", {})
    if not any(moved.values()):
        return []
    seconds = content.get("roofline", {}).get("host_seconds")
    time = f"at least {seconds:.3g} s" if seconds else "time unknown"
    return [("to and from the host", f"{render.size(moved['to'])} and {render.size(moved['from'])} per device, {time}")]


def rate(per_second: float) -> str:
    """Formats tokens per second, with decimals below 10 only."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.3g}"


ESTIMATE = (
    "Step times are estimates: collectives are those of the program compiled for the CPU, at the chip's link "
    "bandwidth. --topology (v3:8x8, h100:8x8) uses the compiler of the chip."
)


def collective_table(content: Plan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of the table of collectives; the last column is what crosses the network, if anything does."""
    rows = [
        (c["kind"], c["axis"], c["dtype"], f"{c['count']:,}", render.size(c["bytes"])) for c in content["collectives"]
    ]
    if not network.network_bytes(content):
        return COLLECTIVE_COLUMNS, [*rows]
    across = [render.size(c["network_bytes"]) if c["network_bytes"] else "" for c in content["collectives"]]
    columns = (*COLLECTIVE_COLUMNS, f"of these across {content['across']['of']}")
    return columns, [(*row, sent) for row, sent in zip(rows, across, strict=True)]


COLLECTIVES_SHOWN = 8  # collectives on the terminal, largest first
COLLECTIVE_COLUMNS = ("collective", "axis", "dtype", "count", "sent per device")


def show(content: Plan) -> None:
    """Prints the plan on one screen."""
    out = render.console()
    out.print(f"{title(content)}, one {content['step']} step on {machine_text(content)}")
    out.print(fit_message(content))
    memory = [(name, render.size(amount)) for name, amount in parts(content).items()]
    out.print(render.table(("memory per device", "bytes"), memory, right=("bytes",)))
    if content["collectives"]:
        columns, rows = collective_table(content)
        out.print(render.table(columns, rows[:COLLECTIVES_SHOWN], right=columns[3:]))
    if len(content["collectives"]) > COLLECTIVES_SHOWN:
        count = len(content["collectives"]) - COLLECTIVES_SHOWN
        out.print(f"The {count} smaller collectives are in plan.json and plan.html.")
    explained.show(content)
    out.print(render.table(("figure", "value"), numbers(content), flexible={"value": None}))
    if message := network.warning(content):
        out.print(f"Warning: {message}")
    if content.get("roofline_is_estimate"):
        out.print(ESTIMATE)
