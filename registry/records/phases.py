"""Phases of a run as plain data: for records, differences and pages."""

from typing import Any

from registry.build import build, config_of
from registry.experiment import Experiment
from registry.phase import Phase
from registry.values import show

Config = dict[str, str]
INPUT = "train.input"


def phase_records(experiment: Experiment, config: Config, other_configs: list[Config]) -> list[dict[str, Any]]:
    """Returns a record for each phase of a run; empty if it has none.

    Each has `updates` (first and last, counted from 1), `rows` and `positions` of a batch, `learning_rate` at the first
    and the last update, `knobs` that the phase states, and `config`, the fields that differ from the first phase.

    Args:
      experiment: the experiment of the run.
      config: its config by path.
      other_configs: those of its later phases.
    """
    if not other_configs:
        return []
    stated: tuple[Phase, ...] = type(experiment).knobs()["PHASES"]
    optimizers = [build(config_of(phase, "task").optimizer, "task.optimizer") for phase in experiment.phases]
    source = build(config_of(experiment, "train"), "train").input
    found, last = [], 0
    for number, theirs in enumerate([config, *other_configs]):
        first, last = last + 1, last + source.steps[number]
        changed = {path for path in theirs if theirs[path] != config.get(path)} | (config.keys() - theirs.keys())
        rates = [float(optimizers[number].learning_rate_at(step - 1)) for step in (first, last)]
        found.append(
            {
                "updates": [first, last],
                "rows": source.phases[number].batch_size,
                "positions": source.phases[number].seq_len,
                "learning_rate": rates,
                "knobs": {name: show(value) for name, value in stated[number].knobs},
                "config": {path: theirs.get(path) for path in sorted(changed) if not path.startswith(INPUT)},
            }
        )
    return found
