"""HTML pages: the frame by a jinja2 template, tables, cards, data for scripts, and the assets that pages load.

A page loads its style and scripts from a folder `assets/` by relative paths, so it opens from disk and makes no network
request. `write_assets` writes that folder.
"""

import functools
import html
import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from layers.errors import UsageError
from tasks.storage.files import Place, make_folder, write_whole
from tasks.storage.json_values import parsed, require_type
from tasks.storage.jsonl import finite

HERE = Path(__file__).parent
ASSETS = "assets"  # name of the folder next to a page, or above it
PLOTLY = f"{ASSETS}/plotly.min.js"  # for `scripts` of a page with figures
SHORT = 16  # characters of a cell of a table whose words are not broken
LARGE = 1 << 20  # bytes; a larger asset counts as unchanged if its size is


def page(
    title: str,
    parts: Iterable[str],
    *,
    root: str = ".",
    scripts: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
    styles: Sequence[str] = (),
    current: str = "",
) -> str:
    """Returns a complete page.

    Args:
      title: its name in the browser's tab, unescaped.
      parts: its content, as HTML.
      root: relative path to the folder that contains `assets/`.
      scripts: further scripts, as paths relative to `root`; they run in this order after page.js.
      links: label and relative path of the pages in the header; the first one is the home page.
      styles: further style sheets, as paths relative to `root`.
      current: the label in `links` of this page.
    """
    content = Markup("".join(parts))
    values = {"title": title, "content": content, "root": root, "links": links or {}, "current": current}
    made = render("page.jinja", scripts=scripts, styles=styles, **values)
    return made.encode(errors="replace").decode()  # texts of JSON files may have surrogates, which UTF-8 cannot encode


def render(template: str, **values: Any) -> str:
    """Returns a template of registry/pages/templates with its values, which are escaped."""
    return environment().get_template(template).render(**values)


@functools.cache
def environment(*folders: Path) -> jinja2.Environment:
    """Returns the jinja2 environment of these folders of templates and of this package's: all values are escaped, and
    missing ones are errors."""
    loader = jinja2.FileSystemLoader([*folders, HERE / "templates"])
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def text(value: Any) -> str:
    """Escapes the special characters of HTML."""
    return html.escape(str(value))


def cards(pairs: Iterable[tuple[str, Any]]) -> str:
    """Returns labeled numbers, side by side."""
    return render("cards.jinja", pairs=list(pairs))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[str] = ()) -> str:
    """Returns a table that scrolls if it is wider than the page; the columns in `numbers` are right-aligned."""
    return render("table.jinja", columns=columns, rows=list(rows), numbers=numbers, short=SHORT)


def script_data(name: str, value: Any) -> str:
    """Returns plain data as JSON in a script tag, which page.js reads by `vortaro.data(name)`; NaN becomes null."""
    return f'<script type="application/json" id="{text(name)}">{script_json(value)}</script>'


def script_json(value: Any) -> str:
    """Returns plain data as JSON without characters that HTML interprets inside of a script; NaN becomes null."""
    dumped = json.dumps(finite(value), separators=(",", ":"), allow_nan=False)
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_assets(folder: Place, *others: Path) -> Place:
    """Writes `assets/` (style, script, plotly) into the folder of pages; returns it. Unchanged files are not written.

    Args:
      folder: local or on an object store; it need not exist.
      others: further files to write into it.
    Raises:
      UsageError: the folder is on an object store and cannot be written.
    """
    assets = folder / ASSETS
    make_folder(assets)
    for file in (*sorted((HERE / ASSETS).iterdir()), _plotly(), *others):
        write_changed(assets / file.name, file.read_bytes())
    return assets


def _plotly() -> Path:
    """Returns the file of plotly.js in the package plotly, which is not imported: that takes a second."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise UsageError("Pages need the package plotly (got none). Run pip install -c constraints.txt -e .")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


def write_changed(file: Place, content: bytes) -> None:
    """Writes a file unless it has this content."""
    if not _has(file, content):
        write_whole(file, content)


def listed_names(file: Place) -> set[str]:
    """Returns the names of files in a list that an earlier command wrote; none if it is missing or damaged."""
    try:
        names = parsed(file.read_bytes()) if file.exists() else []
        require_type(names, list[str], "it")
    except ValueError:
        return set()
    return set(names)


def _has(file: Place, content: bytes) -> bool:
    if not file.exists():
        return False
    if len(content) > LARGE:
        found: Any = file.stat()
        return (found.st_size if isinstance(file, Path) else found.length) == len(content)
    return file.read_bytes() == content
