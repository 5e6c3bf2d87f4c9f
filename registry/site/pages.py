"""HTML and data files of the site, from records of experiments."""

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from registry.pages.page import environment, page, script_json
from registry.pages.phases import phases
from registry.records import weight_cells
from registry.records.quantities import amount, mesh_text, size
from registry.site.records import Record

HERE = Path(__file__).parent
LINKS = {"Experiments": "index.html", "Compare": "compare.html"}  # in the header of each page
RUNS_LINK = {"Runs": "runs.html"}  # of a site with runs
SIZES = ("below 10 M", "10 M to 100 M", "100 M to 1 B", "1 B to 10 B", "10 B to 100 B", "100 B and more")
DEVICES = ("1", "2 to 8", "9 to 64", "65 to 512", "513 and more")
KINDS = (("weights", ""), ("gradients", "gradient_"), ("optimizer state", "optimizer_"))  # name, prefix in the totals
WEIGHT_COLUMNS = weight_cells.COLUMNS[1:]  # the name of the weight is the header of its row
INDEX_COLUMNS = ("name", "parameters", "devices", "mixer", "feed-forward")


def index_page(records: Sequence[Record], links: Mapping[str, str] = LINKS) -> str:
    """Returns the page that lists all experiments."""
    rows = [row(record) for record in records]
    filters = {
        "family": sorted({row["family"] for row in rows}),
        "size": [name for name in SIZES if any(row["size"] == name for row in rows)],
        "mixer": sorted({name for row in rows for name in row["mixer"]}),
        "ffn": sorted({name for row in rows for name in row["ffn"]}),
        "devices": [name for name in DEVICES if any(row["device_range"] == name for row in rows)],
    }
    content = _template("index.jinja", rows=rows, filters=filters, columns=INDEX_COLUMNS)
    return _page("Experiments", content, ".", links, "data/index.js", "assets/index.js")


def code_marked(text: str) -> Markup:
    """Returns text as HTML, with the parts between backticks as code."""
    parts = text.split("`")
    marked = (Markup("<code>{}</code>") if number % 2 else Markup("{}") for number in range(len(parts)))
    is_closed = len(parts) % 2 == 1
    return (
        Markup("").join(mark.format(part) for mark, part in zip(marked, parts, strict=True))
        if is_closed
        else escape(text)
    )


def row(record: Record) -> dict[str, Any]:
    """Returns what the index shows of an experiment and searches in; figures are None for one that has an error."""
    name = record["name"]
    figures = {"parameters": None, "bytes": None, "devices": None, "mesh": "", "size": "", "device_range": ""}
    if "error" not in record:
        parameters, devices = record["totals"]["parameters"], math.prod(record["mesh"].values())
        figures = {
            "parameters": parameters,
            "bytes": record["totals"]["bytes"],
            "devices": devices,
            "mesh": mesh_text(record["mesh"]),
            "size": SIZES[min(max(len(str(parameters)) - 7, 0), len(SIZES) - 1)],
            "device_range": DEVICES[sum(devices > most for most in (1, 8, 64, 512))],
        }
    return {
        "name": name,
        "link": entry_link(name),
        "family": name.rpartition(".")[0],
        "doc": " ".join(record.get("doc", "").partition("\n\n")[0].split()),
        "mixer": record.get("mixer", []),
        "ffn": record.get("feed_forward", []),
        "error": record.get("error", ""),
        "knobs": [f"{knob}={record['knobs'][knob]['value']}" for knob in searched_knobs(record)],
        "text": " ".join(record.get("doc", "").split()),
        **figures,
    }


def searched_knobs(record: Record) -> list[str]:
    """Returns the knobs that the index searches: those that a class sets after their declaration, mixer and layers."""
    stated = {knob for each in record.get("ancestors", ()) for knob, _ in each["sets"]} | {"MIXER", "FFN"}
    return [knob for knob in record.get("knobs", ()) if knob in stated]


def entry_link(name: str) -> str:
    """Returns the path of an experiment's page, relative to the site and quoted for a URL."""
    return f"experiments/{quote(name)}.html"


def entry_page(
    record: Record, plans: Sequence[Record], names: Collection[str], links: Mapping[str, str] = LINKS
) -> str:
    """Returns the page of an experiment.

    Args:
      record: registry.site.records.record.
      plans: its plans, as rows (registry.site.plans).
      names: experiments with a page, to which ancestors link.
    """
    name = record["name"]
    if "error" in record:
        content = _template("error.jinja", record=record, row=row(record))
        return _page(name, content, "..", links)
    values = {
        "row": row(record),
        "doc": [" ".join(part.split()) for part in record["doc"].split("\n\n")],
        "facts": facts(record),
        "commands": commands(name),
        "knobs": by_group(record, record["own"]),
        "others": len(record["knobs"]) - len(record["own"]),
        "weights": record["weights"],
        "has_slots": any(weight["slot_spec"] != weight["spec"] for weight in record["weights"]),
        "memory": memory(record["totals"]),
        "phases": Markup(phases(record)),
        "names": names,
        "line": split_line(record["ancestors"]),
    }
    content = _template("entry.jinja", record=record, plans=plans, **values)
    data = f"data/{quote(name)}.js"
    scripts = ("data/knobs.js", data, "assets/grid.js", "assets/mesh.js", "assets/entry.js")
    return _page(name, content, "..", links, *scripts)


