"""The generic runner: carries any registered experiment out.

python -m runners.main --exp=tiny.StdlibTiny --workdir=runs/demo
python -m runners.main --workdir=runs/demo --mode=sample --prompt="def "
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence

from layers.errors import UsageError, did_you_mean, missing_package
from runners.flags import Parser, check_module_flags, parse_with_modules, prepare_devices, run_app
from runners.huge_pages import use_large_pages

MODES = (
    "train",
    "validation",
    "test",
    "sample",
    "profile",
    "plan",
    "coord_check",
    "sweep",
    "train_vocab",
    "inspect_data",
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags.

    Raises:
      UsageError: an unknown flag or mode, or a value of the wrong type.
    """
    options = parse_with_modules(_parser, arguments)
    if options.mode not in MODES:
        raise UsageError(f"There is no mode '{options.mode}'. {did_you_mean(options.mode, MODES)}")
    _check_flags_of_modes(options)
    if options.workdir is None and options.mode == "plan" and options.exp is not None:
        machine = (options.topology or options.chip or "cpu").replace(":", "-")
        options.workdir = f"plans/{options.exp}-{machine}"
    if not options.workdir and (options.mode != "train_vocab" or options.exp is None):
        raise UsageError("Say where the run lives: --workdir=runs/NAME.")
    options.command = ("python", "-m", "runners.main", *arguments)
    return options


def _parser() -> Parser:
    parser = Parser("runners.main", __doc__, with_absl=True)
    add = parser.add_argument
    add("--exp", help="the experiment: family.Class, or their.module.Class; by default the one that --workdir holds")
    add("--mode", default="train", help=" | ".join(MODES))
    add("--workdir", help="the run folder: checkpoints, metrics, report")
    add("--smoke", action="store_true", help="the experiment made small, on the devices that are there")
    add(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="KNOB=VALUE or task./train./test. config path; repeatable",
    )
    add(
        "--import",
        action="append",
        default=[],
        dest="imports",
        metavar="MODULE",
        help="import a module first; repeatable",
    )
    add("--allow_changes", action="store_true", help="go on in a workdir of a changed experiment")
    add("--host_devices", type=int, metavar="N", help="N virtual CPU devices in this process")
    add(
        "--tensorboard",
        action=argparse.BooleanOptionalAction,
        help="write TensorBoard events; the default where the extra is installed",
    )
    add("--wandb", metavar="PROJECT", help="log to this Weights & Biases project")
    _add_process_flags(parser)
    _add_mode_flags(parser)
    return parser


def _add_process_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that say how this process finds the others of its run."""
    add = parser.add_argument_group("several processes (found out on clusters)").add_argument
    add("--coordinator", metavar="HOST:PORT", help="where process 0 listens, the same for all processes")
    add("--num_processes", type=int, metavar="N", help="how many processes run this command")
    add("--process_id", type=int, metavar="I", help="which of them this is, from 0 on")
    add("--join_timeout", type=int, default=300, metavar="SECONDS", help="how long to wait for others at the start")
    add(
        "--peer_timeout",
        type=int,
        default=60,
        metavar="SECONDS",
        help="silence after which a process is held to be dead",
    )


def _check_flags_of_modes(options: argparse.Namespace) -> None:
    """Raises a UsageError for a flag that the mode would not read."""
    if options.mode != "plan" and (options.topology or options.chip or options.sweep):
        raise UsageError("--topology, --chip and --sweep are for --mode=plan.")
    if options.mode != "coord_check" and options.steps is not None:
        raise UsageError("--steps is for --mode=coord_check: elsewhere say --set=NUM_STEPS.")
    if options.mode not in ("coord_check", "sweep") and (options.widths, options.seeds) != (None, None):
        raise UsageError("--widths and --seeds are for --mode=coord_check and --mode=sweep.")
    if options.mode != "sweep" and options.rates is not None:
        raise UsageError("--rates is for --mode=sweep: elsewhere say --set=LEARNING_RATE.")
    if options.mode != "train" and options.profile_at is not None:
        raise UsageError("--profile_at is for --mode=train: --mode=profile traces from its fourth update on.")
    if options.mode != "sample" and (options.window, options.stream) != (None, None):
        raise UsageError("--window and --stream are for --mode=sample: elsewhere say --set=ATTENTION_WINDOW.")


def _add_mode_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that one or a few modes read."""
    add = parser.add_argument_group("sample").add_argument
    add("--prompt", action="append", help="text to go on from; repeatable")
    add("--max_new_tokens", type=int, default=256)
    add("--temperature", type=float, default=0.8, help="0 is greedy")
    add("--repetition_penalty", type=float, default=1.0, help="divides logits of tokens drawn before; 1 is none")
    add("--top_k", type=int, help="draw from the k likeliest tokens")
    add("--top_p", type=float, help="draw from the fewest tokens that hold this probability")
    add("--typical_p", type=float, help="the same, those nearest in surprise to the entropy first")
    add("--eta", type=float, help="draw from tokens above a threshold that falls with the entropy")
    add("--window", type=int, metavar="N", help="attention sees the last N positions, and keeps no others")
    add("--stream", action=argparse.BooleanOptionalAction, help="show one sample as it is drawn; default on a terminal")
    add("--num_samples", type=int, default=1, help="samples per prompt, drawn as one batch")
    add("--sample_seed", type=int, default=0)
    add("--stop", action=argparse.BooleanOptionalAction, default=True, help="end at the vocabulary's stop token")
    add("--save_state", metavar="FILE", help="keep what was read and drawn, to go on from")
    add("--load_state", metavar="FILE", help="go on behind what --save_state kept")
    add("--checkpoint", default="last", help="last, best or a step; for sample, validation and test")
    add = parser.add_argument_group("profile, train").add_argument
    add("--profile_steps", type=int, default=10, help="updates under the profiler")
    add("--profile_at", type=int, metavar="STEP", help="in mode train: trace --profile_steps updates from this one on")
    add = parser.add_argument_group("coord_check, sweep").add_argument
    add("--widths", metavar="64,128,256", help="values of MODEL_DIM; by default 1, 2 and 4 times BASE_WIDTH")
    add("--seeds", type=int, help="seeds to average over; by default 1")
    add("--steps", type=int, help="coord_check: updates at each width; by default 2")
    add("--rates", metavar="2^-11..2^-5", help="sweep: learning rates, a range (the default) or a list")
    add = parser.add_argument_group("plan").add_argument
    add("--topology", metavar="v3:8x8", help="a TPU slice, compiled for by the TPU compiler; no TPU is needed")
    add("--chip", help="whose memory and speed count on virtual CPU devices; a topology brings its own")
    add("--plan_step", choices=("train", "decode"), default="train", help="one update, or one token behind a context")
    add("--sweep", action="store_true", help="plan every mesh shape and remat policy, and rank them")


