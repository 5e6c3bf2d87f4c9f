"""AUX_LOSS of a config.json weights the load-balancing loss as transformers does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.feed_forward.routing import top_k_choices
from registry.hugging_face.entry import family_of
from registry.hugging_face.families import from_content
from registry.resolve import find, resolve
from tests.registry.hugging_face.small_configs import NEEDS, version_4

PUBLISHED = {
    "mistral.Mixtral8x7B": 0.02,
    "mistral.Mixtral8x22B": 0.001,
    "qwen.Qwen3_30B_A3B": 0.001,
    "qwen.Qwen3_235B_A22B": 0.001,
}
COEFFICIENT = 0.03
LAYERS = {"mixtral": 4, "qwen3_moe": 3}  # with experts, in the small configs
TOKENS, EXPERTS = 64, 4


def config(model_type: str) -> dict[str, Any]:
    """Returns a small config with three experts per token."""
    return version_4(model_type) | {"router_aux_loss_coef": COEFFICIENT}


def our_loss(model_type: str, logits: np.ndarray) -> float:
    """Returns the loss of a model whose layers with experts all have these router logits."""
    _, knobs = from_content(config(model_type), "config.json")
    choices = top_k_choices(jnp.asarray(logits)[None], jnp.ones((1, TOKENS), bool), knobs["EXPERTS_PER_TOKEN"])
    return knobs["AUX_LOSS"] * LAYERS[model_type] * float(choices.aux_loss)


def router_logits() -> np.ndarray:
    return np.asarray(jax.random.normal(jax.random.key(0), (TOKENS, EXPERTS)) + jnp.arange(EXPERTS))


@pytest.mark.parametrize("model_type", LAYERS)
def test_the_loss_is_that_of_the_formula_of_transformers(model_type):
    """The product of each expert's choices per token and its mean probability, summed, times the number of experts."""
    logits, per_token = router_logits(), config(model_type)["num_experts_per_tok"]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.argsort(-logits)[:, :per_token]
    choices = np.bincount(chosen.ravel(), minlength=EXPERTS) / TOKENS
    expected = COEFFICIENT * EXPERTS * (choices * probabilities.mean(0)).sum()
    np.testing.assert_allclose(our_loss(model_type, logits), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", LAYERS)
def test_the_loss_is_that_of_transformers(model_type):
    torch = pytest.importorskip("torch", reason="torch is not installed; pip install -c constraints.txt -e '.[torch]'")
    pytest.importorskip("transformers", reason=NEEDS)
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits, per_token = router_logits(), config(model_type)["num_experts_per_tok"]
    of_layers = (torch.tensor(logits),) * LAYERS[model_type]
    expected = COEFFICIENT * float(load_balancing_loss_func(of_layers, EXPERTS, per_token))
    np.testing.assert_allclose(our_loss(model_type, logits), expected, rtol=1e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_entries_have_the_published_coefficient(name):
    family = family_of(find(name))
    assert family is not None
    assert family.config(resolve(name))["router_aux_loss_coef"] == PUBLISHED[name]


@pytest.mark.parametrize("model_type", LAYERS)
def test_coefficients_and_knobs_come_back(model_type):
    for coefficient in (0.0, 1e-5, 0.001, 1 / 3, 0.0123456789):
        family, knobs = from_content(config(model_type) | {"router_aux_loss_coef": coefficient}, "config.json")
        model = family.base_class().derive(**knobs)
        assert family.config(model())["router_aux_loss_coef"] == pytest.approx(coefficient, rel=1e-14)
    for aux_loss in (0.0, 0.01, 0.001, 8.51063829787234e-05):
        content = family.config(model.derive(AUX_LOSS=aux_loss)())
        assert from_content(content, "config.json")[1]["AUX_LOSS"] == aux_loss
