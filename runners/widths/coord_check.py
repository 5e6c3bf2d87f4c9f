"""Coordinate check of muP: activations must not grow with the width (Yang et al. 2021, Tensor Programs V, D.1).

Makes a few updates on one batch at several widths and compares the slope of log2(statistic) against log2(width) with a
band. `size` is the mean of |x|, `change` the mean of |x - x at the start|; `change` reveals a wrong learning rate
after one update, when sizes are still those of the initial weights.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from layers.auxiliary import WATCHED
from layers.errors import UsageError
from registry.experiment import Experiment, cls_key, knobs_set_by
from registry.overrides import override
from registry.tool import render
from runners.compiled_functions import Updates
from runners.reports.results import make_folder, title
from runners.session import Session
from runners.stacked_arrays import StackedArrays
from runners.widths import coord_page
from runners.widths.coord_gates import HEAD_PART, Gate, gates, slope
from runners.widths.coord_plot import draw
from runners.widths.widths import of_width, rate_text
from tasks.storage.files import Place, write_whole
from tasks.storage.jsonl import finite

# Knobs of the check unless --set sets them: small batches of real text, plain updates, no noise.
SETTINGS: dict[str, Any] = {
    **{"BATCH_SIZE": 4, "SEQ_LEN": 32, "TBPTT_LEN": None, "GRADIENT_ACCUMULATION": 1, "NUM_GROUPS": 1, "DATA": "text"},
    **{"LENGTH_STAGES": (), "LENGTH_START": None, "STAGED_STEPS": None},
    **{"LEARNING_RATE": 2**-6, "SCHEDULE": "constant", "WARMUP_STEPS": 0, "DTYPE": "float32", "REMAT": "none"},
    **{"MOMENT_DTYPE": "float32", "GRADIENT_DTYPE": "float32", "LOSS_CHUNK": None, "DEVICE_ORDER": "auto"},
    **{"SECOND_MOMENT_DTYPE": "float32", "PARAM_DTYPE": "float32", "MASTER_WEIGHTS": False, "ZERO_STAGE": None},
    **dict.fromkeys(("DROPOUT", "EMBEDDING_DROPOUT", "SINUSOID_DROPOUT", "LAYER_DROPOUT", "JITTER"), 0.0),
    "HIDDEN_DROPOUT": None,
}
# A width at which moments are not factored would have another optimizer: its first updates are larger.
ADAFACTOR = "task.optimizer.min_dim_size_to_factor=1"
NOISE = 0.2  # slopes outside their band by less may be noise
Statistics = dict[str, dict[str, np.ndarray]]  # activation -> "size" or "change" -> value by step (and width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordOptions:
    """Options of --mode=coord_check."""

    widths: tuple[int, ...]
    seeds: int = 1  # initial weights and batches to average over
    steps: int = 2  # updates


def coord_check(experiment: Experiment, folder: Place, options: CoordOptions) -> int:
    """Trains at every width, writes coord_check.json, .png and .html; returns 1 if a slope is outside its band."""
    sessions = [_session(experiment, width) for width in options.widths]
    sessions[0].require_data(train=True, splits=("validation",))
    rate = sessions[0].task.optimizer.learning_rate
    if rate <= 0:
        raise UsageError(f"LEARNING_RATE must be above 0 for a coordinate check (got {rate}).")
    make_folder(folder)
    by_width = []
    for width, session in zip(options.widths, sessions, strict=True):
        print(f"width {width}: {options.steps} updates, {options.seeds} seed{'s' * (options.seeds > 1)}", flush=True)
        with session.placed():
            by_width.append(_measure(session, options))
    stacked: Statistics = jax.tree.map(lambda *columns: np.stack(columns, axis=-1), *by_width)
    slopes = {
        name: {kind: [slope(options.widths, row) for row in rows] for kind, rows in kinds.items()}
        for name, kinds in stacked.items()
    }
    outcomes = list(gates(slopes, _logits_slope(experiment), options.steps))
    passed = any(gate.statistic == "change" for gate in outcomes) and all(gate.ok for gate in outcomes)
    record = {
        "experiment": cls_key(type(experiment)),
        "smoke": experiment.smoke,
        "overrides": list(experiment.overrides),
        "parametrization": experiment.knobs().get("PARAMETRIZATION"),
        **dataclasses.asdict(options),
        "learning_rate": rate,
        "passed": passed,
        "gates": [{**dataclasses.asdict(gate), "ok": gate.ok} for gate in outcomes],
    }
    rows = {
        name: {kind: array.tolist() for kind, array in kinds.items()}
        | {f"{kind}_slope": found for kind, found in slopes[name].items()}
        for name, kinds in stacked.items()
    }
    write_whole(folder / "coord_check.json", json.dumps(finite({**record, "activations": rows}), indent=1) + "\n")
    draw(folder / "coord_check.png", record, stacked, slopes)
    coord_page.write(folder, record, stacked, slopes)
    _show(record, outcomes)
    print(f"Written: {folder / 'coord_check.json'}, {folder / 'coord_check.png'} and {folder / coord_page.PAGE}")
    return 0 if passed else 1


def _session(experiment: Experiment, width: int) -> Session:
    """Returns a session on one device, because the slopes do not depend on the sharding of the weights."""
    with knobs_set_by("--mode=coord_check"):
        chosen = of_width(experiment, width, **SETTINGS)
        cls = type(chosen).derive(DEVICE_MESH_SHAPE=(1,) * len(chosen.MESH_AXES))
    factors = chosen.knobs().get("OPTIMIZER") == "adafactor"
    if factors and not any(each.startswith(ADAFACTOR.rstrip("1")) for each in experiment.overrides):
        cls = override(cls, [ADAFACTOR])
    return Session(cls(), jax.devices()[:1])


def _measure(session: Session, options: CoordOptions) -> Statistics:
    """Returns size and change of every activation before the first update and after each, averaged over seeds."""
    source = session.train.input
    look = jax.jit(lambda variables, initial, batch: _activations(session.task, variables, initial, batch))
    compare = jax.jit(_compare)
    updates, runs = Updates(session.functions), []
    for seed in range(options.seeds):
        part, key = source.batch(seed), jax.random.key(seed)
        batch = session.host_batches.put(part)
        update = updates.of(batch)
        state = session.functions.init(key)
        initial = jax.tree.map(jnp.copy, state.variables)  # the update overwrites the original
        first = look(initial, initial, batch)
        seen = [compare(first, first)]
        for _ in range(options.steps):
            state = update(state, batch, key)
            seen.append(compare(look(state.variables, initial, batch), first))
        runs.append(jax.tree.map(lambda *steps: np.array(steps, float), *seen))
    return jax.tree.map(lambda *seeds: np.mean(seeds, axis=0), *runs)


def _activations(task: Any, variables: Any, initial: Any, batch: Any) -> dict[str, jax.Array]:
    """Returns every watched activation; those of stacks as one per layer of the model, like `layer 0 mixer_out`.

    HEAD_PART is the difference to logits of the same features by the initial head.
    """
    arguments = (batch.inputs, None, batch.segments, batch.positions)
    (features, _), found = task.model.apply(variables, *arguments, mutable=[WATCHED])
    logits, more = task.model.apply(variables, features, method="logits", mutable=[WATCHED])
    flat: Any = {**traverse_util.flatten_dict(found), **traverse_util.flatten_dict(more)}
    watched = {"/".join(path[1:]): array for path, array in flat.items()}
    arrays = StackedArrays({path: array.shape for path, array in watched.items()})
    seen = {}
    for name, paths in arrays.paths.items():
        if None in paths:
            seen[name] = watched[paths[None]]
        for number, layer in enumerate(arrays.layers):
            if layer.place in paths:
                seen[f"layer {number} {name.removeprefix('stack/block/')}"] = watched[paths[layer.place]][layer.index]
    return {**seen, HEAD_PART: logits - task.model.apply(initial, features, method="logits")}


def _compare(now: dict[str, jax.Array], first: dict[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    mean = lambda x: jnp.mean(jnp.abs(x.astype(jnp.float32)))
    return {name: {"size": mean(x), "change": mean(x - first[name])} for name, x in now.items()}


def _logits_slope(experiment: Experiment) -> float:
    """Expected slope of initial logits: width^-1/2 under muP, unless the head is initialized with fan_in^-1/2."""
    knobs = experiment.knobs()
    of_its_own = not knobs.get("TIE_EMBEDDINGS") and knobs.get("UNEMBEDDING_INIT") == "fan_in"
    return 0.0 if knobs.get("PARAMETRIZATION", "standard") == "standard" or of_its_own else -0.5


def _show(record: dict[str, Any], gates: Sequence[Gate]) -> None:
    steps = record["steps"]
    cells: dict[str, list[str]] = {}
    for gate in gates:
        row = cells.setdefault(gate.activation, [""] * (steps + 1))
        row[gate.step if gate.statistic == "change" else 0] = f"{gate.slope:+.2f}{'' if gate.ok else ' !'}"
    columns = ("activation", "size at the start", *(f"change by update {step}" for step in range(1, steps + 1)))
    widths = ", ".join(map(str, record["widths"]))
    rate = rate_text(record["learning_rate"])
    head = f"{title(record)} at widths {widths}, learning rate {rate}: slopes of log2 against log2(width)"
    rows = [(name, *row) for name, row in cells.items()]
    render.console().print(render.table(columns, rows, title=head, right=columns[1:]))
    print("Empty: not judged. !: outside its band (docs/explanation/mup.md lists the bands).")
    out = [gate for gate in gates if not gate.ok]
    if record["passed"]:
        print(f"Passed: all {len(gates)} slopes are in their bands.")
        return
    if not out:
        print("Failed: no change could be judged.")
        return
    worst = max(out, key=lambda gate: gate.beyond)
    print(
        f"Failed: {len(out)} of {len(gates)} slopes are outside their bands (!), farthest the {worst.statistic} of "
        f"'{worst.activation}' at step {worst.step}: {worst.slope:+.2f}, outside {worst.low:+.2f} to "
        f"{worst.high:+.2f}."
    )
    if worst.beyond < NOISE:
        print("The deviation is small and may be noise: try --seeds=3, and widths that span a factor of four.")
