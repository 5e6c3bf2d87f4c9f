"""HTML pages: style, tables, figures. A page is a single file without external resources."""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

from registry.tool import render

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2024; background: #fff }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin-top: 2.2rem }
p.doc { color: #555; margin-top: .2rem } img { max-width: 100% }
table { border-collapse: collapse; font-size: 13px; width: 100% }
th { text-align: left; border-bottom: 2px solid #ccc }
th, td { padding: .25rem .7rem .25rem 0; vertical-align: top }
td { border-bottom: 1px solid #eee; font-family: ui-monospace, monospace }
td.n, th.n { text-align: right; white-space: nowrap }
.cards { display: flex; gap: 1rem; flex-wrap: wrap; margin: 1.2rem 0 }
.card { background: #f4f6f8; border-radius: .5rem; padding: .6rem 1rem } .card b { display: block; font-size: 1.3rem }
details summary { cursor: pointer; color: #335 }
pre { background: #f4f6f8; padding: .8rem; overflow-x: auto; white-space: pre-wrap }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Returns a complete page."""
    head = f"<meta charset=utf-8><title>{text(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en>{head}<body>{''.join(parts)}</body></html>\n"


def text(value: Any) -> str:
    """Escapes the special characters of HTML."""
    return html.escape(str(value))


def cards(pairs: Iterable[tuple[str, Any]]) -> str:
    """Returns labeled numbers, side by side."""
    return (
        "<div class=cards>" + "".join(f"<div class=card>{text(k)}<b>{text(v)}</b></div>" for k, v in pairs) + "</div>"
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[str] = ()) -> str:
    """Returns a table; the columns in `numbers` are right-aligned."""
    kinds = [" class=n" if column in numbers else "" for column in columns]
    head = "".join(f"<th{kind}>{text(column)}" for column, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{text(cell)}" for cell, kind in zip(row, kinds, strict=True)) for row in rows
    )
    return f"<table><tr>{head}{body}</table>"


def weights(data: dict[str, Any]) -> str:
    """Returns the weight table of a snapshot, and its totals."""
    totals = data["totals"]
    held, slots = (render.size(totals[f"{kind}bytes_per_device"]) for kind in ("", "optimizer_"))
    summary = (
        f"<p>{totals['parameters']:,} parameters; per device {held} of weights and {slots} of optimizer state.</p>"
    )
    return summary + table(render.WEIGHT_COLUMNS, map(render.weight_cells, data["weights"]), render.WEIGHT_NUMBERS)


def image(figure: Any, alt: str) -> str:
    """Returns a matplotlib figure as an embedded PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return f"<img alt='{text(alt)}' src='data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}'>"
