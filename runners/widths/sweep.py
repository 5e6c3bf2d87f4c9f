"""Learning rate sweep: validation loss by learning rate at several widths."""

import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from registry.build import build
from registry.experiment import Experiment, cls_key, knobs_set_by
from registry.tool import render
from runners.compiled_functions import Updates
from runners.reports.results import Key, Results, experiment_hash, make_folder, title
from runners.session import Session
from runners.training.evaluate import evaluate, fetch
from runners.widths import sweep_page
from runners.widths.sweep_plot import draw
from runners.widths.widths import of_width, rate_text
from tasks.inputs.indexed import IndexedInput
from tasks.storage.files import Place, write_whole
from tasks.storage.jsonl import finite
from tasks.train_step import TrainState

RESULTS = "sweep.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of --mode=sweep."""

    widths: tuple[int, ...]
    rates: tuple[float, ...]
    seeds: int = 1  # initial weights and orders of the data to average over


def sweep(experiment: Experiment, folder: Place, options: SweepOptions) -> int:
    """Trains and evaluates every case, prints a table, writes sweep.jsonl, sweep.json, sweep.png and sweep.html.

    Each result is appended to sweep.jsonl at once: the same command in the same folder resumes the sweep.
    """
    by_width = [_Runs(of_width(experiment, width)) for width in options.widths]
    make_folder(folder)
    results = Results(folder / RESULTS)
    total, number, losses = len(options.widths) * len(options.rates) * options.seeds, 0, []
    for width, runs in zip(options.widths, by_width, strict=True):
        for seed, rate in itertools.product(range(options.seeds), options.rates):
            number += 1
            key = {**runs.key, "width": width, "learning_rate": rate, "seed": seed}
            found = results.find(key)
            known = found is not None
            found = found or results.add(key, runs.run(rate, seed))
            losses.append(found)
            source = "from sweep.jsonl" if known else f"{found['seconds']:.0f} s"
            loss = "diverged" if found["loss"] is None else f"{found['loss']:.4f}"
            print(
                f"{number}/{total}  width {width}  rate {rate_text(rate)}  seed {seed}:  {loss}  ({source})", flush=True
            )
    summary = summarize(losses, options)
    head = {"experiment": cls_key(type(experiment)), "smoke": experiment.smoke}
    summary = {**head, "overrides": list(experiment.overrides), **summary}
    write_whole(folder / "sweep.json", json.dumps(summary, indent=1) + "\n")
    draw(folder / "sweep.png", summary)
    sweep_page.write(folder, summary)
    _show(summary)
    print(f"Written: {results.file}, {folder / 'sweep.json'}, {folder / 'sweep.png'} and {folder / sweep_page.PAGE}")
    return 0


