"""Tables that never shorten names: other long values are shortened, and then columns move below their row."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

EDGES, BETWEEN = 2, 3  # characters that a table adds at its edges, and between two columns
INDENT, APART = 4, 3  # of the lines below a row; between two cells there
MARK = "…"


class Table:
    """A table for rich to print.

    Names and numbers are never broken or shortened. Columns in `flexible` may be narrower than their cells: cells are
    shortened by an ellipsis to no less than the given number of characters or, with None, wrapped between words. If
    that is not enough, the columns that do not fit are written below each row, with their labels. On a console with
    `soft_wrap` (a pipe, a file) nothing is shortened or moved: cells wrap, and lines become as long as names need.

    Args:
      columns: labels.
      rows: one cell per column, printed as text; None is empty.
      title: a line above the table.
      right: labels of right-aligned columns.
      flexible: labels of columns that may be narrower than their cells, and their least width.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        title: str = "",
        right: Sequence[str] = (),
        flexible: Mapping[str, int | None] | None = None,
    ):
        self.columns, self.title, self.right = tuple(columns), title, right
        self.rows = [["" if cell is None else str(cell) for cell in row] for row in rows]
        self.flexible = flexible or {}
        cells = [[column, *(row[i] for row in self.rows)] for i, column in enumerate(self.columns)]
        self.natural = [max(map(cell_len, column)) for column in cells]
        self.least = [self._least(label, column) for label, column in zip(self.columns, cells, strict=True)]

    def _least(self, label: str, cells: list[str]) -> int:
        """Returns the least width of a column, in characters."""
        longest = max(map(cell_len, cells))
        if label not in self.flexible:
            return longest
        floor = self.flexible[label]
        if floor is None:
            return max((cell_len(word) for cell in cells for word in cell.split()), default=0)
        return min(longest, max(floor, cell_len(label)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(self.title, "bold", overflow="fold", no_wrap=console.soft_wrap)
        needed = _width(self.least)
        if console.soft_wrap or needed <= options.max_width:
            width = max(needed, options.max_width)
            yield from console.render(
                self._side_by_side(width, shorten=not console.soft_wrap), options.update(width=width)
            )
        else:
            yield from self._stacked(options.max_width)

    def _side_by_side(self, width: int, *, shorten: bool) -> RichTable:
        drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        widths = _spread(self.natural, self.least, width - _width(self.least))
        for label, size in zip(self.columns, widths, strict=True):
            cut = shorten and self.flexible.get(label) is not None
            drawn.add_column(
                label,
                justify="right" if label in self.right else "left",
                width=size,
                no_wrap=cut or label not in self.flexible,
                overflow="ellipsis" if cut else "fold",
            )
        for row in self.rows:
            drawn.add_row(*map(Text, row))
        return drawn

    def _stacked(self, width: int) -> RenderResult:
        """Renders as many of the first columns as fit in one line, and the others below their row."""
        count = 1
        while _width(self.natural[: count + 1]) <= width:
            count += 1
        yield Text(f"\n {self._line(self.columns, count)}", "bold")
        yield Text(" " + "─" * (_width(self.natural[:count]) - EDGES))
        for row in self.rows:
            yield Text(f" {self._line(row, count)}")
            below = self._below(row, count, width - INDENT)
            if below.plain:
                yield Padding(below, (0, 0, 0, INDENT))
        yield Text("")

    def _line(self, cells: Sequence[str], count: int) -> str:
        """Formats the first cells of a row, or the labels of their columns, as one line."""
        sized = []
        for cell, label, size in zip(cells[:count], self.columns, self.natural, strict=False):
            pad = " " * (size - cell_len(cell))
            sized.append(pad + cell if label in self.right else cell + pad)
        return (" " * BETWEEN).join(sized).rstrip()

    def _below(self, row: Sequence[str], count: int, width: int) -> Text:
        """Formats the other cells of a row with their labels, as many per line as fit, without empty ones."""
        text, used = Text(), 0
        for label, cell in zip(self.columns[count:], row[count:], strict=True):
            if not cell:
                continue
            if self.flexible.get(label) is not None:
                cell = shortened(cell, width - cell_len(label) - 1)
            size = cell_len(label) + 1 + cell_len(cell)
            if text.plain:
                fits = used + APART + size <= width
                text.append(" " * APART if fits else "\n")
                used = used + APART if fits else 0
            text.append(f"{label} ", "dim").append(cell)
            used += size
        return text


def shortened(text: str, width: int) -> str:
    """Returns the text, its end replaced by an ellipsis if it has more than `width` characters."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + MARK


def _width(columns: Sequence[int]) -> int:
    """Returns the width in characters of a table with these column widths."""
    return sum(columns) + BETWEEN * (len(columns) - 1) + EDGES


def _spread(natural: Sequence[int], least: Sequence[int], spare: int) -> list[int]:
    """Returns column widths: the least each needs, and shares of the spare width for columns that need more."""
    widths = list(least)
    wanting = sorted((size - widths[i], i) for i, size in enumerate(natural) if size > widths[i])
    for done, (missing, i) in enumerate(wanting):
        grown = min(missing, spare // (len(wanting) - done))
        widths[i] += grown
        spare -= grown
    return widths
