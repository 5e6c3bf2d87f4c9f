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
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from layers.errors import VortaroError
from runners.processes.clock import CLOCK, Clock
from runners.processes.coordination import Peers, end, lost_contact, peers
from tasks.storage.files import Place, make_folder, write_whole

BEATS_PER_SECOND = 128  # that process 0 listens to at most, of all others together
IMPATIENCE = 10.0  # seconds of silence that count once a process has lost contact with another
STACKS = "stacks"
GO_ON = "This process stops too; the same command goes on from the last checkpoint."


class Vigil:
    """Tells the others that this process lives, and hears whether they do.

    Args:
      others: the processes of the run.
      patience: seconds of silence after which a process is held to be dead.
      clock: the time that silence is measured by.
    """

    def __init__(self, others: Peers, patience: float, clock: Clock = CLOCK):
        self._peers, self._patience, self._clock = others, patience, clock
        self._interval = max(1.0, others.count / BEATS_PER_SECOND)
        self._closed = threading.Event()
        self._lost = ""  # why this process thinks that another one is gone
        self._complained: float | None = None  # when process 0 first heard of a lost contact
        self._once = threading.Lock()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._watch, self._watch_coordinator)]
        now = self._clock.now()
        self._answered = now  # when process 0 last answered
        # By process: its last beat, and when it came; one that never says anything is missed as well.
        self._heard = {index: (json.dumps([0, 0, "not heard yet", ""]), now) for index in range(others.count)}

    def start(self) -> None:
        """Begins; from here on this process ends when another one fails."""
        on_abort(lambda: self._end(self._aborted()))
        for thread in self._threads:
            thread.start()

    def _aborted(self) -> str:
        if self._peers.primary:
            return "This process was aborted, for the reason above; the same command goes on from the last checkpoint."
        return f"Contact with process 0, the coordinator of this run, is lost, or what is said above happened. {GO_ON}"

    def close(self) -> None:
        """Takes leave: silence means nothing from now on."""
        self._closed.set()
        for thread in self._threads:
            thread.join(timeout=self._patience)  # a beat under way would take the leave back
        with contextlib.suppress(Exception):
            self._peers.tell(f"beats/{self._peers.index}", "gone", again=True)

    def fail(self, error: BaseException) -> NoReturn:
        """Tells the others what went wrong here, and ends this process."""
        code = error.exit_code if isinstance(error, VortaroError) else 1
        if isinstance(error, SystemExit | KeyboardInterrupt):
            code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
        if lost_contact(error):
            self._lost = _first_line(error, 200)
            print(f"{self._peers.name}: {_first_line(error, 1000)}", file=sys.stderr, flush=True)
            self._clock.sleep(self._patience + 30)  # the watch ends this process, with the name of the one that is gone
        said = str(error) if isinstance(error, VortaroError) else f"{type(error).__name__}: {error}"
        word = {"by": self._peers.index, "said": said, "code": code, "name": self._peers.name}
        with contextlib.suppress(Exception):
            if not self._peers.tell("stop", json.dumps(word)):
                self._clock.sleep(5)  # the watch says what another one said before
        if not isinstance(error, VortaroError):
            traceback.print_exception(error)
        self._end(said, code)

    def _watch(self) -> None:
        number = 0
        while not self._clock.wait(self._closed, self._interval if number else 0):
            number += 1
            try:
                beat = json.dumps([number, watchdog().step, self._peers.host, self._lost])
                self._peers.tell(f"beats/{self._peers.index}", beat, again=True)
                if self._peers.primary:
                    self._find_silent()
                said = self._peers.known("stop")
            except Exception:
                if self._closed.is_set() or self._clock.now() - self._answered > self._patience:
                    return  # `_watch_coordinator` says so
                continue
            self._answered = self._clock.now()
            if said is not None:
                self._stop(json.loads(said))

    def _watch_coordinator(self) -> None:
        while not self._clock.wait(self._closed, 1.0):
            silence = self._clock.now() - self._answered
            if silence > self._patience:
                self._end(f"Process 0, the coordinator of this run, has not answered for {silence:.0f} s. {GO_ON}")

    def _find_silent(self) -> None:
        """What process 0 makes of the beats of all."""
        now = self._clock.now()
        for index, beat in self._peers.all_said("beats").items():
            if beat == "gone":
                self._heard.pop(index, None)
            elif self._heard.get(index, ("", 0))[0] != beat:
                self._heard[index] = (beat, now)
        beats = {index: json.loads(beat) for index, (beat, _) in self._heard.items()}
        complaints = [index for index, beat in beats.items() if beat[3]]
        if complaints and self._complained is None:
            self._complained = now
        patience = self._patience if self._complained is None else min(self._patience, IMPATIENCE)
        silent = [index for index, (_, since) in self._heard.items() if now - since > patience]
        for index in silent[:1]:
            quiet = now - self._heard[index][1]
            self._call(f"Process {index} ({beats[index][2]}) has not been heard of for {quiet:.0f} s. {GO_ON}")
        if complaints and not silent and self._complained is not None and now - self._complained > 3 * patience:
            index = complaints[0]
            self._call(f"Process {index} ({beats[index][2]}) lost contact with another one: {beats[index][3]}. {GO_ON}")

    def _call(self, said: str) -> None:
        self._peers.tell("stop", json.dumps({"said": said}))

    def _stop(self, word: Mapping[str, Any]) -> None:
        if word.get("stuck"):
            watchdog().leave_stacks()
        if word.get("by") == self._peers.index:
            self._clock.sleep(60)  # this process is about to say so itself
        name = f"{word['name']} stopped: " if "name" in word else ""
        self._end(f"{name[:1].upper()}{name[1:]}{word['said']}", word.get("code", 1))

    def _end(self, said: str, code: int = 1) -> NoReturn:
        if not self._once.acquire(blocking=False):
            self._clock.sleep(60)
        if self._peers.primary:
            # The coordination service ends with this process: the others hear why before.
            self._clock.sleep(self._interval + 2)
        end(said, code)


