"""generation_kwargs of task files as settings of the decoding loop."""

import pytest

from layers.errors import UsageError
from runners.evals.continuation import Generation
from runners.evals.generation_settings import generation_of
from tasks.decoding.sampler import Sampler

GREEDY = Sampler(temperature=0.0)


@pytest.mark.parametrize(
    ("choices", "settings"),
    [
        ({}, Generation(GREEDY, 256, ("<end>",))),
        ({"until": "x", "max_gen_toks": 3}, Generation(GREEDY, 3, ("x", "<end>"))),
        ({"until": ["b", "a", "b", ""]}, Generation(GREEDY, 256, ("b", "a", "<end>"))),
        ({"until": ["<end>", "a"], "max_new_tokens": 8}, Generation(GREEDY, 8, ("<end>", "a"))),
        ({"temperature": 0.7, "do_sample": False}, Generation(GREEDY, 256, ("<end>",))),
        ({"temperature": 0.7}, Generation(Sampler(temperature=0.7), 256, ("<end>",))),
        ({"do_sample": True}, Generation(Sampler(), 256, ("<end>",))),
        ({"do_sample": True, "temperature": 0}, Generation(GREEDY, 256, ("<end>",))),
        (
            {"do_sample": True, "temperature": 0.5, "top_k": 5, "top_p": 0.9, "num_beams": 1},
            Generation(Sampler(temperature=0.5, top_k=5, top_p=0.9), 256, ("<end>",)),
        ),
        ({"temperature": 1, "top_k": -1}, Generation(Sampler(), 256, ("<end>",))),
        ({"temperature": 1, "top_k": 0, "use_cache": False}, Generation(Sampler(), 256, ("<end>",))),
    ],
)
def test_settings(choices, settings):
    assert generation_of(choices, "<end>", 256) == settings


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"temprature": 1}, "Unknown generation_kwargs 'temprature'. Did you mean 'temperature'"),
        ({"num_beams": 4}, r"num_beams must be 1 \(got 4\)"),
        ({"max_gen_toks": 0}, r"max_gen_toks must be at least 1 \(got 0\)"),
        ({"max_gen_toks": "many"}, "max_gen_toks must be a number"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"until": [1]}, "until must be a string or a list of strings"),
        ({"do_sample": True, "temperature": 1, "top_p": 3}, "top_p must be above 0"),
    ],
)
def test_wrong_settings(choices, message):
    with pytest.raises(UsageError, match=message):
        generation_of(choices, None, 256)


def test_a_vocabulary_without_an_end_adds_no_stop():
    assert generation_of({}, None, 4).stops == ()
