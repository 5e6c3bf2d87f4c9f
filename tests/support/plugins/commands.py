"""Commands called in the process of the tests, which is seconds quicker than a process of their own."""

import contextlib
import importlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, xla_flags

# What `python -m MODULE` calls, where it is not the module's own `main`.
MAINS = {"registry": "registry.tool.command_line", "launch": "launch.command_line"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
LOGGERS = (None, "absl", "asyncio", "gcsfs")


def inside(
    folder: Path, module: str, *arguments: str, devices: int = 1, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m MODULE ...` in a folder, in this process, which then is as it was before.

    Exit codes, output and devices are those of a process of its own. An error that would show a traceback there is
    raised here. For what only a process can show (signals, what native code prints, memory, which modules are
    imported) there is the fixture `command`.

    Args:
      folder: the working folder, whose modules can be imported.
      module: the command.
      arguments: its arguments.
      devices: how many of the virtual devices it sees, unless it is given --host_devices.
      environment: variables that it sees in addition.
    """
    main = importlib.import_module(MAINS.get(module, module)).main
    with contextlib.ExitStack() as stack, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        for context in (_variables(folder, devices, environment), _modules(folder), _handlers(), _devices(devices)):
            stack.enter_context(context)
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(_arguments(module, arguments))
        try:
            code = main(list(arguments))
        except SystemExit as ended:  # --help
            code = ended.code or 0
        texts = []
        for file in (out, err):
            file.flush()
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess([module, *arguments], code, *texts)


@pytest.fixture(name="inside")
def inside_fixture(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m MODULE ...` in a folder of its own, as `command` does, but in this process."""
    return lambda module, *arguments, **given: inside(tmp_path, module, *arguments, **given)


@contextlib.contextmanager
def _variables(folder: Path, devices: int, environment: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({"XLA_FLAGS": xla_flags(devices), "PYTHONPATH": f"{folder}:{ROOT}", **environment})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _arguments(module: str, arguments: tuple[str, ...]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *arguments])
        patch.setattr(sys, "orig_argv", [sys.executable, "-m", module, *arguments])
        yield


@contextlib.contextmanager
def _modules(folder: Path) -> Iterator[None]:
    """Inside, modules of the folder can be imported; after, they and the experiments they registered are gone."""
    from registry.experiment import REGISTRY

    path, bytecode = list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # a module that the test changes within a second would be read from there
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, bytecode
        files = {name: getattr(loaded, "__file__", None) for name, loaded in list(sys.modules.items())}
        here = {name for name, file in files.items() if file and Path(file).is_relative_to(folder)}
        for name in here:
            del sys.modules[name]
        for key in [key for key, cls in REGISTRY.items() if cls.__module__ in here]:
            del REGISTRY[key]


@contextlib.contextmanager
def _handlers() -> Iterator[None]:
    """After, signals, loggers and errors that nobody catches are dealt with as before."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.level, list(logger.filters), list(logger.handlers)) for logger in loggers]
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    hook = sys.unraisablehook
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for logger, (level, filters, sinks) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.filters[:], logger.handlers[:] = filters, sinks


@contextlib.contextmanager
def _devices(count: int) -> Iterator[None]:
    """Inside, JAX shows the first so many devices of this process, or as many as the command makes."""
    import jax

    from runners import flags
    from runners.machine import virtual_devices
    from runners.planner import machine

    shown = [count]
    every, local = jax.devices, jax.local_devices

    def make(wanted: int) -> None:
        assert wanted <= len(every()), "needs a process of its own: the fixture `command`"
        shown[0] = wanted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *given: every(*given)[: shown[0]])
        patch.setattr(jax, "local_devices", lambda *given, **named: local(*given, **named)[: shown[0]])
        patch.setattr(jax, "device_count", lambda *given: len(jax.devices(*given)))
        patch.setattr(jax, "local_device_count", lambda *given: len(jax.local_devices(*given)))
        for module in (flags, machine, virtual_devices):
            patch.setattr(module, "make_virtual_devices", make)
        yield