class _Runs:
    """Runs of one width; all rates and seeds share one compiled update."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.session = Session(experiment)  # errors at any width are raised before anything is written
        self.session.require_data(train=True, splits=("validation",))
        # By phase; compiled by the first run.
        self.updates = [Updates(phase.functions, takes_rate=True) for phase in self.session.phases]
        # The sweep sets the first knob and ignores the others.
        unread = {"LEARNING_RATE": 1.0, "EVAL_EVERY": None, "SAVE_EVERY": 1}
        known = {name: value for name, value in unread.items() if name in experiment.knobs()}
        with knobs_set_by("--rates"):
            cls = type(experiment).derive(**known)
        self.key: Key = {
            "experiment": experiment_hash(cls()),
            "data": _data_hash(experiment),
            "versions": [jax.__version__, importlib.metadata.version("vortaro"), jax.default_backend()],
        }

    def run(self, rate: float, seed: int) -> dict[str, Any]:
        """Trains one model; returns its validation loss and its training losses, None if not finite."""
        began = time.perf_counter()
        session, steps = self.session, self.session.train.num_steps
        with session.placed():
            batches = session.host_batches.iterate(self._input(seed))
            batch, _ = next(batches)
            key = jax.random.key(self.experiment.SEED + seed)
            state, curve, value = session.functions.init(key), [], np.float32(rate)
            for step in range(1, steps + 1):
                phase = session.of_update(step)
                update = self.updates[phase.experiment.phase].of(batch)
                state = session.settle(update(state, batch, key, value))
                if session.train.ends_window(step) or step == steps:
                    sums = fetch(state.sums)
                    curve.append((step, finite(sums["loss"] / max(sums["weight"], 1e-9))))
                    if self._diverged(state):
                        break
                if step < steps:
                    batch, _ = next(batches)
            bad = self._diverged(state)
            last = session.phases[-1]
            loss = None if bad else finite(evaluate(last, last.functions.evaluated(state), "validation")["loss"])
        return {"loss": loss, "bad_step": bad or None, "train": curve, "seconds": time.perf_counter() - began}

    def _diverged(self, state: TrainState) -> int:
        """Returns the first step that was not finite, unless such updates are skipped; 0 for none."""
        return 0 if self.session.task.non_finite == "skip" else int(state.bad_step)

    def _input(self, seed: int) -> IndexedInput:
        """Returns the training input in the order of another seed."""
        with knobs_set_by("--seeds"):
            cls = type(self.experiment).derive(SEED=self.experiment.SEED + seed)
        return build(cls().Train(), "train").input


def _data_hash(experiment: Experiment) -> str:
    """Hash of the data: 16 hexadecimal digits of the inputs' descriptions and first batches."""
    held_out = build(experiment.Test(), "test").inputs
    inputs = [build(experiment.Train(), "train").input, *(held_out[name] for name in held_out if name == "validation")]
    digest = hashlib.sha256()
    for source in inputs:
        digest.update(source.describe().encode())
        for leaf in jax.tree.leaves(source.batch(0)):
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def summarize(lines: Sequence[dict[str, Any]], options: SweepOptions) -> dict[str, Any]:
    """Returns losses by width and rate (means over seeds; None if any run diverged), the best rates and their drift.

    `refined` is the minimum, in log2(rate), of the parabola through the best loss and its neighbors. `regret` is the
    loss at the smallest width's best rate minus the best loss: the cost of transferring that rate.
    """
    rows: list[dict[str, Any]] = []
    for width in options.widths:
        here = [line for line in lines if line["width"] == width]
        by_rate = [[line for line in here if line["learning_rate"] == rate] for rate in options.rates]
        losses = [_mean([line["loss"] for line in runs]) for runs in by_rate]
        curves = [
            [(step, _mean([line["train"][i][1] if i < len(line["train"]) else None for line in runs]))
             for i, (step, _) in enumerate(runs[0]["train"])]
            for runs in by_rate
        ]  # fmt: skip
        trained = [index for index, loss in enumerate(losses) if loss is not None]
        best = min(trained, key=lambda index: losses[index] or 0.0) if trained else None
        carried = losses[rows[0]["best"]] if rows and rows[0]["best"] is not None else None
        rows.append(
            {
                "width": width,
                "losses": losses,
                "best": best,
                "refined": None if best is None else refine(options.rates, losses, best),
                "regret": None if best is None or carried is None else carried - (losses[best] or 0.0),
                "train": curves,
            }
        )
    refined = [row["refined"] for row in rows]
    drift = None if None in refined else refined[-1] - refined[0]
    return {**dataclasses.asdict(options), "rows": rows, "drift_log2": drift}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def refine(rates: Sequence[float], losses: Sequence[float | None], best: int) -> float | None:
    """Returns log2 of the rate at the minimum of the parabola through the best loss and its neighbors, or None."""
    if not 0 < best < len(rates) - 1:
        return None
    x, y = np.log2(rates[best - 1 : best + 2]), losses[best - 1 : best + 2]
    if any(loss is None for loss in y):
        return None
    a, b, _ = np.polyfit(x, np.array(y, float), 2)
    return float(-b / (2 * a))


def _show(summary: dict[str, Any]) -> None:
    rates = [rate_text(rate) for rate in summary["rates"]]
    first, last = summary["widths"][0], summary["widths"][-1]
    columns = ("width", *rates, "parabola, log2", f"regret at {first}'s best")
    body = []
    for row in summary["rows"]:
        cells = [
            "diverged" if loss is None else f"{loss:.3f}{'*' if index == row['best'] else ' '}"
            for index, loss in enumerate(row["losses"])
        ]
        refined = "" if row["refined"] is None else f"{row['refined']:.2f}"
        body.append((row["width"], *cells, refined, "" if row["regret"] is None else f"{row['regret']:.3f}"))
    head = f"{title(summary)}: validation loss by learning rate (* best)"
    render.console().print(render.table(columns, body, title=head, right=columns))
    best = [row["best"] for row in summary["rows"]]
    if None in best:
        print("At some width, every rate diverged. Add lower rates.")
        return
    if {0, len(rates) - 1} & set(best):
        print("A best rate is at the edge of the grid. Add rates beyond it to measure the drift.")
        return
    moved = max(best) - min(best)
    drift = "" if summary["drift_log2"] is None else f", by parabola {summary['drift_log2']:+.2f} in log2"
    where = "stays in its cell of the grid" if not moved else f"moves by {moved} cell{'s' * (moved > 1)} of the grid"
    print(f"From width {first} to {last} the best rate {where}{drift}.")
