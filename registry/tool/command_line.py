"""The command `python -m registry`: its verbs and their flags."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from layers.errors import UsageError, VortaroError, did_you_mean, unknown_flag
from registry.tool import run_verbs, site_verb, verbs

FLAGS: Mapping[str, Mapping[str, Any]] = {
    "--json": {"action": "store_true", "help": "print JSON"},
    "--set": {"action": "append", "default": [], "metavar": "PATH=VALUE", "help": "override a knob or config field"},
    "--import": {"action": "append", "default": [], "dest": "imports", "metavar": "MODULE"}
    | {"help": "import a module first"},
    "--smoke": {"action": "store_true", "help": "use the small version of the experiment"},
    "--where": {"metavar": "CONDITION"}
    | {"help": "list: by params, bytes and devices; runs: by metrics and knobs, as in 'BATCH_SIZE==16 and loss<2'"},
    "--sort": {"metavar": "NAME", "help": "runs: order by a metric, figure or knob; -NAME from the highest"},
    "--group": {"metavar": "KNOBS", "help": "runs: one line for runs that differ in these knobs alone, as in SEED"},
    "--metric": {"metavar": "NAME", "help": "compare: the scalar of validation to compare"},
    "--plan": {"action": "store_true"}
    | {"help": "diff: also the compiled updates of both small forms, on eight virtual devices"},
    "--lower": {"action": "store_true", "help": "check: also lower the complete update for TPUs and GPUs"},
    "--all": {"action": "store_true", "help": "show: also what is as in the template, and the config"},
    "--update": {"action": "store_true", "help": "golden: write the files"},
    "--from": {"dest": "source", "metavar": "PATH"}
    | {"help": "new: a config.json of Hugging Face, or its folder, to be the base"},
    "--sections": {"metavar": "LIST", "help": "golden: only these sections, as in weights,totals"},
    **site_verb.FLAGS,
}
ENTRIES = ("--json", "--set", "--smoke", "--import")  # flags of all verbs of entries


@dataclasses.dataclass(frozen=True)
class Verb:
    """A command of the registry tool."""

    run: Callable[[argparse.Namespace], int]
    arguments: str = ""  # as --help shows them
    flags: tuple[str, ...] = ENTRIES  # names in FLAGS that have an effect

    @property
    def meaning(self) -> str:
        """One sentence for --help."""
        return (self.run.__doc__ or "").partition("\n")[0]


VERBS = {
    "list": Verb(verbs.entries, "[PATTERN]", (*ENTRIES, "--where")),
    "show": Verb(verbs.show, "NAME", (*ENTRIES, "--all")),
    "weights": Verb(verbs.weights, "NAME"),
    "diff": Verb(verbs.diff, "A [B]", (*ENTRIES, "--plan")),
    "check": Verb(verbs.check, "[NAME ...]", (*ENTRIES, "--lower")),
    "tree": Verb(verbs.tree),
    "explain": Verb(verbs.explain, "NAME PATH"),
    "golden": Verb(verbs.golden, "[NAME ...]", (*ENTRIES, "--update", "--sections")),
    "new": Verb(verbs.new, "[BASE] NAME", (*ENTRIES, "--from")),
    "runs": Verb(run_verbs.runs, "[GLOB ...]", ("--json", "--where", "--sort", "--group")),
    "compare": Verb(run_verbs.compare, "RUN RUN ...", ("--json", "--metric")),
    "lineage": Verb(run_verbs.lineage, "RUN", ("--json",)),
    "rerun": Verb(run_verbs.rerun, "RUN", ("--json", "--import")),
    "site": Verb(site_verb.site, "[PATTERN]", ("--import", *site_verb.FLAGS)),
}


def main(arguments: Sequence[str]) -> int:
    """Runs one verb; returns the exit code."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing here needs an accelerator
    try:
        options = parse(arguments)
        return VERBS[options.verb].run(options)
    except VortaroError as error:
        print(f"registry: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UsageError(f"{message}. `python -m registry --help` lists all verbs and flags.")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the verb, its names and all flags.

    Raises:
      UsageError: the verb or a flag is unknown, or the flag has no effect on the verb.
    """
    parser = _Parser(prog="registry", usage=_usage(), allow_abbrev=False, add_help=True)
    parser.add_argument("verb", help="one of: " + ", ".join(VERBS))
    parser.add_argument("names", nargs="*", help="experiments, paths, patterns, or run folders")
    flags = {name: parser.add_argument(name, **settings) for name, settings in FLAGS.items()}
    options, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        raise unknown_flag(unknown, [flag for action in parser._actions for flag in action.option_strings])
    if options.verb not in VERBS:
        raise UsageError(f"Unknown verb '{options.verb}'. {did_you_mean(options.verb, VERBS)}")
    for name, action in flags.items():
        if getattr(options, action.dest) != action.default and name not in VERBS[options.verb].flags:
            raise UsageError(f"{name} has no effect on {options.verb}. Remove it.")
    return options


def _usage() -> str:
    lines = (f"  {f'{name} {verb.arguments}':<22}{verb.meaning}" for name, verb in VERBS.items())
    return "\n".join(("python -m registry VERB ...\n", *lines))
