"""Repeating a run: the commands that it was started by, and what is not as it was then."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from layers.errors import UsageError, first_line
from registry.records import provenance
from registry.records.diff import differing
from registry.records.record import checkout_text
from registry.runs.lineage import lineage
from registry.runs.run import Run

AGAIN = "-again"  # ending of the folder's name in the printed commands


def rerun(run: Run, imports: Sequence[str] = ()) -> dict[str, Any]:
    """Returns how to repeat a run: `commands` (texts for a shell), `missing` (sentences), and the `devices` it had.

    A run that was continued with other settings has several commands: each trains on in the folder of the first.
    Data are compared by their fingerprints, which are computed again.

    Args:
      run: the run.
      imports: modules to import first, besides those that the commands import.

    Raises:
      UsageError: its record cannot be read, or has no command.
    """
    record = run.record
    starts = record.get("starts") or [record]
    # The command of the record made the folder; an import of weights does not start training.
    commands = [tuple(made["command"]) for made in (record, *starts) if made.get("command")]
    if not commands:
        raise UsageError(f"The record of '{run.name}' has no command: an earlier version wrote it. Read its overrides.")
    target = f"{run.name.rstrip('/')}{AGAIN}"
    distinct = [command for i, command in enumerate(commands) if i == 0 or command != commands[i - 1]]
    modules = [*imports, *(flag for command in distinct for flag in _values(command, "--import"))]
    data = _data(run, starts, modules)
    return {
        "run": run.name,
        "commands": [shlex.join(_command(command, target)) for command in distinct],
        "missing": list(chain(_stops(record), _code(starts, modules), _versions(starts), _sources(run), data)),
        "devices": starts[-1].get("devices"),
    }


def _command(command: Sequence[str], target: str) -> list[str]:
    """Returns a command line as a shell starts it, in another folder."""
    program = [Path(command[0]).name if "/" in command[0] else command[0], *command[1:]]
    made, takes = [], False
    for word in program:
        if takes:
            word, takes = target, False
        elif word in ("--workdir", "-w"):
            takes = True
        elif word.startswith("--workdir="):
            word = f"--workdir={target}"
        made.append(word)
    return made


def _stops(record: Mapping[str, Any]) -> Iterator[str]:
    """Yields a sentence for each start that ended before a later one continued with another command."""
    starts = record.get("starts") or []
    for number, (start, following) in enumerate(pairwise(starts), 1):
        if start.get("command") != following.get("command"):
            step = following["step"]
            yield f"Start {number} was stopped at step {step}, and the next had other flags. Stop it at step {step}."


def _values(command: Sequence[str], flag: str) -> Iterator[str]:
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == flag:
            yield following
        elif word.startswith(f"{flag}="):
            yield word.partition("=")[2]


def _code(starts: Sequence[Mapping[str, Any]], modules: Sequence[str]) -> Iterator[str]:
    """Yields a sentence for each package whose source is not that of the last start, or of an earlier one."""
    from registry.resolve import load

    for module in modules:
        try:
            load(module)
        except UsageError as error:
            yield str(error)
    names = [name for start in starts for name in start.get("code", {})]
    now = provenance.code(tuple(name for name in names if name != "vortaro"))
    seen: set[tuple[str, str]] = set()
    for start in starts:
        for name, then in start.get("code", {}).items():
            here = now.get(name)
            if (here or {}).get("digest") == then["digest"] or (name, then["digest"]) in seen:
                continue
            seen.add((name, then["digest"]))
            if here is None:
                yield f"The code of {name} is not imported here (then {checkout_text(then)}). Add --import={name}."
                continue
            advice = "Restore its files."
            if then["commit"] is not None:
                changes = " and the changes that were made to it" if then["dirty"] else ""
                advice = f"Check out commit {then['commit'][:12]}{changes}."
            states = f"then {checkout_text(then)}; now {checkout_text(here)}"
            yield f"The code of {name} is another one now ({states}). {advice}"


def _versions(starts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a sentence that lists the packages of other versions."""
    changed = differing([starts[-1].get("versions", {}), provenance.versions()])
    texts = [f"{name} {then} (now {now or 'missing'})" for name, (then, now) in changed.items() if then is not None]
    if texts:
        yield f"Packages have other versions now: {', '.join(texts)}. Install those of then to get the same bits."


def _sources(run: Run) -> Iterator[str]:
    """Yields a sentence if the weights that the run began with are not as they were."""
    for ancestor in lineage(run)[1:2]:
        where = ancestor.get("run") or ancestor.get("file")
        if not ancestor["found"]:
            yield f"'{where}', which its weights come from, does not exist. Restore it."
        elif ancestor["changed"]:
            yield f"'{where}', which its weights come from, has another config now. Restore it."


def _data(run: Run, starts: Sequence[Mapping[str, Any]], modules: Sequence[str]) -> Iterator[str]:
    """Yields a sentence for each input whose data are missing or are not those of the last start."""
    from registry.build import build, config_of
    from registry.resolve import resolve_recorded

    recorded = {name: of for name, of in starts[-1].get("data", {}).items() if of.get("fingerprint")}
    if not recorded:
        return
    try:
        experiment = resolve_recorded(run.snapshot, imports=modules)
        for name, then in recorded.items():
            root, _, path = name.partition(".")
            source: Any = build(config_of(experiment, root), root)
            for part in path.split("."):
                source = source[part] if isinstance(source, Mapping) else getattr(source, part)
            source.require_data()
            if source.fingerprint != then["fingerprint"]:
                now = f"now {source.describe()}, fingerprint {str(source.fingerprint)[:12]}"
                before = f"then {then['is']}, fingerprint {then['fingerprint'][:12]}"
                yield f"The data of {name} are other ones now ({before}; {now}). Restore them."
    except UsageError as error:
        yield f"Its experiment or data cannot be read: {first_line(error, 1000)}."
