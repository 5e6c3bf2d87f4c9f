"""The flags after `--`, checked by the runner's own parser before anything is started or queued."""

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence

from layers.errors import UsageError
from runners.flags import check_module_flags
from runners.main import parse

OURS = ("--coordinator", "--num_processes", "--process_id")  # set by the launcher or by the tool that it uses


def checked(flags: Sequence[str], also_ours: Sequence[str] = ()) -> argparse.Namespace:
    """Returns the parsed flags of the runner, after checking that their experiment resolves.

    Args:
      flags: the arguments after `--`.
      also_ours: further flags that the launcher sets.
    Raises:
      UsageError: an unknown flag, one that the launcher sets, an unknown experiment, or a bad override.
    """
    for flag in flags:
        if (name := flag.partition("=")[0]) in (*OURS, *also_ours):
            raise UsageError(f"{name} is set by the launcher. Remove it from the flags after `--`.")
    with _without_accelerators():
        options = parse(flags)
        if options.exp is not None:
            from registry.resolve import resolve

            resolve(options.exp, options.set, smoke=options.smoke, imports=options.imports)
            check_module_flags(options)
    return options


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
