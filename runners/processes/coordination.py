"""Coordination of the processes of a run: messages other than arrays.

Messages go through the key-value store of JAX's coordination service, which runs in process 0. The number of calls per
process does not depend on the number of processes; only process 0 reads the messages of all.
"""

import collections
import contextlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax

from layers.errors import UsageError
from tasks.storage.files import Place

FOLDER = "vortaro"
SHOWN = 4  # processes named in a message


class ProcessGroup:
    """The processes of a run; without a `client`, only this one.

    Args:
      client: the client of JAX's coordination service.
      index: the index of this process.
      count: the number of processes.
    """

    def __init__(self, client: Any = None, index: int = 0, count: int = 1):
        self.client, self.index, self.count = client, index, count
        self.host = socket.gethostname()
        self.step = 0  # the current update of this process, part of its heartbeat
        self.stacks: Place | None = None  # folder for the stacks of threads if an update does not end
        self._rounds = 0  # calls of `reduce` so far; the same number in all processes

    @property
    def several(self) -> bool:
        """Returns whether the run has more than one process."""
        return self.count > 1

    @property
    def primary(self) -> bool:
        """Returns whether this process is the one that writes files and prints."""
        return self.index == 0

    @property
    def name(self) -> str:
        """The name of this process in messages: its index and host."""
        return f"process {self.index} ({self.host})"

    def put(self, key: str, value: str, *, again: bool = False) -> bool:
        """Writes a value that all processes can read; returns False if the key already exists (unless `again`)."""
        try:
            self.client.key_value_set(f"{FOLDER}/{key}", value, allow_overwrite=again)
        except Exception as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def get(self, key: str) -> str | None:
        """Returns the value of a key; None if no process has written it yet."""
        try:
            return self.client.key_value_try_get(f"{FOLDER}/{key}")
        except Exception as error:
            if "NOT_FOUND" in str(error):
                return None
            raise

    def wait_for(self, key: str, seconds: float) -> str | None:
        """Waits for the value of a key for at most `seconds` and returns it; None if no process wrote it.

        Each wait that times out leaks some kB in JAX's client, so this is for questions that are answered soon.
        """
        try:
            return self.client.blocking_key_value_get(f"{FOLDER}/{key}", int(seconds * 1000))
        except Exception as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    def get_all(self, folder: str) -> dict[int, str]:
        """Returns the value that each process has written under `folder`, by process index."""
        return {
            int(key.rsplit("/", 1)[1]): value for key, value in self.client.key_value_dir_get(f"{FOLDER}/{folder}/")
        }

    def reduce(self, answer: str, combine: Callable[[Sequence[str]], str]) -> str:
        """Returns `combine` of the answers of all, by index, run in process 0; called by all in the same order.

        Waits without a limit: processes that die are detected by their heartbeats (`runners.processes.heartbeat`).
        """
        if not self.several:
            return combine([answer])
        self._rounds += 1
        folder = f"round{self._rounds}"
        self.put(f"{folder}/answers/{self.index}", answer)
        self.client.key_value_increment(f"{FOLDER}/{folder}/count", 1)
        if self.primary:
            while int(self.client.key_value_try_get(f"{FOLDER}/{folder}/count")) < self.count:
                time.sleep(0.02)
            answers = self.get_all(f"{folder}/answers")
            self.put(f"{folder}/result", combine([answers[index] for index in range(self.count)]))
        while (result := self.wait_for(f"{folder}/result", 60)) is None:
            pass
        return result

    def all_agree(self, card: Mapping[str, str]) -> None:
        """Checks that all processes pass the same card; called by all.

        Args:
          card: short texts by topic, the most informative topic first.

        Raises:
          UsageError: the cards differ; the message names the processes that differ from most.
        """
        answer = json.dumps({"host": self.host, **card})
        if message := self.reduce(answer, lambda answers: disagreement([json.loads(a) for a in answers])):
            raise UsageError(message)

    def broadcast(self, value: Any) -> Any:
        """Returns the value of process 0 (converted to JSON and back) in all processes; called by all."""
        return json.loads(self.reduce(json.dumps(value), lambda answers: answers[0]))

    def run_in_first(self, work: Callable[[], None]) -> None:
        """Runs `work` in process 0 while the others wait for its end; called by all."""
        if self.primary:
            work()
        self.reduce("", lambda _: "")

    def first_error(self, wrong: str | None) -> str:
        """Returns the error message of the first process that passes one, or an empty string; called by all."""
        answer = f"{wrong} ({self.name})" if wrong and self.several else wrong or ""
        return self.reduce(answer, lambda answers: next((answer for answer in answers if answer), ""))

    def require_shared(self, folder: Place) -> None:
        """Checks that all processes can read the folder that process 0 writes to; called by all.

        Raises:
          UsageError: one of them cannot.
        """
        if not self.several:
            return
        token = folder / ".processes"
        if self.primary:
            token.write_text(secrets.token_hex(8))
        content = self.reduce("", lambda _: token.read_text())
        is_shared = _becomes_true(lambda: token.exists() and token.read_text() == content)
        name = "" if is_shared else self.name
        missing = self.reduce(name, lambda answers: next((answer for answer in answers if answer), ""))
        if missing:
            raise UsageError(
                f"{missing[0].upper()}{missing[1:]} cannot read what process 0 writes to '{folder}'. --workdir must "
                f"be a folder that all machines share, or one on gs:// or s3://."
            )


def _becomes_true(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Returns whether a condition becomes true within some seconds, because shared folders show new files late."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def disagreement(cards: Sequence[Mapping[str, str]]) -> str:
    """Returns a message that names the processes whose cards differ from most; an empty string if all are equal.

    Cards are compared topic by topic, in the order of the first one's; "host" is not compared.
    """
    topics = list(dict.fromkeys(topic for card in cards for topic in card if topic != "host"))
    for topic in topics:
        answers = [card.get(topic, "nothing") for card in cards]
        usual, times = collections.Counter(answers).most_common(1)[0]
        if times == len(answers):
            continue
        if times * 2 <= len(answers):
            usual = answers[0]  # no majority: process 0 is assumed to be right
        odd = [index for index, value in enumerate(answers) if value != usual]
        names = ", ".join(f"process {index} ({cards[index]['host']})" for index in odd[:SHOWN])
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        values = list(dict.fromkeys(answers[index] for index in odd))
        has, other = ("has", values[0]) if len(odd) == 1 else ("have", " or ".join(values[:2]))
        rest = "process 0 has" if len(answers) == 2 else "the others have"
        return (
            f"The processes of this run disagree: {names}{more} {has} {topic} {other}, {rest} {usual}. Start all of "
            f"them with the same command and the same code."
        )
    return ""


def lost_contact(error: BaseException) -> bool:
    """Returns whether an error means that another process, or the connection to it, is lost."""
    text = str(error)
    # A Gloo collective raises a ValueError on CPUs. Errors of object stores contain UNAVAILABLE too, in other types.
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


def end(message: str, code: int = 1) -> NoReturn:
    """Prints a message to stderr and exits this process immediately."""
    print(f"vortaro: {message}", file=sys.stderr, flush=True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            if stream.isatty():
                stream.write("\x1b[?25h")  # a progress bar hides the cursor
            stream.flush()
    os._exit(code)
