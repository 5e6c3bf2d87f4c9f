"""A warm interpreter: a process that has imported the libraries and is forked for each command.

`python -m runners.main` spends a second and a half of CPU on imports alone, and tests run it hundreds of times. The
server imports them once, before JAX makes a backend, and forks a child for each request. The child takes over the
working folder, the environment and the three standard streams of its client, so that it behaves like a new
interpreter: its own XLA_FLAGS, signal handlers, exit code. A request that the fork cannot serve (variables that are
read at import differ, or the command is no `-m MODULE` and no `-c CODE`) replaces the child by a real interpreter.
"""

import atexit
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
READ_AT_IMPORT = ("JAX_", "GLIBC_", "TF_", "HF_", "COVERAGE_", "PYTHONWARNINGS", "PYTHONSTARTUP")
IMPORTS = (
    "jax",
    "matplotlib.figure",
    "runners.train",
    "runners.sample",
    "runners.plan",
    "runners.coord_check",
    "runners.sweep",
)

CLIENT = """\
#!{python} -IS
import sys
sys.path.insert(0, {root!r})
sys.path.insert(1, {library!r})
from tests import warm_interpreter
sys.exit(warm_interpreter.ask({path!r}, sys.argv[1:], (0, 1, 2)))
"""


def ask(path: str, arguments: Sequence[str], streams: Sequence[int], cwd=None, environment=None, timeout=None) -> int:
    """Runs `python ARGUMENTS` in a child of the server; returns its exit code, negative for a signal.

    Args:
      path: the server's socket.
      arguments: what follows `python` on the command line.
      streams: file descriptors of standard input, output and error.
      cwd: the working folder; by default that of this process.
      environment: its variables; by default those of this process.
      timeout: seconds after which the child is killed.

    Raises:
      subprocess.TimeoutExpired: it was.
    """
    request = {
        "arguments": list(arguments),
        "cwd": str(cwd or os.getcwd()),
        "environment": dict(os.environ if environment is None else environment),
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        body = json.dumps(request).encode()
        socket.send_fds(connection, [len(body).to_bytes(8, "big")], list(streams))
        connection.sendall(body)
        connection.settimeout(timeout)
        try:
            answer = connection.recv(16)
        except TimeoutError as error:
            raise subprocess.TimeoutExpired(list(arguments), timeout or 0) from error
    return int(answer)


class WarmInterpreter:
    """Starts the server on first use; `run` is like subprocess.run([python, *arguments], capture_output=True).

    Args:
      folder: an empty folder for the socket and for output.
    """

    def __init__(self, folder: Path):
        self._folder, self._number = folder, 0
        self.path = str(folder / "socket")
        self._server: subprocess.Popen | None = None

    def start(self) -> None:
        """Starts the server unless it runs, and waits until it has imported everything."""
        if self._server is None:
            command = [sys.executable, "-m", "tests.warm_interpreter", self.path]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            self._server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
            assert self._server.stdout is not None
            assert self._server.stdout.readline() == b"ready\n"

    def run(self, *arguments: str, cwd, environment: Mapping[str, str], timeout: float | None = None):
        """Runs `python ARGUMENTS`; returns the finished process with its output as text."""
        self.start()
        self._number += 1
        files = [self._folder / f"{self._number}.{name}" for name in ("out", "err")]
        with open(os.devnull) as nothing, files[0].open("w") as out, files[1].open("w") as err:
            streams = (nothing.fileno(), out.fileno(), err.fileno())
            code = ask(self.path, arguments, streams, cwd, environment, timeout)
        text = [file.read_text(errors="replace") for file in files]
        for file in files:
            file.unlink()
        return subprocess.CompletedProcess(["python", *arguments], code, *text)

    def write_client(self, path: Path) -> None:
        """Writes an executable `python` that runs its arguments in the server."""
        self.start()
        library = str(Path(json.__file__).parent.parent)
        path.write_text(CLIENT.format(python=sys.executable, root=str(ROOT), library=library, path=self.path))
        path.chmod(0o755)

    def close(self) -> None:
        """Ends the server."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
            self._server = None


def serve(path: str) -> None:
    """Imports the libraries, then forks a child for each connection until it is terminated."""
    for module in IMPORTS:
        __import__(module)
    own = dict(os.environ)
    base = [entry for entry in sys.path if entry not in ("", str(ROOT))]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for here
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(1, b"ready\n")
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os._exit(_handle(connection, own, base))
            connection.close()


def _handle(connection: socket.socket, own: Mapping[str, str], base: list[str]) -> int:
    """Forks the command itself, waits for it, and sends its exit code; kills it if the client is gone."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    body = b""
    while len(body) < int.from_bytes(size, "big"):
        body += connection.recv(1 << 16)
    request = json.loads(body)
    child = os.fork()
    if child == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _run(request, own, base)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    return 0


def _run(request: dict, own: Mapping[str, str], base: list[str]) -> None:
    """Becomes the command; does not return."""
    arguments, environment = request["arguments"], request["environment"]
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(environment)
    differs = {key for key in own.keys() | environment.keys() if own.get(key) != environment.get(key)}
    if arguments[:1] not in (["-m"], ["-c"]) or any(key.startswith(READ_AT_IMPORT) for key in differs):
        os.execve(sys.executable, [sys.executable, *arguments], environment)
    extra = [entry for entry in environment.get("PYTHONPATH", "").split(":") if entry]
    sys.path[:] = [request["cwd"] if arguments[0] == "-m" else "", *extra, *base]
    sys.orig_argv = [sys.executable, *arguments]
    code: object = 0
    try:
        if arguments[0] == "-m":
            sys.argv = [arguments[1], *arguments[2:]]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as exit:
        code = exit.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    with contextlib.suppress(Exception):
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    serve(sys.argv[1])
