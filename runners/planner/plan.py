"""The mode that plans: what a step of an experiment needs and sends on a machine that need not be there."""

import dataclasses
import json
from typing import Any

import jax

from layers.errors import UsageError, did_you_mean
from registry.experiment import Experiment
from registry.snapshot import weight_summary
from registry.tool import render
from runners.chips import CHIPS, Chip
from runners.planner.cost import Plan, Step, predict
from runners.planner.topologies import parse_topology, topology_devices
from runners.reports import page
from runners.reports.results import make_folder, title
from runners.session import Session
from runners.virtual_devices import make_virtual_devices
from tasks.storage.files import Place, write_whole

SMOKE_DEVICES = 8  # what a small experiment folds onto where no number is given


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What the flags say."""

    topology: str | None = None  # a TPU slice, compiled for by the TPU compiler; None takes virtual CPU devices
    chip: str | None = None  # whose capacity and speeds count on virtual devices; a topology brings its own
    devices: int | None = None  # virtual devices; None is as many as the mesh has
    step: Step = "train"


def plan(experiment: Experiment, folder: Place, options: PlanOptions) -> int:
    """Compiles, prints one screen, writes plan.json and plan.html; exit code 1 where the plan does not fit."""
    chip, devices = chip_of(options), planning_devices(experiment, options)
    session = Session(experiment, devices)
    make_folder(folder)
    found = predict(session, chip, options.topology, options.step)
    show(found)
    write(found, experiment, folder)
    print(f"Written: {folder / 'plan.json'} and {folder / 'plan.html'}")
    return 1 if found["fits"] is False else 0


def chip_of(options: PlanOptions) -> Chip | None:
    """The chip that capacity and speeds are taken from.

    Raises:
      UsageError: there is none of that name, or it is not the topology's.
    """
    if options.chip is not None and options.chip not in CHIPS:
        raise UsageError(f"--chip={options.chip} is no chip that is known. {did_you_mean(options.chip, CHIPS)}")
    if options.topology is None:
        return None if options.chip is None else CHIPS[options.chip]
    chip = parse_topology(options.topology)[0]
    if options.chip not in (None, chip.name):
        raise UsageError(f"--topology={options.topology} has chips of its own: leave --chip={options.chip} out.")
    return chip


def planning_devices(experiment: Experiment, options: PlanOptions) -> list[Any]:
    """Devices to compile for: the topology's, or virtual ones on this machine's CPU."""
    if options.topology is not None:
        if options.devices is not None:
            raise UsageError(f"--topology={options.topology} has devices of its own: leave --host_devices out.")
        make_virtual_devices(1)  # for what jax computes on the way: no accelerator of this machine is touched
        return topology_devices(options.topology)
    count = options.devices or (SMOKE_DEVICES if experiment.smoke else experiment.num_devices)
    make_virtual_devices(count)
    if len(jax.devices()) < count:
        raise UsageError(f"The plan is for {count} devices, but JAX was started with {len(jax.devices())} here.")
    return jax.devices()[:count]


def parts(found: Plan) -> dict[str, int]:
    """The peak in parts: weights, optimizer, gradients, and the rest, which is activations, copies and the batch."""
    memory = found["memory_bytes_per_device"]
    kept = {name: memory[name] for name in ("weights", "optimizer", "gradients")}
    if "peak" in memory:
        rest = memory["peak"] - memory["weights"] - memory["optimizer"]
        kept["gradients"] = min(memory["gradients"], rest)
        kept["activations and other"] = rest - kept["gradients"]
    return {name: amount for name, amount in kept.items() if amount}


def verdict(found: Plan) -> str:
    """One sentence on whether it fits, and by how much."""
    capacity, peak = found["hbm_bytes_per_device"], found["memory_bytes_per_device"].get("peak")
    if "compiler" in found:
        needed, available = (found["compiler"].get(key) for key in ("needed_bytes", "available_bytes"))
        if needed is None or available is None:
            return f"Does not fit: {found['compiler']['message']}"
        over = render.size(needed - available)
        return f"Does not fit: the compiler needs {render.size(needed)} of {render.size(available)}, {over} too much."
    if capacity is None or peak is None:
        return (
            "Capacity and speed are not known. --chip=v3 or --topology=v3:8x8 shows whether it fits, with an estimate "
            "of the step time."
        )
    amounts = "{} of {}".format(*render.apart(peak, capacity, render.size))
    if found["fits"]:
        return f"Fits: {amounts}, {render.size(capacity - peak)} free."
    message = f"Does not fit: {amounts}, {render.size(peak - capacity)} too much."
    return f"{message} The CPU's program takes more than a TPU's: --topology asks the TPU compiler."


def machine(found: Plan) -> str:
    """What the plan is for, in words."""
    where = found["topology"] or f"virtual CPU devices{', chip ' + found['chip'] if found['chip'] else ''}"
    return f"{found['devices']} devices ({where}), mesh {render.mesh_text(found['mesh'])}"


def numbers(found: Plan) -> list[tuple[str, str]]:
    """The figures of a plan with their names."""
    rows = [
        ("tokens per step", f"{found['tokens_per_step']:,}"),
        ("FLOPs per step, all devices", f"{found['flops_per_step']:.4g}"),
        ("FLOPs per token, model", f"{found['flops_per_token']:.4g}"),
        ("compiled in", f"{found['compile_seconds']:.1f} s"),
    ]
    if "roofline" in found:
        bounds = ", ".join(
            f"{name.removesuffix('_seconds').replace('_', ' ')} {seconds:.3g} s"
            for name, seconds in found["roofline"].items()
        )
        is_estimate = found["roofline_is_estimate"]
        least, most = ("about", "about") if is_estimate else ("at least", "at most")
        kind = "estimated" if is_estimate else "roofline"
        rows[3:3] = [
            (f"{kind} step time", f"{least} {found['roofline_step_seconds']:.3g} s ({bounds})"),
            (f"{kind} tokens per second", f"{most} {rate(found['roofline_tokens_per_second'])}"),
            (f"{kind} MFU", render.percent(found["roofline_mfu"])),
        ]
    return rows


def rate(per_second: float) -> str:
    """Tokens per second, with digits after the point only below 10."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.3g}"


