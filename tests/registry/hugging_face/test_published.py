"""Numbers of weights of published models: those in the docstrings, the totals, and of the same models in PyTorch."""

import re

import pytest

from registry import index
from registry.hugging_face.entry import family_of
from registry.hugging_face.families import FAMILIES, from_content
from registry.hugging_face.keys import value_of
from registry.resolve import find, resolve
from registry.tool import totals
from tests.registry.hugging_face.small_configs import NEEDS, model_of, normalized

ENTRIES = [name for name in sorted(index.entries()) if family_of(find(name)) is not None]
H100 = 80e9  # bytes of memory
DERIVED = ("ATTENTION_SCALE", "ROTARY_HIGH")  # None is a value that the key states


def documented(name: str) -> int:
    """Returns the number with which the docstring of an entry begins."""
    found = re.match(r"([\d,]+) weights", find(name).__doc__ or "")
    assert found, f"the docstring of {name} must begin with its number of weights"
    return int(found[1].replace(",", ""))


def config_of(name: str) -> dict:
    """Returns the config.json of an entry."""
    family = family_of(find(name))
    assert family is not None
    return family.config(resolve(name))


def test_every_family_has_entries():
    assert {config_of(name)["model_type"] for name in ENTRIES} == set(FAMILIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_totals_are_those_of_the_docstring(name):
    assert totals.stored()[name]["parameters"] == documented(name)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_model_in_pytorch_has_as_many(name):
    torch = pytest.importorskip("torch", reason="torch is not installed; pip install -c constraints.txt -e '.[torch]'")
    transformers = pytest.importorskip("transformers", reason=NEEDS)
    content = config_of(name)
    keys = {key: value for key, value in content.items() if key != "model_type"}
    config = transformers.CONFIG_MAPPING[content["model_type"]].from_dict(keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert type(model).__name__ == content["architectures"][0]
    assert sum(each.numel() for each in model.parameters()) == documented(name)  # a tied one counts once


@pytest.mark.parametrize("name", ENTRIES)
def test_the_config_of_an_entry_describes_its_model(name):
    experiment, content = resolve(name), config_of(name)
    family, knobs = from_content(content, name)
    derived = family.base_class().derive(**knobs)()
    assert family.config(derived) == content
    for knob, value in knobs.items():
        assert value_of(experiment, knob) == value or (knob in DERIVED and getattr(experiment, knob) is None), knob
    assert model_of(normalized(content)) == model_of(content)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_state_of_training_fits_the_devices_of_the_docstring(name):
    stated = re.search(r"on (one|\d+)( H100)? GPUs?", find(name).__doc__ or "")
    assert stated, f"the docstring of {name} must state its devices"
    devices = 1
    for size in resolve(name).DEVICE_MESH_SHAPE:
        devices *= size
    assert devices == (1 if stated[1] == "one" else int(stated[1]))
    bytes_of = totals.stored()[name]
    state = sum(bytes_of[f"{kind}_per_device"] for kind in ("bytes", "gradient_bytes", "optimizer_bytes"))
    assert state < H100 / 2, "activations need memory too"
