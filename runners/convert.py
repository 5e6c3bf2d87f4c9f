"""Weight conversion: imports checkpoints of other code bases into run folders and exports run folders to them.

python -m runners.convert import --from=Llama-3.2-1B --workdir=runs/llama
python -m runners.convert export --workdir=runs/llama --to=my-llama
python -m runners.convert import --format=gpt2 --from=model.safetensors --exp=gpt2.Gpt2Small --workdir=runs/gpt2
python -m runners.convert export --format=gpt2 --workdir=runs/gpt2 --to=model.safetensors
"""

import argparse
import sys
from collections.abc import Sequence

from layers.errors import UsageError, did_you_mean
from runners.conversion.name_maps import FORMATS
from runners.flags import Parser, parse_with_modules, prepare_devices, run_app

VERBS = {"import": ("source", "workdir"), "export": ("workdir", "to")}  # required flags
ONLY = {"import": ("source", "exp", "smoke"), "export": ("to", "checkpoint", "dtype", "shard_gb")}  # of one verb
FLAGS = {"source": "--from"}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the verb and the flags.

    Raises:
      UsageError: an unknown verb, flag or format, or a flag that is missing or of the other verb.
    """
    options = parse_with_modules(_parser, arguments)
    if options.verb not in VERBS:
        raise UsageError(f"Unknown verb '{options.verb}'. {did_you_mean(options.verb, VERBS)}")
    if options.format is not None and options.format not in FORMATS:
        raise UsageError(f"Unknown format '{options.format}'. {did_you_mean(options.format, FORMATS)}")
    _require(options, *VERBS[options.verb])
    for verb, names in ONLY.items():
        for name in names:
            if verb != options.verb and getattr(options, name) is not None:
                raise UsageError(f"{FLAGS.get(name, f'--{name}')} is a flag of {verb} (got {options.verb}). Remove it.")
    if options.verb == "export":
        _check_target(options)
    elif options.format is not None or not _is_model_folder(options.source):
        _require(options, "format", "exp")
    elif options.smoke:
        raise UsageError(f"--smoke does not fit the sizes in the config.json of '{options.source}'. Remove it.")
    options.command = ("python", "-m", "runners.convert", *arguments)
    return options


def _require(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        if not getattr(options, name):
            raise UsageError(f"{options.verb} requires {FLAGS.get(name, f'--{name}')}. Add it.")


def _is_model_folder(path: str) -> bool:
    from runners.conversion.model_folder import is_model_folder

    return is_model_folder(path)


def _check_target(options: argparse.Namespace) -> None:
    """Raises a UsageError unless --to fits --format, and the values of --dtype and --shard_gb are valid."""
    from runners.conversion.exporting import DTYPES, is_file

    if options.dtype is not None and options.dtype not in DTYPES:
        raise UsageError(f"Unknown dtype '{options.dtype}'. {did_you_mean(options.dtype, DTYPES)}")
    if not is_file(options):
        options.shard_gb = 5.0 if options.shard_gb is None else options.shard_gb
        if not options.shard_gb > 0:
            raise UsageError(f"--shard_gb must be above 0 (got {options.shard_gb:g}).")
        return
    _require(options, "format")
    if not options.to.endswith(".safetensors"):
        raise UsageError(f"The exported file must end in .safetensors (got '{options.to}').")
    if options.shard_gb is not None:
        raise UsageError(f"--shard_gb is for folders (got --to={options.to}). Remove it.")


def _parser() -> Parser:
    parser = Parser("runners.convert", __doc__, with_absl=True)
    parser.add_argument("verb", help=" | ".join(VERBS))
    add = parser.add_argument
    add("--format", help=f"{' | '.join(FORMATS)}; by default that of the folder's config.json, or of the run's model")
    add("--from", dest="source", metavar="PATH", help="import: a Hugging Face folder, .safetensors, .pt, .pth, .bin")
    add("--exp", help="import: the experiment that takes the weights; by default one with the folder's config")
    add("--workdir", help="the run folder: created by import, read by export")
    add("--to", metavar="PATH", help="export: the Hugging Face folder or the .safetensors file to write")
    add("--checkpoint", help="export: last (the default), best or a step")
    add("--dtype", help="export: dtype of the written weights, float32 or bfloat16; by default the stored one")
    add("--shard_gb", type=float, metavar="GB", help="export: most gigabytes of one file in a folder; 5 by default")
    add("--smoke", action="store_true", default=None, help="import: a small version of the experiment")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="as in runners.main; repeatable")
    add("--import", action="append", default=[], dest="imports", metavar="MODULE", help="import a module first")
    add("--host_devices", type=int, metavar="N", help="N virtual CPU devices")
    return parser


def run(options: argparse.Namespace) -> int:
    """Imports or exports as the flags select; returns the exit code."""
    from runners.conversion import exporting, importing

    prepare_devices(options.host_devices)
    return (importing if options.verb == "import" else exporting).run(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; prints a known error as one message and returns its exit code."""
    return run_app(parse, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
