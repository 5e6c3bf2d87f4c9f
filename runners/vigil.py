"""The watch over a run: processes that died, and updates that do not end.

Each process of several says every few seconds that it lives; process 0 notices who has gone silent, and all stop with a
sentence instead of waiting for ever in a collective. A stuck update is noticed by the process itself.
"""

import contextlib
import ctypes
import faulthandler
import json
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from layers.errors import VortaroError
from runners.peers import Peers, end, lost_contact, peers
from tasks.storage import Place, make_folder, write_whole

BEATS_PER_SECOND = 128  # that process 0 listens to at most, of all others together
STACKS = "stacks"


class Vigil:
    """Tells the others that this process lives, and hears whether they do.

    Args:
      others: the processes of the run.
      patience: seconds of silence after which a process is held to be dead.
    """

    def __init__(self, others: Peers, patience: float):
        self._peers, self._patience = others, patience
        self._interval = max(1.0, others.count / BEATS_PER_SECOND)
        self._closed = threading.Event()
        self._lost = ""  # why this process thinks that another one is gone
        self._once = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="vigil", daemon=True)
        now = time.monotonic()
        # By process: its last beat, and when it came; one that never says anything is missed as well.
        self._heard = {index: (json.dumps([0, 0, "not heard yet", ""]), now) for index in range(others.count)}

    def start(self) -> None:
        """Begins; from here on this process ends when another one fails."""
        on_abort(lambda: self._end(f"Contact with process 0, the coordinator of this run, is lost. {GO_ON}"))
        self._thread.start()

    def close(self) -> None:
        """Takes leave: silence means nothing from now on."""
        self._closed.set()
        with contextlib.suppress(Exception):
            self._peers.tell(f"beats/{self._peers.index}", "gone", again=True)

    def fail(self, error: BaseException) -> None:
        """Tells the others what went wrong here, and ends this process."""
        code = error.exit_code if isinstance(error, VortaroError) else 1
        if isinstance(error, SystemExit | KeyboardInterrupt):
            code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
        if lost_contact(error):
            self._lost = str(error).strip().partition("\n")[0][:200]
            time.sleep(self._patience + 30)  # the watch ends this process, with the name of the one that is gone
        said = str(error) if isinstance(error, VortaroError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            if not self._peers.tell(
                "stop", json.dumps({"by": self._peers.index, "said": said, "code": code, "name": self._peers.name})
            ):
                time.sleep(5)  # the watch says what another one said before
        if not isinstance(error, VortaroError):
            traceback.print_exception(error)
        self._end(said, code)

    def _watch(self) -> None:
        number = 0
        try:
            while not self._closed.is_set():
                number += 1
                beat = json.dumps([number, watchdog().step, self._peers.host, self._lost])
                self._peers.tell(f"beats/{self._peers.index}", beat, again=True)
                if self._peers.primary:
                    self._look()
                if (said := self._peers.heard("stop", self._interval)) is not None:
                    self._stop(json.loads(said))
        except Exception as error:
            if not self._closed.is_set():
                self._end(f"Process 0, the coordinator of this run, is gone ({_first_line(error)}). {GO_ON}")

    def _look(self) -> None:
        """What process 0 makes of the beats of all."""
        now = time.monotonic()
        for index, beat in self._peers.all_said("beats").items():
            if beat == "gone":
                self._heard.pop(index, None)
            elif self._heard.get(index, ("", 0))[0] != beat:
                self._heard[index] = (beat, now)
        beats = {index: json.loads(beat) for index, (beat, _) in self._heard.items()}
        complaints = [index for index, beat in beats.items() if beat[3]]
        patience = min(self._patience, 4 * self._interval) if complaints else self._patience
        silent = [index for index, (_, since) in self._heard.items() if now - since > patience]
        for index in silent[:1]:
            quiet = now - self._heard[index][1]
            self._call(f"Process {index} ({beats[index][2]}) has not been heard of for {quiet:.0f} s. {GO_ON}")
        if complaints and not silent and self._complained(now) > 3 * patience:
            index = complaints[0]
            self._call(f"Process {index} ({beats[index][2]}) lost contact with another one: {beats[index][3]}. {GO_ON}")

    def _complained(self, now: float) -> float:
        """Seconds since the first complaint."""
        self._since = getattr(self, "_since", now)
        return now - self._since

    def _call(self, said: str) -> None:
        self._peers.tell("stop", json.dumps({"said": said}))

    def _stop(self, word: Mapping[str, Any]) -> None:
        if word.get("stuck"):
            watchdog().dump()
        if word.get("by") == self._peers.index:
            time.sleep(60)  # this process is about to say so itself
        name = f"{word['name']} stopped: " if "name" in word else ""
        self._end(f"{name[:1].upper()}{name[1:]}{word['said']}", word.get("code", 1))

    def _end(self, said: str, code: int = 1) -> None:
        if not self._once.acquire(blocking=False):
            time.sleep(60)
        if self._peers.primary:
            time.sleep(2)  # the coordination service ends with this process: the others hear why before
        print(f"vortaro: {said}", file=sys.stderr, flush=True)
        end(code)


GO_ON = "This process stops too; the same command goes on from the last checkpoint."


class Watchdog:
    """Notices an update that does not end."""

    def __init__(self):
        self.step = 0  # the update under way
        self._limit: float | None = None
        self._until = float("inf")
        self._folder: Place | None = None

    @contextlib.contextmanager
    def watching(self, limit: float | None, folder: Place) -> Iterator[None]:
        """Inside, `expect` counts: an update that takes more than `limit` seconds ends the run (None: none does)."""
        self._limit, self._folder = limit, folder
        closed = threading.Event()
        if limit is not None:
            threading.Thread(target=self._watch, args=(closed, limit), name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            closed.set()
            self._limit, self._until = None, float("inf")

    def expect(self, step: int, updates: int = 1) -> None:
        """Says that update `step` begins, and that so many may be under way."""
        self.step = step
        if self._limit is not None:
            self._until = time.monotonic() + self._limit * max(updates, 1)

    def rest(self) -> None:
        """Says that something else than an update begins, which may take any time."""
        self._until = float("inf")

    def dump(self) -> Place | None:
        """Writes the stacks of all threads of this process; says where."""
        if self._folder is None:
            return None
        target = self._folder / STACKS / f"process_{peers().index}.txt"
        with tempfile.TemporaryFile("w+") as file:  # where a file has a number, which one on a store has not
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            make_folder(target.parent)
            write_whole(target, file.read())
        return target

    def _watch(self, closed: threading.Event, limit: float) -> None:
        while not closed.wait(min(1.0, limit / 4)):
            if time.monotonic() > self._until:
                self._bark()

    def _bark(self) -> None:
        where = self.dump()
        here = f"{peers().name} is" if peers().several else "it is"
        said = (
            f"Update {self.step} has not ended within train.step_timeout = {self._limit:g} s: {here} stuck; where, say "
            f"{where} and the files beside it. The same command goes on from the last checkpoint."
        )
        if peers().several:
            word = json.dumps({"said": said, "stuck": True})
            # It does not return where process 0 stands still, and nobody else would end this process.
            threading.Thread(target=peers().tell, args=("stop", word), daemon=True).start()
            time.sleep(30)  # the watch of this process ends it
        print(f"vortaro: {said}", file=sys.stderr, flush=True)
        end(1)


_watchdog = Watchdog()


def watchdog() -> Watchdog:
    """The watchdog of this process."""
    return _watchdog


_handlers: list[Any] = []  # C functions that must outlive this module's calls


def on_abort(say: Callable[[], Any]) -> None:
    """Calls a function when the process aborts: JAX's service ends it so when it loses or misses its coordinator."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    handler = kind(lambda number: say())
    _handlers.append(handler)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, kind], ctypes.c_void_p
    libc.signal(int(signal.SIGABRT), handler)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:120]
