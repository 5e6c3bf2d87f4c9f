"""The facts that processes compare before they start, and the sentences that name those that differ."""

import jax
import pytest

from registry.resolve import resolve
from runners.main import parse
from runners.processes import consistency
from runners.processes.consistency import require_same_run
from runners.processes.coordination import ProcessGroup, disagreement


class Recorded(ProcessGroup):
    """One of two processes, which keeps its cards."""

    def __init__(self):
        super().__init__(count=2)
        self.cards = []

    def all_agree(self, card):
        self.cards.append({"host": f"h{len(self.cards)}", **card})


@pytest.fixture
def said_by_two():
    """Messages of processes with these flags, in order."""

    def ask(*flags):
        processes = Recorded()
        for given in flags:
            options = parse(["--exp=tiny.StdlibTiny", "--smoke", "--workdir=run", *given])
            experiment = resolve(options.exp, options.set, smoke=True, imports=options.imports)
            require_same_run(experiment, options, processes)
        return disagreement(processes.cards)

    return ask


def test_processes_of_one_command_agree(said_by_two):
    assert said_by_two([], ["--peer_timeout=60"]) == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set=SEED=1"], "process 1 (h1) has SEED 1, process 0 has 0"),
        (["--exp=tiny.CharTiny"], "process 1 (h1) has --exp tiny.CharTiny, process 0 has tiny.StdlibTiny"),
        (["--set=NUM_LAYERS=3"], "process 1 (h1) has --set NUM_LAYERS=3, process 0 has nothing"),
        (["--mode=validation"], "process 1 (h1) has --mode validation, process 0 has train"),
        (["--allow_changes"], "process 1 (h1) has flags"),
    ],
)
def test_other_flags_are_named(said_by_two, flags, message):
    assert message in said_by_two([], flags)


def test_other_code_and_other_devices_are_named(said_by_two, monkeypatch):
    digests = iter("ab")
    with monkeypatch.context() as patch:
        patch.setattr(consistency, "digest", lambda modules: next(digests))
        assert "process 1 (h1) has code b, process 0 has a" in said_by_two([], [])
    local, counts = jax.local_devices(), iter((2, 4))
    monkeypatch.setattr(jax, "local_devices", lambda: local[: next(counts)])
    assert "process 1 (h1) has devices 4 x cpu, process 0 has 2 x cpu" in said_by_two([], [])
