"""Tables for notebooks and pandas: `pandas.DataFrame(table)`."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

from registry.pages import page
from registry.records.diff import is_equal
from registry.tool import render


class Table(list[dict[str, Any]]):
    """Rows, each a dict by column name."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]):
        super().__init__(map(dict, rows))

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order of first appearance."""
        return list(dict.fromkeys(name for row in self for name in row))

    def _cells(self) -> list[list[str]]:
        return [[str(row.get(name, "")) for name in self.columns] for row in self]

    def __repr__(self) -> str:
        return _text(lambda console: console.print(render.table(self.columns, self._cells())))

    def _repr_html_(self) -> str:
        numbers = [name for name in self.columns if all(isinstance(row.get(name, 0), int | float) for row in self)]
        return page.table(self.columns, self._cells(), numbers)


class Difference(dict[str, Any]):
    """The difference of two experiments: knobs, config and weights as rows, totals by name (registry.records.diff)."""

    def __bool__(self) -> bool:
        return not is_equal(self)

    def __repr__(self) -> str:
        return _text(lambda console: render.difference(self, console))

    def _repr_html_(self) -> str:
        parts = [f"<p>a: {page.text(self['a'])}<br>b: {page.text(self['b'])}</p>"]
        weights = [{"weight": row["path"], "changed": ", ".join(row["changed"])} for row in self["weights"]]
        totals = [{"total": name, **row} for name, row in self["totals"].items()]
        tables = {"Knobs": self["knobs"], "Config": self["config"], "Weights": weights, "Totals": totals}
        parts += [f"<h4>{title}</h4>{Table(rows)._repr_html_()}" for title, rows in tables.items() if rows]
        return "".join(parts)


class Plan(dict[str, Any]):
    """The content of plan.json (docs/howto/plans.md)."""

    def __init__(self, content: Mapping[str, Any], text: str):
        super().__init__(content)
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<pre>{page.text(self._text)}</pre>"


def _text(draw: Any) -> str:
    stream = io.StringIO()
    draw(render.console(stream))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")
