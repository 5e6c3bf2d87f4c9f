"""Mutated inputs of every kind are accepted or refused by a sentence; what is neither has the number of its example."""

import collections
import logging
import os
import time
from pathlib import Path

import pytest
from hypothesis import strategies as st

from layers.errors import UsageError
from testing.fuzz import __main__ as command
from testing.fuzz import worker
from testing.fuzz.examples import ACCEPTED, OTHER, REFUSED, Outcome, Watch, run
from testing.fuzz.kind import Kind
from testing.fuzz.names import NAMES, NEED_TORCH
from testing.fuzz.worker import supervise

COMPILING = ("record", "checkpoint", "saved_state")  # their valid examples need seconds
WATCH = Watch()


def results_of(name: str, mutations: int) -> tuple[collections.Counter, list[Outcome]]:
    from testing.fuzz.kinds import KINDS

    outcomes: list[Outcome] = []
    logging.disable(logging.CRITICAL)
    try:
        run(KINDS[name], mutations, 1, outcomes.append, watch=WATCH)
    finally:
        logging.disable(logging.NOTSET)
    return collections.Counter(outcome.result for outcome in outcomes), outcomes


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*COMPILING, *NEED_TORCH)])
def test_some_mutations(name):
    results, outcomes = results_of(name, 30)
    assert not results[OTHER], [outcome for outcome in outcomes if outcome.result == OTHER]
    assert results.total() == 30


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hundreds_of_mutations(name):
    outcomes: list[Outcome] = []
    mutations = 100 if name in COMPILING else 300
    supervise(name, mutations, 2, outcomes.append, range(mutations))
    results = collections.Counter(outcome.result for outcome in outcomes)
    assert not results[OTHER], [outcome for outcome in outcomes if outcome.result == OTHER]
    assert results[ACCEPTED], "mutations of valid inputs, of which some have no effect"
    assert results.total() == mutations


def test_the_names_are_those_of_the_kinds():
    from testing.fuzz.kinds import KINDS

    assert sorted(NAMES) == sorted(KINDS)


def kind_of(read) -> Kind:
    return Kind("one", lambda folder: 0, lambda valid: st.integers(0, 1000), read)


def outcomes_of(read, **chosen) -> list[Outcome]:
    found: list[Outcome] = []
    run(kind_of(read), 10, 0, found.append, watch=WATCH, **chosen)
    return found


def refuse(message: str, cause: BaseException | None = None):
    raise UsageError(message) from cause


@pytest.mark.parametrize(
    ("read", "result"),
    [
        (lambda given, folder: None, ACCEPTED),
        (lambda given, folder: refuse("SEED must be at least 0 (got -1)."), REFUSED),
        (lambda given, folder: refuse(""), OTHER),
        (lambda given, folder: refuse("Memory.", MemoryError()), OTHER),
        (lambda given, folder: {}["a"], OTHER),
        (lambda given, folder: os.system("true"), OTHER),
        (lambda given, folder: Path("/tmp/outside-of-the-example").write_text("a"), OTHER),
        (lambda given, folder: (folder / "a").write_text("a"), ACCEPTED),
    ],
)
def test_results(read, result):
    assert {outcome.result for outcome in outcomes_of(read)} == {result}
    Path("/tmp/outside-of-the-example").unlink(missing_ok=True)


def test_an_example_is_repeated_by_its_number():
    seen: list[int] = []
    outcomes_of(lambda given, folder: seen.append(given))
    again: list[int] = []
    outcomes_of(lambda given, folder: again.append(given), numbers=range(4, 5))
    assert again == seen[4:5]


@pytest.mark.parametrize("kind", NEED_TORCH)
def test_without_torch(monkeypatch, capsys, kind):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        command.main([f"--kind={kind}"])
    assert f"--kind={kind} needs the package torch. Run pip install" in capsys.readouterr().err


def odd_kind(name: str) -> Kind:
    """A kind whose fourth and later examples hang, crash, or use too much memory."""
    number = iter(range(100))
    ends = {"hang": lambda: time.sleep(60), "crash": os.abort, "memory": lambda: bytearray(64 << 30)}
    return kind_of(lambda given, folder: ends[name]() if next(number) == 3 else None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [("hang", "no end after 2 s"), ("crash", "the process has ended with exit code -6"), ("memory", "MemoryError: ")],
)
def test_what_ends_a_process_is_a_result(name, message):
    found: list[Outcome] = []
    supervise(name, 6, 0, found.append, range(6), find=odd_kind, seconds=2.0)
    assert [outcome.number for outcome in found] == list(range(6))
    first = next(outcome for outcome in found if outcome.result == OTHER)
    assert (first.number, first.detail) == (3, message)


@pytest.mark.slow
def test_a_process_reads_a_limited_number(monkeypatch):
    found: list[Outcome] = []
    monkeypatch.setattr(worker, "PER_PROCESS", 3)
    supervise("crash", 7, 0, found.append, range(7), find=odd_kind)
    assert [(outcome.number, outcome.result) for outcome in found] == [(number, ACCEPTED) for number in range(7)]


@pytest.mark.slow
def test_the_command(capsys):
    assert command.main(["--kind=tokens", "--kind=jsonl", "--mutations=20"]) == 0
    rows = [line.split("│")[1:3] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [(name.strip(), count.strip()) for name, count in rows] == [("tokens", "20"), ("jsonl", "20")]
