"""Provenance: the code and packages that this process runs, as recorded in experiment.json and `registry diff`."""

import functools
import hashlib
import importlib.metadata
import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from layers.roots import FOLDER, ROOTS
from registry.user_code import package_files

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "fiddle", "numpy")  # required packages
OTHER_PACKAGES = (  # recorded if installed: other dependencies, then accelerators, then extras
    *("absl-py", "einops", "etils", "fsspec", "jaxtyping", "jinja2", "matplotlib", "plotly", "rich", "safetensors"),
    *("filelock", "ml-dtypes", "scipy", "tensorstore", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"),
    *("nvidia-cuda-nvcc", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "triton"),
    *(
        "apache-beam",
        "clu",
        "datasets",
        "gcsfs",
        "google-cloud-storage",
        "google-crc32c",
        "importlib-resources",
        "lm-eval",
    ),
    *("s3fs", "sentencepiece", "seqio", "tensorboard", "tensorflow", "tensorflow-datasets", "tensorflow-text"),
    *("tokenizers", "torch", "transformers", "wandb", "webdataset", "zstandard"),
)
_SECONDS = 20  # time limit for git, which may run on a slow file system

Checkout = dict[str, Any]


def versions() -> dict[str, str]:
    """Returns the versions of Python and of all recorded packages that are installed."""
    found = {name: _version(name) for name in (*PACKAGES, *OTHER_PACKAGES)}
    return {"python": platform.python_version(), **{name: version for name, version in found.items() if version}}


@functools.cache  # the packages of a process do not change after its start
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache  # the code of a process does not change after its start
def code(modules: tuple[str, ...] = ()) -> dict[str, Checkout]:
    """Returns the running code, `{name: {version, digest, commit, dirty}}`, of this project and of other imported
    modules. Commit and dirty are None without a git checkout, or without git.

    Args:
      modules: names; modules of this project are ignored.
    """
    ours = [FOLDER / name for name in ROOTS]
    made = {"vortaro": {"version": _version("vortaro"), "digest": digest(), **checkout(Path(__file__), ours)}}
    for name in dict.fromkeys(modules):
        if (file := _source(name)) is not None and not any(file.is_relative_to(folder) for folder in ours):
            files = _imported_with(file, name)
            made[name] = {"digest": _digest_of(files, file.parent), **checkout(file, files)}
    return made


def digest(modules: Sequence[str] = ()) -> str:
    """Returns a digest of the training source, and of other modules with their imports from the same packages."""
    folders = [FOLDER / root for root in ROOTS if root not in ("launch", "vortaro")]
    parts = [_digest_of([path for folder in folders for path in folder.rglob("*.py")], FOLDER)]
    for name in modules:
        if (file := _source(name)) is not None:
            parts.append(_digest_of(_imported_with(file, name), file.parent))
    return short_digest("".join(parts).encode()) if modules else parts[0]


def _imported_with(file: Path, module: str) -> list[Path]:
    """Returns the imported files of a module's package, or of its folder if the module is not in a package."""
    imported = {
        Path(found).resolve() for each in list(sys.modules.values()) if (found := getattr(each, "__file__", None))
    }
    return sorted({file, *(path for path in map(Path.resolve, package_files(file, module)) if path in imported)})


def _digest_of(files: Iterable[Path], folder: Path) -> str:
    """Returns a digest of names and contents of files; names are relative to a folder."""
    named = sorted((os.path.relpath(path, folder), path) for path in files)
    return short_digest(b"\0".join(name.encode() + b"\0" + path.read_bytes() for name, path in named))


def checkout(file: Path, tracked: Sequence[Path]) -> Checkout:
    """Returns the git checkout that contains a file: `{commit, dirty}`, both None without a checkout or git.

    Args:
      file: a file that git does not ignore; an ignored file is not part of the checkout (an installed package).
      tracked: files and folders of Python files; the checkout is dirty if git does not track them.
    """
    root = next((parent for parent in file.resolve().parents if (parent / ".git").exists()), None)
    unknown = {"commit": None, "dirty": None}
    if root is None or _git(root, "check-ignore", "--quiet", str(file.resolve())) is not None:
        return unknown
    status = _git(root, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    if status is None:
        return unknown
    facts = dict(line[2:].split(" ", 1) for line in status.splitlines() if line.startswith("# "))
    commit = facts.get("branch.oid", "(initial)")
    paths = [str(path / "*.py" if path.is_dir() else path) for path in tracked]
    others = _git(root, "ls-files", "--others", "--exclude-standard", "--", *paths)
    changed = any(not line.startswith("# ") for line in status.splitlines())
    return {"commit": None if commit == "(initial)" else commit, "dirty": changed or bool(others)}


def _git(root: Path, *arguments: str) -> str | None:
    """Returns the output of git; None if it fails, exceeds the time limit or is not installed."""
    # With an explicit folder git skips the check of its owner: in a container it often belongs to another user. The
    # check protects from repository settings that run programs, which is irrelevant here: this process already runs its
    # code.
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "GIT_INDEX_FILE"}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # only reads
    options: dict[str, Any] = {"cwd": root, "env": environment, "stdin": subprocess.DEVNULL, "timeout": _SECONDS}
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _source(module: str) -> Path | None:
    found = sys.modules.get(module)
    try:
        file = None if found is None else inspect.getsourcefile(found)
    except TypeError:  # a built-in module
        return None
    return None if file is None else Path(file).resolve()


def short_digest(content: bytes) -> str:
    """Returns twelve hexadecimal digits of the SHA-256 of `content`."""
    return hashlib.sha256(content).hexdigest()[:12]


def made_now(modules: Sequence[str] = ()) -> dict[str, Any]:
    """Returns code and versions of this process, as recorded in a run folder."""
    return {"code": code(tuple(modules)), "versions": versions()}