ESTIMATE = (
    "Step times are estimates: exchanges are those of the program compiled for the CPU, at the chip's link bandwidth. "
    "For TPUs, --topology=v3:8x8 asks their own compiler."
)


def exchange_cells(found: Plan) -> list[tuple[str, str, str, str]]:
    """Rows of the table of exchanges."""
    return [(c["kind"], c["axis"], f"{c['count']:,}", render.size(c["bytes"])) for c in found["collectives"]]


MOST = 8  # exchanges on the terminal, largest first
EXCHANGES = ("exchange", "axis", "times", "sent per device")


def show(found: Plan) -> None:
    """One screen on the terminal."""
    out = render.console()
    out.print(f"{title(found)}, one {found['step']} step on {machine(found)}")
    out.print(verdict(found))
    memory = [(name, render.size(amount)) for name, amount in parts(found).items()]
    out.print(render.table(("memory per device", "bytes"), memory, right=("bytes",)))
    if found["collectives"]:
        out.print(render.table(EXCHANGES, exchange_cells(found)[:MOST], right=EXCHANGES[2:]))
    if len(found["collectives"]) > MOST:
        out.print(f"The {len(found['collectives']) - MOST} smaller exchanges are in plan.json and plan.html.")
    out.print(render.table(("figure", "value"), numbers(found), flexible={"value": None}))
    if found.get("roofline_is_estimate"):
        out.print(ESTIMATE)


def write(found: Plan, experiment: Experiment, folder: Place) -> None:
    """plan.json and plan.html."""
    write_whole(folder / "plan.json", json.dumps(found, indent=1) + "\n")
    sections = [
        f"<h1>{page.text(title(found))}: the plan of a {found['step']} step</h1>",
        f"<p class=doc>{page.text(machine(found))}</p>",
        f"<p><b>{page.text(verdict(found))}</b></p>",
        _bar(found),
        page.table(("memory per device", "bytes"), [(k, render.size(v)) for k, v in parts(found).items()], ("bytes",)),
        "<h2>What it costs</h2>",
        page.table(("figure", "value"), numbers(found)),
        f"<p>{page.text(ESTIMATE)}</p>" if found.get("roofline_is_estimate") else "",
        "<h2>Exchanges between devices</h2>",
        page.table(EXCHANGES, exchange_cells(found), EXCHANGES[2:]),
        "<h2>Weights</h2>",
        page.weights(weight_summary(experiment, found["mesh"])),
    ]
    write_whole(folder / "plan.html", page.page(f"Plan of {title(found)}", sections))


def _bar(found: Plan) -> str:
    """Memory per device by kind, and the line where it ends."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.9), layout="constrained")
    axis = figure.subplots()
    colors = ("#35618f", "#6b8fb5", "#d99a4e", "#c9c9c9", "#8f8f8f")
    left = 0.0
    for (name, amount), color in zip(parts(found).items(), colors, strict=False):
        axis.barh([""], [amount / 2**30], left=left, color=color, label=f"{name} {render.size(amount)}", height=0.5)
        left += amount / 2**30
    if found["hbm_bytes_per_device"] is not None:
        capacity = found["hbm_bytes_per_device"] / 2**30
        axis.axvline(capacity, color="#c0392b", lw=2, label=f"capacity {capacity:.4g} GiB")
        left = max(left, capacity)
    axis.set_xlim(0, left * 1.03)
    axis.set_yticks([])
    axis.set_xlabel("GiB per device")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9, ncols=6, loc="lower left", bbox_to_anchor=(0, 1))
    return page.image(figure, "memory per device")