def facts(record: Record) -> list[tuple[str, str, str]]:
    """Returns the labels, values and notes of the cards at the top of an experiment's page."""
    totals, knobs = record["totals"], record["knobs"]
    held = sum(totals.get(f"{kind}bytes_per_device", 0) for _, kind in KINDS)
    stated = [
        (label, knobs.get(knob, {}).get("value")) for label, knob in (("layers", "NUM_LAYERS"), ("width", "MODEL_DIM"))
    ]
    return [
        ("parameters", amount(totals["parameters"]), ""),
        *((label, value, "") for label, value in stated if value is not None),
        ("mixer", ", ".join(record["mixer"]) or "none", ""),
        ("feed-forward", ", ".join(record["feed_forward"]) or "none", ""),
        ("devices", f"{math.prod(record['mesh'].values()):,}", mesh_text(record["mesh"])),
        ("state per device", size(held), ""),
    ]


def commands(name: str) -> list[tuple[str, str]]:
    """Returns the command lines of an experiment, with what each does."""
    short = name.rpartition(".")[2]
    run = f"python -m runners.main --exp={name}"
    return [
        ("Show its knobs, config and totals", f"python -m registry show {name} --all"),
        ("Plan memory and step time without the hardware", f"{run} --mode=plan --chip=h100 --workdir=plans/{short}"),
        ("Train a small version on this machine", f"{run} --smoke --workdir=runs/{short}-smoke"),
        ("Train", f"{run} --workdir=runs/{short}"),
    ]


def split_line(ancestors: Sequence[Record]) -> tuple[Sequence[Record], Sequence[Record]]:
    """Returns the ancestors up to the last one that sets a knob, and the others, which only declare knobs."""
    count = max((number for number, each in enumerate(ancestors, 1) if each["sets"]), default=1)
    return ancestors[:count], ancestors[count:]


def by_group(record: Record, knobs: Iterable[str]) -> list[tuple[str, list[dict[str, str]]]]:
    """Returns the groups of knobs in the order of `registry show`, each with its rows."""
    rows: dict[str, list[dict[str, str]]] = {group: [] for group in dict.fromkeys(record["groups"].values())}
    for knob in knobs:
        meaning = record["meanings"].get(knob, "")
        found = {"knob": knob, "meaning": meaning, **record["knobs"][knob]}
        rows.setdefault(record["groups"].get(knob, "Model"), []).append(found)
    return [(group, found) for group, found in rows.items() if found]


def memory(totals: Mapping[str, int]) -> list[dict[str, Any]]:
    """Returns the bytes per device by kind, with their shares of the sum in percent."""
    held = {name: totals.get(f"{kind}bytes_per_device", 0) for name, kind in KINDS}
    most = sum(held.values()) or 1
    return [{"kind": name, "size": size(of), "bytes": of, "share": round(100 * of / most, 2)}
            for name, of in held.items()]  # fmt: skip


def aligned_cells(weight: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the cells of a weight under WEIGHT_COLUMNS, each with the class that aligns it."""
    cells = zip(WEIGHT_COLUMNS, weight_cells.cells(weight)[1:], strict=True)
    return [(cell, "n" if name in weight_cells.NUMBERS else "") for name, cell in cells]


def compare_page(records: Sequence[Record], links: Mapping[str, str] = LINKS) -> str:
    """Returns the page that compares any two experiments, which its address names."""
    names = [record["name"] for record in records if "error" not in record]
    content = _template("compare.jinja", names=names)
    return _page("Compare", content, ".", links, "data/index.js", "data/knobs.js", "assets/compare.js")


def index_data(records: Sequence[Record]) -> str:
    """Returns the script with the rows of the index."""
    return f"vortaro.index = {script_json([row(record) for record in records])};\n"


def shared_knobs(records: Sequence[Record]) -> dict[str, tuple[str, str]]:
    """Returns the meaning and group of each knob, those of the first experiment that has a meaning for it."""
    known: dict[str, tuple[str, str]] = {}
    for record in records:
        for knob in record.get("knobs", {}):
            if not known.get(knob, ("", ""))[0]:
                known[knob] = (record["meanings"].get(knob, ""), record["groups"].get(knob, "Model"))
    return known


def knob_data(known: Mapping[str, tuple[str, str]]) -> str:
    """Returns the script with the meanings and groups that experiments share."""
    return f"vortaro.knobs = {script_json(known)};\n"


def entry_data(record: Record, known: Mapping[str, tuple[str, str]]) -> str:
    """Returns the script with an experiment's knobs, config, weights and totals.

    Args:
      record: registry.site.records.record.
      known: `shared_knobs`; meanings that differ from them are added.
    """
    keys = ("path", "shape", "dtype", "spec", "cut", "role", "bytes", "bytes_per_device")
    data = {
        "name": record["name"],
        "mesh": record["mesh"],
        "totals": record["totals"],
        "knobs": {knob: [found["value"], found["owner"]] for knob, found in record["knobs"].items()},
        "own": record["own"],
        "meanings": {knob: text for knob, text in record["meanings"].items() if known[knob][0] != text},
        "config": record["config"],
        "weights": [{key: weight[key] for key in keys} for weight in record["weights"]],
    }
    return f"(vortaro.entries ??= {{}})[{script_json(record['name'])}] = {script_json(data)};\n"


def _page(title: str, content: str, root: str, links: Mapping[str, str], *scripts: str) -> str:
    links = {label: f"{root}/{path}" for label, path in links.items()}
    titled = title if title == "Experiments" else f"{title} · Experiments"
    styles = ("assets/site.css",)
    return page(titled, [content], root=root, scripts=scripts, links=links, styles=styles, current=title)


@functools.cache
def _loaded(name: str) -> Any:
    made = environment(HERE / "templates")
    made.globals.update(amount=amount, size=size, aligned_cells=aligned_cells, weight_columns=WEIGHT_COLUMNS)
    made.globals.update(weight_numbers=weight_cells.NUMBERS, entry_link=entry_link)
    made.filters["code_marked"] = code_marked
    return made.get_template(name)


def _template(name: str, **values: Any) -> str:
    return _loaded(name).render(**values)
