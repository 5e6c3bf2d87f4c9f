"""Commands of documentation in forks of one process that has imported the libraries, which saves 3 s of each command.

A folder's `python` (see `forked_python`) sends `python -m MODULE ...` of this project to the process, with its standard
streams, working folder and environment, and exits with the exit code of the fork. Other commands start Python.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

MODULES = ("runners.main", "runners.convert", "registry", "launch", "vortaro")
IMPORTED = ("launch.command_line", "registry.tool.command_line", "runners.modes.train", *MODULES)
CLIENT = """#!{python} -SE
import json, os, socket, sys
if sys.argv[1:2] == ["-m"] and sys.argv[2] in {modules}:
    message = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect({address!r})
        socket.send_fds(server, [len(message).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(message)
        sys.exit(int(server.recv(16)))
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


@contextlib.contextmanager
def forking_process(folder: Path) -> Iterator[str]:
    """Starts the process; yields the address of its socket, a file in `folder`."""
    address = str(folder / "socket")
    command = [sys.executable, "-m", "tests.support.processes.forking", address]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield address
    finally:
        process.kill()
        process.communicate()


def forked_python(file: Path, address: str) -> None:
    """Writes a `python` whose commands of this project run in forks of the process at `address`."""
    file.write_text(CLIENT.format(python=sys.executable, modules=MODULES, address=address))
    file.chmod(0o755)


def main(address: str) -> None:
    """Imports the libraries, waits for commands, and runs each in a fork; returns in forks alone."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(16)
        print("ready", flush=True)
        while True:
            client, _ = listening.accept()
            if not os.fork():
                break
            client.close()
            with contextlib.suppress(ChildProcessError):  # those that have ended
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    _run(client)


def _run(client: socket.socket) -> None:
    """Receives a command; waits for a fork that runs it, and sends its exit code."""
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    message = client.makefile("rb").read(int.from_bytes(size, "big"))
    process = os.fork()
    if process:
        _, status = os.waitpid(process, 0)
        client.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
        os._exit(0)
    client.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    arguments, folder, environment = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [folder, *environment.get("PYTHONPATH", "").split(":")]
    os.execv = functools.partial(_execute, os.execv)
    _run_module(arguments)


def _execute(execv: Callable[..., Any], file: str, command: Sequence[str]) -> None:
    """Replaces os.execv: the command `vortaro` runs modules by it."""
    if file == sys.executable and command[1] == "-m":
        _run_module(command[2:])
        sys.exit(0)
    execv(file, command)


def _run_module(arguments: Sequence[str]) -> None:
    module = arguments[0]
    if not hasattr(sys.modules[module], "__path__"):  # else runpy warns that it was imported before
        del sys.modules[module]
    sys.argv = list(arguments)
    sys.orig_argv = [sys.executable, *arguments]  # without -m: the process is not restarted for huge pages
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
