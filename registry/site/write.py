"""Writes the site of the registry: a folder of static pages."""

import contextlib
import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from layers.errors import UsageError, first_line
from registry.pages.page import listed_names, write_assets, write_changed
from registry.site import pages
from registry.site.records import Record
from tasks.storage.files import Place, file_system, make_folder, reached

PARTS = ("experiments/", "data/")
FILES = "files.json"  # names of the files that the last command wrote, relative to the site


@dataclasses.dataclass(frozen=True)
class Written:
    """The size of a site."""

    files: int
    bytes: int


def require_own(folder: Place) -> None:
    """Raises a UsageError if a folder has files but is not a site of this module, whose files would be replaced.

    It makes at most two requests to a store.
    """
    with reached(folder, "listed"):
        is_own = (folder / "data" / FILES).exists()
        if not is_own and _has_files(folder):
            raise UsageError(
                f"The folder '{folder}' is not empty and not a site of the registry. Choose another --out, or empty it."
            )


def _has_files(folder: Place) -> bool:
    if isinstance(folder, Path):
        return folder.is_dir() and any(folder.iterdir())
    with contextlib.suppress(FileNotFoundError):
        system, path = file_system(folder)
        return bool(system.ls(path, detail=False))
    return False


def write_site(
    records: Sequence[Record],
    folder: Place,
    plans: Mapping[str, Sequence[dict[str, Any]]] | None = None,
    links: Mapping[str, str] = pages.LINKS,
) -> Written:
    """Writes the pages of experiments, and removes those that an earlier command wrote for others.

    Args:
      records: of registry.site.records, in the order of the index.
      folder: local or on an object store; it need not exist.
      plans: rows of registry.site.plans by experiment.
      links: labels and paths, relative to the site, in the header of each page.
    Raises:
      UsageError: the folder cannot be written.
    """
    try:
        return _write_site(records, folder, plans or {}, links)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be written: {first_line(error)}. Give another --out.") from error


def _write_site(
    records: Sequence[Record],
    folder: Place,
    plans: Mapping[str, Sequence[dict[str, Any]]],
    links: Mapping[str, str],
) -> Written:
    names = {record["name"] for record in records}
    known = pages.shared_knobs(records)
    texts = {
        "index.html": pages.index_page(records, links),
        "compare.html": pages.compare_page(records, links),
        "data/index.js": pages.index_data(records),
        "data/knobs.js": pages.knob_data(known),
    }
    for record in records:
        name = record["name"]
        texts[f"experiments/{name}.html"] = pages.entry_page(record, plans.get(name, ()), names, links)
        if "error" not in record:
            texts[f"data/{name}.js"] = pages.entry_data(record, known)
    for part in PARTS:
        make_folder(folder / part)
    _record(folder, {*_recorded(folder), *texts})  # before they are written: an interrupted site can be written again
    assets = write_assets(folder, *sorted((pages.HERE / "assets").iterdir()))
    for name, text in texts.items():
        write_changed(folder / name, text.encode())
    _remove_others(folder, texts)
    sizes = [len(text.encode()) for text in texts.values()]
    sizes += [len(file.read_bytes()) for file in assets.iterdir()]
    return Written(len(sizes), sum(sizes))


def _remove_others(folder: Place, texts: Mapping[str, str]) -> None:
    """Removes files that an earlier command wrote and this one did not, and records those of this one."""
    for name in _recorded(folder) - set(texts):
        if not name.startswith(PARTS) or ".." in name:
            continue  # not a file of this command
        (folder / name).unlink(missing_ok=True)
    _record(folder, texts)


def _recorded(folder: Place) -> set[str]:
    """Returns the names of the files that earlier commands have recorded."""
    return listed_names(folder / "data" / FILES)


def _record(folder: Place, names: Collection[str]) -> None:
    write_changed(folder / "data" / FILES, json.dumps(sorted(names), indent=0).encode())
