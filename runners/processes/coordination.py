"""The processes of a run, as one of them sees them: what they tell each other beside arrays.

Words go through the key-value store of JAX's coordination service, which lives in process 0. A process does a fixed
number of calls however many others there are; process 0 alone reads what all have said.
"""

import collections
import contextlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax

from layers.errors import UsageError
from tasks.storage.files import Place

FOLDER = "vortaro"
SHOWN = 4  # processes named in a sentence


class Peers:
    """All processes of this run; without a `client`, this one alone."""

    def __init__(self, client: Any = None, index: int = 0, count: int = 1):
        self.client, self.index, self.count = client, index, count
        self.host = socket.gethostname()
        self._asked = 0  # questions that all have answered so far; the same number everywhere

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    @property
    def primary(self) -> bool:
        """Whether this process is the one that writes files and prints."""
        return self.index == 0

    @property
    def name(self) -> str:
        """What others call this process."""
        return f"process {self.index} ({self.host})"

    def tell(self, key: str, value: str, *, again: bool = False) -> bool:
        """Writes a value for all to read; False where somebody wrote it before (unless `again`)."""
        try:
            self.client.key_value_set(f"{FOLDER}/{key}", value, allow_overwrite=again)
        except Exception as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def known(self, key: str) -> str | None:
        """A value that somebody wrote; None where nobody did yet."""
        try:
            return self.client.key_value_try_get(f"{FOLDER}/{key}")
        except Exception as error:
            if "NOT_FOUND" in str(error):
                return None
            raise

    def heard(self, key: str, seconds: float) -> str | None:
        """A value that somebody writes, waited for so long; None where nobody did.

        Each wait that ends in vain costs JAX's client some kB for good: for questions that are answered soon.
        """
        try:
            return self.client.blocking_key_value_get(f"{FOLDER}/{key}", int(seconds * 1000))
        except Exception as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    def all_said(self, folder: str) -> dict[int, str]:
        """What each process has written under `folder`."""
        return {
            int(key.rsplit("/", 1)[1]): value for key, value in self.client.key_value_dir_get(f"{FOLDER}/{folder}/")
        }

    def decide(self, answer: str, judge: Callable[[Sequence[str]], str]) -> str:
        """What process 0 makes of the answers of all, by index; to be called by all, in the same order.

        Waits as long as it takes: others that die are noticed by their silence (`runners.processes.heartbeat`).
        """
        if not self.several:
            return judge([answer])
        self._asked += 1
        here = f"question{self._asked}"
        self.tell(f"{here}/answers/{self.index}", answer)
        self.client.key_value_increment(f"{FOLDER}/{here}/count", 1)
        if self.primary:
            while int(self.client.key_value_try_get(f"{FOLDER}/{here}/count")) < self.count:
                time.sleep(0.02)
            answers = self.all_said(f"{here}/answers")
            self.tell(f"{here}/verdict", judge([answers[index] for index in range(self.count)]))
        while (verdict := self.heard(f"{here}/verdict", 60)) is None:
            pass
        return verdict

    def agree(self, card: Mapping[str, str]) -> None:
        """Finds out whether all processes say the same of themselves; to be called by all.

        Args:
          card: short texts by what they are, the most telling first.

        Raises:
          UsageError: they do not; the odd ones are named.
        """
        answer = json.dumps({"host": self.host, **card})
        if verdict := self.decide(answer, lambda answers: disagreement([json.loads(a) for a in answers])):
            raise UsageError(verdict)

    def first_says(self, value: Any) -> Any:
        """What process 0 finds, as JSON has it, the same on all of them; to be called by all."""
        return json.loads(self.decide(json.dumps(value), lambda found: found[0]))

    def in_turn(self, work: Callable[[], None]) -> None:
        """Process 0 works, and the others wait until it has; to be called by all."""
        if self.primary:
            work()
        self.decide("", lambda _: "")

    def all_succeed(self, wrong: str | None) -> str:
        """What went wrong in one of the processes, or nothing; to be called by all."""
        named = f"{wrong} ({self.name})" if wrong and self.several else wrong or ""
        return self.decide(named, lambda answers: next((said for said in answers if said), ""))

    def require_shared(self, folder: Place) -> None:
        """Finds out whether all processes see the folder that process 0 writes to; to be called by all.

        Raises:
          UsageError: one does not.
        """
        if not self.several:
            return
        token = folder / ".processes"
        if self.primary:
            token.write_text(secrets.token_hex(8))
        wanted = self.decide("", lambda _: token.read_text())
        seen = _patiently(lambda: token.exists() and token.read_text() == wanted)
        missing = self.decide("" if seen else self.name, lambda answers: next((name for name in answers if name), ""))
        if missing:
            raise UsageError(
                f"{missing[0].upper()}{missing[1:]} does not see what process 0 writes to '{folder}': --workdir must "
                f"be a folder that all machines share, or one on gs:// or s3://."
            )


def _patiently(seen: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether something comes true within some seconds: shared folders show new files late."""
    until = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def disagreement(cards: Sequence[Mapping[str, str]]) -> str:
    """A sentence that names the processes whose cards are not like most; nothing where all are alike.

    Cards are compared topic by topic, in the order of the first one's; "host" is not compared.
    """
    topics = list(dict.fromkeys(topic for card in cards for topic in card if topic != "host"))
    for topic in topics:
        said = [card.get(topic, "nothing") for card in cards]
        usual, times = collections.Counter(said).most_common(1)[0]
        if times == len(said):
            continue
        if times * 2 <= len(said):
            usual = said[0]  # no majority: process 0 is held to be right
        odd = [index for index, value in enumerate(said) if value != usual]
        named = ", ".join(f"process {index} ({cards[index]['host']})" for index in odd[:SHOWN])
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        values = list(dict.fromkeys(said[index] for index in odd))
        has, other = ("has", values[0]) if len(odd) == 1 else ("have", " or ".join(values[:2]))
        rest = "process 0 has" if len(said) == 2 else "the others have"
        return (
            f"The processes of this run disagree: {named}{more} {has} {topic} {other}, {rest} {usual}. Start all of "
            f"them with the same command and the same code."
        )
    return ""


_here = Peers()


def peers() -> Peers:
    """The processes of the run that this one takes part in."""
    return _here


@contextlib.contextmanager
def use(others: Peers) -> Iterator[None]:
    """Inside, `peers()` are these."""
    global _here
    before, _here = _here, others
    try:
        yield
    finally:
        _here = before


def lost_contact(error: BaseException) -> bool:
    """Whether an error says that another process or the way to it is gone."""
    text = str(error)
    # A collective of Gloo raises a ValueError on CPUs. Stores say UNAVAILABLE as well, in errors of other kinds.
    signs = (
        "Gloo",
        "NCCL",
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "Connection closed by peer",
        "Socket closed",
        "heartbeat",
    )
    return isinstance(error, (jax.errors.JaxRuntimeError, ValueError)) and any(sign in text for sign in signs)


def end(said: str, code: int = 1) -> NoReturn:
    """Says a sentence, and ends this process at once."""
    print(f"vortaro: {said}", file=sys.stderr, flush=True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            if stream.isatty():
                stream.write("\x1b[?25h")  # a progress bar hides the cursor
            stream.flush()
    os._exit(code)
