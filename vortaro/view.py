"""Experiments in notebooks: knobs, config and weights as tables."""

import functools
from typing import Any

from registry.experiment import Experiment, cls_key, doc_line
from registry.pages import page
from registry.pages.weights import weights
from registry.records.knob_docs import meanings
from registry.records.snapshot import snapshot
from registry.tool import render
from vortaro.tables import Table


class View:
    """An experiment; nothing is built until a table is requested.

    Attributes:
      experiment: the experiment itself (registry.experiment.Experiment).
    """

    def __init__(self, experiment: Experiment):
        self.experiment = experiment

    @property
    def name(self) -> str:
        """`family.Class`."""
        return cls_key(type(self.experiment))

    @functools.cached_property
    def snapshot(self) -> dict[str, Any]:
        """The experiment as plain data (registry.records.snapshot)."""
        return snapshot(self.experiment)

    @property
    def knobs(self) -> Table:
        """Every knob: its value, its meaning, and the class or flag that sets it."""
        texts = meanings(type(self.experiment))
        rows = [
            {"knob": name, "value": row["value"], "meaning": texts.get(name, ""), "set by": row["owner"]}
            for name, row in self.snapshot["knobs"].items()
        ]
        return Table(rows)

    @property
    def config(self) -> Table:
        """Every field of the configs that Task(), Train() and Test() return."""
        return Table([{"path": path, "value": value} for path, value in self.snapshot["config"].items()])

    @property
    def weights(self) -> Table:
        """The weight table: path, shape, spec, role, bytes."""
        return Table(self.snapshot["weights"])

    @property
    def totals(self) -> dict[str, int]:
        """Parameters and bytes, of all devices and per device."""
        return self.snapshot["totals"]

    def __repr__(self) -> str:
        changed = f" with {', '.join(self.experiment.overrides)}" if self.experiment.overrides else ""
        mesh = render.mesh_text(self.snapshot["mesh"])
        title = f"{self.name}{changed}: {doc_line(type(self.experiment))}"
        return f"{title}\n{self.totals['parameters']:,} parameters on {mesh}"

    def _repr_html_(self) -> str:
        title, _, size = repr(self).partition("\n")
        return f"<p><b>{page.text(title)}</b><br>{page.text(size)}</p>{weights(self.snapshot)}"