def run(options: argparse.Namespace) -> int:
    """Carries out what the flags say, with the other processes of this run; returns the exit code."""
    prepare_devices(options.host_devices)
    if options.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise missing_package("--wandb", "wandb", "wandb")
    if options.tensorboard and not all(map(importlib.util.find_spec, ("clu", "tensorflow"))):
        raise missing_package("--tensorboard", "clu (and tensorflow)", "tensorboard")
    options.tensorboard = options.tensorboard is not False  # MetricsLog looks whether it is installed
    from runners.processes.distributed import SEVERAL, joined
    from tasks.storage.files import trouble

    with joined(options) as others:
        if others.several and options.mode not in SEVERAL:
            raise UsageError(f"--mode={options.mode} runs in one process, and there are {others.count}.")
        with trouble(options.workdir):
            return _run(options)
    raise AssertionError  # joined() lets no error pass


def _run(options: argparse.Namespace) -> int:
    from registry.resolve import resolve
    from runners.processes.consistency import require_same_data_everywhere, require_same_run
    from runners.session import Session
    from runners.training.checkpoints import require_checkpoints
    from runners.training.history import start_of
    from runners.training.warm_start import check_warm_start
    from runners.training.workdir import open_workdir, recorded, require_same_vocabulary

    name, overrides, smoke = options.exp, options.set, options.smoke
    if name is None:
        before = recorded(options.workdir)
        name, overrides, smoke = before["experiment"], [*before["overrides"], *options.set], before["smoke"] or smoke
    experiment = resolve(name, overrides, smoke=smoke, imports=options.imports)
    check_module_flags(options)
    if options.mode == "plan":
        return _plan(options, experiment)
    if options.mode in ("coord_check", "sweep"):
        return _compare_widths(options, experiment)
    if options.mode == "inspect_data":
        from runners.data.inspect_data import inspect_data
        from tasks.storage.files import place

        return inspect_data(experiment, place(options.workdir))
    if options.mode == "train_vocab":
        from runners.data.train_vocab import train_vocab

        return train_vocab(experiment)
    require_same_run(experiment, overrides, options)
    require_same_vocabulary(options.workdir, experiment, allow_changes=options.allow_changes)
    session = Session(experiment)
    if options.mode in ("sample", "validation", "test"):
        require_checkpoints(options.workdir)
    session.require_data(options.mode)
    require_same_data_everywhere(session.inputs_of(options.mode))
    if options.mode == "train":
        check_warm_start(session, options.workdir, allow_changes=options.allow_changes)
        return _train(options, session)
    record = {"allow_changes": options.allow_changes, "record": options.mode == "profile"}
    workdir = open_workdir(
        options.workdir, experiment, session.mesh_shape, start=start_of(options, experiment), **record
    )
    if options.mode == "profile":
        from runners.training.profile import profile

        return profile(session, workdir, options.profile_steps)
    if options.mode == "sample":
        if options.window is not None:
            session = _windowed(experiment, options.window)
        return _sample(options, session, workdir)
    from runners.training.evaluate_checkpoint import judge

    return judge(session, workdir, options.mode, options.checkpoint)


