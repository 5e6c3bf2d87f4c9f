"""The flags after `--`, checked by the runner's own parser before anything is started or queued."""

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence

from layers.errors import UsageError
from runners.flags import check_module_flags
from runners.main import mode_module, parse
from runners.options import from_flags

OURS = ("--coordinator", "--num_processes", "--process_id")  # set by the launcher or by the tool that it uses


def checked(flags: Sequence[str], also_ours: Sequence[str] = ()) -> tuple[argparse.Namespace, tuple[int, ...]]:
    """Returns the parsed flags of the runner, after checking that their experiment resolves, and arrays of jobs.

    Args:
      flags: the arguments after `--`.
      also_ours: further flags that the launcher sets.
    Returns:
      The flags; and, if their mode trains many runs, how many can run at a time, by rung: each array starts after the
      one before.

    Raises:
      UsageError: an unknown flag, one that the launcher sets, an unknown experiment, or a bad override.
    """
    for flag in flags:
        if (name := flag.partition("=")[0]) in (*OURS, *also_ours):
            raise UsageError(f"{name} is set by the launcher. Remove it from the flags after `--`.")
    arrays: tuple[int, ...] = ()
    with _without_accelerators():
        options = parse(flags)
        if options.exp is not None:
            from registry.resolve import resolve

            experiment = resolve(options.exp, options.set, smoke=options.smoke, imports=options.imports)
            check_module_flags(options)
            mode = mode_module(options.mode)
            if hasattr(mode, "arrays"):
                arrays = mode.arrays(experiment, from_flags(mode.Options, options))
    return options, arrays


@contextlib.contextmanager
def _without_accelerators() -> Iterator[None]:
    """Keeps imported modules from using accelerators inside the context; restores the environment for the launch."""
    is_set = "JAX_PLATFORMS" in os.environ
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        yield
    finally:
        if not is_set:
            del os.environ["JAX_PLATFORMS"]


def require_shared(workdir: str | None, mounts: Sequence[str], elsewhere: str) -> None:
    """Raises a UsageError if the workdir would be a separate folder on each host.

    Args:
      workdir: the runner's --workdir; None if the mode needs none.
      mounts: folders that all hosts share; buckets are always shared.
      elsewhere: an alternative for the message.
    """
    if workdir is None or workdir.startswith(("gs://", "s3://")):
        return
    path = os.path.normpath(workdir)
    if not any(path == mount or path.startswith(mount.rstrip("/") + "/") for mount in mounts):
        raise UsageError(
            f"The workdir '{workdir}' would be a separate folder on each host. Set one on gs:// or s3://, or "
            f"{elsewhere}."
        )
