"""--mode=plan: memory, collectives and step time of an experiment on a machine that need not be attached."""

import dataclasses
import json
import math
from typing import Any

import jax

from layers.errors import UsageError, did_you_mean
from registry.experiment import Experiment
from registry.pages import figures
from registry.pages.page import page, table, text, write_assets
from registry.pages.weights import weights
from registry.records.quantities import peak_parts
from registry.records.snapshot import weight_summary
from registry.tool import render
from runners.chips import CHIPS, Chip
from runners.planner.cost import Plan, Step, cost
from runners.planner.topologies import parse_topology, topology_devices
from runners.reports.results import make_folder, title
from runners.session import Session
from runners.virtual_devices import make_virtual_devices
from tasks.storage.files import Place, write_whole

GIB = 2**30
SMOKE_DEVICES = 8  # virtual devices of a --smoke experiment without --host_devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of --mode=plan."""

    topology: str | None = None  # a TPU slice or GPUs, for which their own compiler compiles; None: virtual CPU devices
    chip: str | None = None  # chip whose capacity and speeds apply on virtual devices; a topology implies its own
    devices: int | None = None  # virtual devices; None: the size of the mesh
    step: Step = "train"
    memory_fraction: float | None = None  # share of a GPU's memory that a process can use; None: JAX's default


def plan(experiment: Experiment, folder: Place, options: PlanOptions) -> int:
    """Compiles and prints the plan, writes plan.json and plan.html; returns exit code 1 if it does not fit."""
    chip, devices = chip_of(options), planning_devices(experiment, options)
    session = Session(experiment, devices)
    make_folder(folder)
    content = cost(session, chip, options.topology, options.step, options.memory_fraction)
    show(content)
    write(content, experiment, folder)
    print(f"Written: {folder / 'plan.json'} and {folder / 'plan.html'}")
    return 1 if content["fits"] is False else 0


def chip_of(options: PlanOptions) -> Chip | None:
    """Returns the chip that capacity and speeds are taken from.

    Raises:
      UsageError: the chip is unknown, or is not the topology's, or a share of its memory is invalid.
    """
    if options.chip is not None and options.chip not in CHIPS:
        raise UsageError(f"Unknown chip '{options.chip}'. {did_you_mean(options.chip, CHIPS)}")
    chip = None if options.chip is None else CHIPS[options.chip]
    if options.topology is not None:
        chip = parse_topology(options.topology)[0]
        if options.chip not in (None, chip.name):
            raise UsageError(
                f"--topology={options.topology} implies its own chip (got --chip={options.chip}). Remove --chip."
            )
    fraction = options.memory_fraction
    if fraction is not None and (chip is None or chip.gpu is None):
        raise UsageError(
            f"--memory_fraction={fraction} needs a GPU. Set --topology=h100:1x8 or --chip=h100, or remove it."
        )
    if fraction is not None and not 0 < fraction <= 1:
        raise UsageError(f"--memory_fraction must be above 0 and at most 1 (got {fraction}). JAX's default is 0.75.")
    return chip


def planning_devices(experiment: Experiment, options: PlanOptions) -> list[Any]:
    """Returns the devices to compile for: the topology's, or virtual ones on this machine's CPU."""
    if options.topology is not None:
        if options.devices is not None:
            raise UsageError(f"--topology={options.topology} implies its own devices. Remove --host_devices.")
        make_virtual_devices(1)  # JAX's own small computations run here, so no accelerator of this machine is used
        return topology_devices(options.topology)
    count = options.devices or (SMOKE_DEVICES if experiment.smoke else experiment.num_devices)
    make_virtual_devices(count)
    if len(jax.devices()) < count:
        raise UsageError(
            f"The plan needs {count} devices, but JAX runs with {len(jax.devices())} in this process. Start a new one."
        )
    return jax.devices()[:count]


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