def _train(options: argparse.Namespace, session) -> int:
    from runners.training.history import start_of
    from runners.training.train import TrainOptions, train
    from runners.training.workdir import open_workdir, sole_use
    from tasks.storage.files import place

    start = start_of(options, session.experiment)
    chosen = TrainOptions(
        start=start,
        tensorboard=options.tensorboard,
        wandb=options.wandb,
        profile_at=options.profile_at,
        profile_steps=options.profile_steps,
        allow_changes=options.allow_changes,
    )
    with sole_use(place(options.workdir)):
        record = {"allow_changes": options.allow_changes, "start": start}
        folder = open_workdir(options.workdir, session.experiment, session.mesh_shape, **record)
        return train(session, folder, chosen)
    raise AssertionError  # sole_use() lets no error pass


def _plan(options: argparse.Namespace, experiment) -> int:
    from runners.planner.mesh_search import rank_layouts
    from runners.planner.plan import PlanOptions, plan
    from tasks.storage.files import place

    fields = {"topology": options.topology, "chip": options.chip, "step": options.plan_step}
    chosen = PlanOptions(devices=options.host_devices, **fields)
    return (rank_layouts if options.sweep else plan)(experiment, place(options.workdir), chosen)


def _compare_widths(options: argparse.Namespace, experiment) -> int:
    from runners.widths.coord_check import CoordOptions, coord_check
    from runners.widths.sweep import SweepOptions, sweep
    from runners.widths.widths import parse_rates, parse_widths, refuse_settings
    from tasks.storage.files import place

    swept = options.mode == "sweep"
    if (folder := experiment.knobs().get("WARM_START")) is not None:
        raise UsageError(f"WARM_START = {folder} is for --mode=train: {options.mode} begins with initial weights.")
    for name in ("seeds", "steps"):
        if (count := getattr(options, name)) is not None and count < 1:
            raise UsageError(f"--{name}={count} must be at least 1.")
    refuse_settings(experiment, {"MODEL_DIM": "--widths"} | ({"LEARNING_RATE": "--rates"} if swept else {}))
    widths, seeds, folder = parse_widths(options.widths, experiment), options.seeds or 1, place(options.workdir)
    if not swept:
        return coord_check(experiment, folder, CoordOptions(widths=widths, seeds=seeds, steps=options.steps or 2))
    rates = parse_rates(options.rates or "2^-11..2^-5")
    return sweep(experiment, folder, SweepOptions(widths=widths, rates=rates, seeds=seeds))


def _windowed(experiment, window: int):
    from registry.experiment import knobs_set_by
    from registry.snapshot import flat_config
    from runners.session import Session

    if not any(path.endswith(".window") for path in flat_config(experiment)):
        raise UsageError(f"--window is for softmax attention, which {type(experiment).__name__} does not have.")
    if window < 1:
        raise UsageError(f"--window={window} must be at least 1.")
    with knobs_set_by("--window"):
        cls = type(experiment).derive(ATTENTION_WINDOW=window)
    return Session(cls())


def _sample(options: argparse.Namespace, session, workdir) -> int:
    from runners.sampling.sample import SampleOptions, sample
    from tasks.decoding.generation import Sampler

    rules = ("temperature", "repetition_penalty", "top_k", "top_p", "typical_p", "eta")
    sampler = Sampler(**{rule: getattr(options, rule) for rule in rules})
    rows = len(options.prompt or [""]) * options.num_samples
    chosen = SampleOptions(
        stream=(sys.stdout.isatty() if options.stream is None else options.stream) and rows == 1,
        prompts=options.prompt or ["" if options.load_state else "\n"],
        sampler=sampler,
        new_tokens=options.max_new_tokens,
        copies=options.num_samples,
        seed=options.sample_seed,
        stop=options.stop,
        checkpoint=options.checkpoint,
        load_state=options.load_state,
        save_state=options.save_state,
    )
    return sample(session, workdir, chosen)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs; a known error ends in one sentence and its exit code."""
    return run_app(parse, run, arguments)


if __name__ == "__main__":
    use_large_pages("runners.main")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stdout.flush()
        said = "interrupted; what was written stays, and the same command goes on."
        print(f"vortaro: {said}", file=sys.stderr, flush=True)
        os._exit(130)  # XLA's threads may be at work, and crash under an orderly end
