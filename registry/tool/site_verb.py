"""The verb `site`: static pages of the experiments, which open from disk."""

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from layers.errors import UsageError
from registry import index
from registry.tool import listing
from registry.tool.requests import names

PORT = 8000


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise UsageError(f"--serve takes a port (got '{text}'). Write --serve={PORT}, or put --serve last.")
    return int(text)


FLAGS: Mapping[str, Mapping[str, Any]] = {
    "--out": {"default": "site", "metavar": "FOLDER", "help": "site: folder to write, by default site"},
    "--runs": {"action": "append", "default": [], "metavar": "GLOB"}
    | {"help": "site: run folders to show with their curves, as in 'runs/*'"},
    "--plans": {"action": "append", "default": [], "metavar": "GLOB"}
    | {"help": "site: plans to show, files or folders, as in 'plans/*'"},
    "--serve": {"nargs": "?", "const": PORT, "type": _port, "metavar": "PORT"}
    | {"help": f"site: serve the pages on 127.0.0.1, by default on port {PORT}"},
}


def site(options: argparse.Namespace) -> int:
    """Writes pages of all experiments, or of those whose name matches; --serve shows them in a browser."""
    pattern = names(options, 0, 1, "at most one pattern")
    from registry.records.quantities import size
    from registry.runs.folders import find
    from registry.runs_pages.runs_page import RunPages, remove_runs
    from registry.site.collect import records
    from registry.site.pages import LINKS, RUNS_LINK
    from registry.site.plans import read_plans
    from registry.site.serve import serve
    from registry.site.write import require_own, write_site
    from tasks.storage.files import place

    began, folder = time.monotonic(), place(options.out)
    if options.serve is not None and not isinstance(folder, Path):
        raise UsageError(f"--serve needs a local folder (got --out={options.out}). Remove --serve.")
    require_own(folder)
    plans, keys = read_plans(options.plans), _keys(options, *pattern)
    folders = find(options.runs) if options.runs else []
    made = records(keys, options.imports, _tracked)
    links = LINKS | (RUNS_LINK if options.runs else {})
    runs = RunPages(folder, links)
    written = write_site(made, folder, plans, links)
    if options.runs:
        runs.write(folders)
    else:
        remove_runs(folder)
    for record in made:
        if "error" in record:
            print(f"registry: {record['name']} has no page: {record['error']}", file=sys.stderr)
    for name in sorted(set(plans) - set(keys)):
        print(f"registry: The plans of {name} are not shown, because it is not in the site.", file=sys.stderr)
    count = f"{len(made)} experiment{'s' if len(made) != 1 else ''}"
    print(f"{count}, {written.files} files, {size(written.bytes)}, {time.monotonic() - began:.1f} s")
    print(f"Written: {folder / 'index.html'}", flush=True)
    if options.runs:
        print(f"{len(folders)} run{'s' if len(folders) != 1 else ''}: {folder / 'runs.html'}", flush=True)
    if options.serve is not None and isinstance(folder, Path):
        serve(folder, options.serve, (lambda: runs.write(find(options.runs))) if options.runs else None)
    return 2 if any("error" in record for record in made) else 0


def _keys(options: argparse.Namespace, pattern: str = "") -> list[str]:
    """Returns the names of the entries, imported modules' included, that match the pattern."""
    from registry.experiment import REGISTRY
    from registry.resolve import load

    for module in options.imports:
        load(module)
    keys = sorted({*index.entries(), *REGISTRY})
    return listing.matching(keys, pattern) if pattern else keys


def _tracked(names: Sequence[str]) -> Iterable[str]:
    """Yields the names, with a progress bar on a terminal."""
    if len(names) < 2 or not sys.stderr.isatty():
        return names
    from rich.console import Console
    from rich.progress import track

    return track(names, description="Building", console=Console(stderr=True), transient=True)