def machine(content: Plan) -> str:
    """Description of the machine: devices, chip or topology, mesh."""
    hardware = content["topology"] or f"virtual CPU devices{', chip ' + content['chip'] if content['chip'] else ''}"
    return f"{content['devices']} devices ({hardware}), mesh {render.mesh_text(content['mesh'])}"


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
    return rows


def rate(per_second: float) -> str:
    """Formats tokens per second, with decimals below 10 only."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.3g}"


ESTIMATE = (
    "Step times are estimates: collectives are those of the program compiled for the CPU, at the chip's link "
    "bandwidth. For TPUs, --topology=v3:8x8 uses the TPU compiler."
)


def collective_cells(content: Plan) -> list[tuple[str, str, str, str]]:
    """Rows of the table of collectives."""
    return [(c["kind"], c["axis"], f"{c['count']:,}", render.size(c["bytes"])) for c in content["collectives"]]


COLLECTIVES_SHOWN = 8  # collectives on the terminal, largest first
COLLECTIVE_COLUMNS = ("collective", "axis", "count", "sent per device")


def show(content: Plan) -> None:
    """Prints the plan on one screen."""
    out = render.console()
    out.print(f"{title(content)}, one {content['step']} step on {machine(content)}")
    out.print(fit_message(content))
    memory = [(name, render.size(amount)) for name, amount in parts(content).items()]
    out.print(render.table(("memory per device", "bytes"), memory, right=("bytes",)))
    if content["collectives"]:
        rows = collective_cells(content)[:COLLECTIVES_SHOWN]
        out.print(render.table(COLLECTIVE_COLUMNS, rows, right=COLLECTIVE_COLUMNS[2:]))
    if len(content["collectives"]) > COLLECTIVES_SHOWN:
        count = len(content["collectives"]) - COLLECTIVES_SHOWN
        out.print(f"The {count} smaller collectives are in plan.json and plan.html.")
    out.print(render.table(("figure", "value"), numbers(content), flexible={"value": None}))
    if content.get("roofline_is_estimate"):
        out.print(ESTIMATE)


def write(content: Plan, experiment: Experiment, folder: Place) -> None:
    """Writes plan.json, plan.html and the assets that the page loads."""
    write_whole(folder / "plan.json", json.dumps(content, indent=1) + "\n")
    write_assets(folder)
    sections = [
        f"<h1>{text(title(content))}: the plan of a {content['step']} step</h1>",
        f"<p class=doc>{text(machine(content))}</p>",
        f"<p><b>{text(fit_message(content))}</b></p>",
        _bar(content),
        "<h2>Cost</h2>",
        table(("figure", "value"), numbers(content)),
        f"<p>{text(ESTIMATE)}</p>" if content.get("roofline_is_estimate") else "",
        "<h2>Collectives</h2>",
        table(COLLECTIVE_COLUMNS, collective_cells(content), COLLECTIVE_COLUMNS[2:]),
        "<h2>Weights</h2>",
        weights(weight_summary(experiment, content["mesh"])),
    ]
    write_whole(
        folder / "plan.html",
        page(f"Plan of {title(content)}", sections, styles=figures.STYLES, scripts=figures.SCRIPTS),
    )


def _bar(content: Plan) -> str:
    """Bar chart of the memory per device by kind, with a line at the capacity."""
    capacity, shares = content["capacity_bytes_per_device"], parts(content)
    line = "" if capacity is None else f"; the line is the capacity, {render.size(capacity)}"
    end = max(sum(shares.values()), capacity or 0) / GIB
    chart = figures.Chart(
        name="memory",
        title=f"Memory per device{line}",
        x=figures.Axis(title="GiB per device", range=(0, end * 1.03)),
        series=[
            figures.Series(name=name, x=[amount / GIB], color=number, text=render.size(amount))
            for number, (name, amount) in enumerate(shares.items())
        ],
        kind="bars",
        marks=[] if capacity is None else [capacity / GIB],
        shape="low",
    )
    return figures.chart(chart)
