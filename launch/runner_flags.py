"""What stands behind `--`, judged by the runner itself before anything is started or queued."""

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence

from layers.errors import UsageError
from runners.flags import check_module_flags
from runners.main import parse

OURS = ("--coordinator", "--num_processes", "--process_id")  # the launcher, or what it launches with, says these


def checked(flags: Sequence[str], also_ours: Sequence[str] = ()) -> argparse.Namespace:
    """The runner's flags, parsed, with an experiment that resolves.

    Args:
      flags: what stands behind `--`.
      also_ours: further flags that the launcher gives by itself.
    Raises:
      UsageError: an unknown flag, one that the launcher gives, no such experiment, or a bad override.
    """
    for flag in flags:
        if (name := flag.partition("=")[0]) in (*OURS, *also_ours):
            raise UsageError(f"{name} is the launcher's to say: leave it out behind `--`.")
    with _without_accelerators():
        options = parse(flags)
        if options.exp is not None:
            from registry.resolve import resolve

            resolve(options.exp, options.set, smoke=options.smoke, imports=options.imports)
            check_module_flags(options)
    return options


@contextlib.contextmanager
def _without_accelerators() -> Iterator[None]:
    """Inside, modules that are imported look for no device. What is launched gets the environment as it was."""
    is_set = "JAX_PLATFORMS" in os.environ
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        yield
    finally:
        if not is_set:
            del os.environ["JAX_PLATFORMS"]


def require_shared(workdir: str | None, mounts: Sequence[str], elsewhere: str) -> None:
    """Raises a UsageError for a workdir that each host would have for itself.

    Args:
      workdir: the runner's; None where a mode needs none.
      mounts: folders that all hosts see; a bucket is seen by all.
      elsewhere: what else to do, for the message.
    """
    if workdir is None or workdir.startswith(("gs://", "s3://")):
        return
    path = os.path.normpath(workdir)
    if not any(path == mount or path.startswith(mount.rstrip("/") + "/") for mount in mounts):
        raise UsageError(f"The workdir '{workdir}' would be another on each host: give gs:// or s3://, or {elsewhere}.")
