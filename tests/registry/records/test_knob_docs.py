"""Each knob's meaning is documented once, next to its declaration."""

from registry import index
from registry.experiment import Experiment, knob_types
from registry.records.knob_docs import meanings
from registry.resolve import resolve


def test_every_knob_of_an_entry_has_a_meaning():
    for name in index.entries():
        cls = type(resolve(name))
        assert not knob_types(cls).keys() - meanings(cls).keys(), name


def test_a_meaning_is_next_to_a_declaration():
    class Own(Experiment):
        # A heading of several knobs
        ALONE: int = 1
        INLINE: int = 2  # in the line
        BELOW: int = 3
        """Below,
        in two lines."""
        CALL: tuple[int, ...] = (
            1,
            2,  # of a row
        )  # of all rows

    found = meanings(Own)
    assert {name: found.get(name) for name in ("ALONE", "INLINE", "BELOW", "CALL")} == {
        "ALONE": None,
        "INLINE": "in the line",
        "BELOW": "Below, in two lines.",
        "CALL": "of all rows",
    }
    assert "initial weights" in found["SEED"]


def test_a_subclass_keeps_the_meaning_of_its_template():
    class Child(type(resolve("tiny.StdlibTiny"))):
        MODEL_DIM = 64  # for this one

    assert meanings(Child)["MODEL_DIM"] == meanings(type(resolve("tiny.StdlibTiny")))["MODEL_DIM"]