class Watchdog:
    """Notices an update that does not end.

    Args:
      clock: the time that updates are measured by.
    """

    def __init__(self, clock: Clock = CLOCK):
        self._clock = clock
        self.step = 0  # the update under way
        self._what = ""  # is waited for
        self._limit: float | None = None
        self._until = float("inf")
        self._folder: Place | None = None

    @contextlib.contextmanager
    def watching(self, limit: float | None, folder: Place) -> Iterator[None]:
        """Inside, `expect` counts: what takes more than `limit` seconds ends the run (None: nothing does)."""
        self._limit, self._folder = limit, folder
        closed = threading.Event()
        if limit is not None:
            threading.Thread(target=self._watch, args=(closed, limit), name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            closed.set()
            self._limit, self._until = None, float("inf")

    def expect(self, what: str, step: int, updates: int = 1) -> None:
        """Says what is waited for now ("Update", "The batch of update"), at which step, for how many updates' time."""
        self._what, self.step = what, step
        if self._limit is not None:
            self._until = self._clock.now() + self._limit * updates

    def rest(self) -> None:
        """Says that something else than an update begins, which may take any time."""
        self._until = float("inf")

    def leave_stacks(self) -> Place | None:
        """Writes the stacks of all threads of this process, if that takes no longer than some seconds; says where."""
        if self._folder is None:
            return None
        target = self._folder / STACKS / f"process_{peers().index}.txt"
        with tempfile.TemporaryFile("w+") as file:  # where a file has a number, which one on a store has not
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            stacks = file.read()
        _bounded(lambda: _write(target, stacks), seconds=10)  # a file system that hangs may be why the update does
        return target

    def _watch(self, closed: threading.Event, limit: float) -> None:
        while not self._clock.wait(closed, min(1.0, limit / 4)):
            if self._clock.now() > self._until:
                self._bark()

    def _bark(self) -> None:
        said = f"{self._what} {self.step} has not ended within train.step_timeout = {self._limit:g} s"
        where = None
        with contextlib.suppress(Exception):
            where = self.leave_stacks()
        stacks = f"where each thread was, say {where} and the files beside it. " if where is not None else ""
        who = ["it is stuck;"]
        if peers().several:
            # These calls do not return where process 0 stands still, and nobody else would end this process.
            _bounded(lambda: who.append(self._who()), seconds=5)
        said = f"{said}: {who[-1]} {stacks}The same command goes on from the last checkpoint."
        if peers().several:
            _bounded(lambda: peers().tell("stop", json.dumps({"said": said, "stuck": True})), seconds=5)
            self._clock.sleep(15)  # the watch of this process ends it
        end(said)

    def _who(self) -> str:
        """Who is behind, as far as processes have said."""
        beats = {index: json.loads(said) for index, said in peers().all_said("beats").items() if said != "gone"}
        last = min(beat[1] for beat in beats.values())
        behind = [f"process {index} ({beat[2]})" for index, beat in sorted(beats.items()) if beat[1] == last]
        if len(behind) == len(beats):
            return "all processes are in it;"
        return f"{', '.join(behind[:4])} {'is' if len(behind) == 1 else 'are'} behind, at update {last};"


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


def _write(target: Place, text: str) -> None:
    make_folder(target.parent)
    write_whole(target, text)


def _bounded(work: Callable[[], Any], seconds: float) -> None:
    """Does something that may fail, or never end."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(timeout=seconds)


def _first_line(error: BaseException, length: int) -> str:
    return str(error).strip().partition("\n")[0][:length]
