"""Knobs that nothing reads, and members that hide them."""

import pytest

from layers.errors import UsageError
from registry import index
from registry.checks import check
from registry.experiment import knob_types
from registry.knobs import unread
from registry.knobs.unread import require_effect
from registry.resolve import resolve
from tests.conftest import ROOT
from tests.support.references.models import Small


class OwnTemplate(Small):
    """A user's template: knobs that are read here, there, or under some settings alone."""

    POWER: float = 2.0  # read by model()
    SIZES: tuple[int, ...] = (1, 2)  # read through a property that nothing asks for
    EXTRA_DIM: int = 3  # its name is put together
    DEPTH_MULTIPLE: int = 1  # read under another setting
    NUM_LAYERS = 2

    @property
    def sum_of_sizes(self) -> int:
        return sum(self.SIZES)

    @property
    def vocab_size(self) -> int:
        return super().vocab_size

    @property
    def num_heads(self) -> int:
        return self.NUM_HEADS or 1

    def model(self):
        config = super().model()
        part = "EXTRA"
        config.stack.num_layers = int(self.POWER) + 0 * getattr(self, f"{part}_DIM")
        if self.TIE_EMBEDDINGS is False:
            config.stack.num_layers *= self.DEPTH_MULTIPLE
        return config


def test_knobs_that_are_read_pass():
    require_effect(OwnTemplate())


def test_a_knob_that_nothing_reads_is_refused():
    class Typo(OwnTemplate):
        NUM_LAYRES: int = 6

    with pytest.raises(UsageError) as caught:
        check(Typo())
    text = str(caught.value)
    assert "NUM_LAYRES of tests.registry.knobs.test_unread.Typo has no effect (Typo, tests/registry/" in text
    assert "nothing reads it. Did you mean 'NUM_LAYERS'" in text

    class Later(Typo):
        NUM_LAYRES = 7

    with pytest.raises(UsageError, match=r"NUM_LAYRES = 7 has no effect: nothing reads it .*set by Later, tests/"):
        require_effect(Later())


def test_a_property_that_hides_a_knob_is_refused():
    class Hides(Small):
        @property
        def num_heads(self) -> int:
            return 8

    class Passes(Small):
        @property
        def num_heads(self) -> int:
            return 8 if self.TIE_EMBEDDINGS else super().num_heads

    with pytest.raises(UsageError, match=r"Hides.num_heads hides NUM_HEADS \(tests/\S+:\d+\). Set NUM_HEADS instead"):
        require_effect(Hides())
    require_effect(Passes())


def test_mixins_are_held_to_the_same():
    class Heads:
        num_heads = property(lambda self: 8)

    class Layers:
        num_layers = 6

    class Typo:
        NUM_LAYRES = 6

    class Hides(Heads, Small):
        pass

    with pytest.raises(UsageError, match=r"Heads.num_heads hides NUM_HEADS"):
        require_effect(Hides())
    with pytest.raises(UsageError, match=r"Layers sets num_layers, which is not a knob. Write NUM_LAYERS = 6."):
        type("Shadows", (Layers, Small), {})
    with pytest.raises(UsageError, match=r"Typo sets NUM_LAYRES, which no base declares. Did you mean 'NUM_LAYERS'"):
        type("Misspelt", (Typo, Small), {})


def test_our_own_knobs_are_read():
    """Of our own classes source text decides, here, so that their check costs nothing."""
    ours = {name: type(resolve(name)) for name in index.entries()}
    knobs = {knob for cls in ours.values() for knob in knob_types(cls)}
    files = [file for folder in ("registry", "runners") for file in (ROOT / folder).rglob("*.py")]
    assert knobs == set().union(*(unread._read_in(file, knobs) for file in files))
