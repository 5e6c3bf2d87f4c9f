"""The relation of the keys and knobs of mixtures of experts."""

import dataclasses
from typing import Any

from registry.hugging_face.keys import REQUIRED, Config, Knobs
from registry.hugging_face.relations import shortest
from registry.templates import layer_patterns


@dataclasses.dataclass(frozen=True)
class Experts:
    """Mixtures of experts: their number, size, gates and AUX_LOSS; and the layers without one.

    AUX_LOSS is router_aux_loss_coef * k / L, for k experts per token and L layers with experts: the load-balancing loss
    of transformers is k if all experts have the same load, the sum of ours over layers is L.
    """

    number_keys: tuple[str, ...]  # the first is written
    number: int
    per_token: int
    normalized_key: str = ""  # whether gates sum to 1; empty if they always do
    dim_key: str = ""  # hidden units of an expert, not of dense layers; empty if both are intermediate_size
    dense_key: str = ""  # numbers of layers without experts
    step_key: str = ""  # experts in every n-th layer

    @property
    def names(self) -> tuple[str, ...]:
        more = (self.normalized_key, self.dim_key, self.dense_key, self.step_key)
        more += ("intermediate_size",) if self.dim_key else ()
        return (*self.number_keys, "num_experts_per_tok", "router_aux_loss_coef", *(name for name in more if name))

    def knobs(self, config: Config) -> Knobs:
        number = self.number
        for name in self.number_keys:
            number = config.read(name, number, int)
        normalized = not self.normalized_key or config.read(self.normalized_key, False, bool)
        per_token = config.read("num_experts_per_tok", self.per_token, int)
        knobs: Knobs = {
            "NUM_EXPERTS": number,
            "EXPERTS_PER_TOKEN": per_token,
            "GATES": "top_k_then_softmax" if normalized else "softmax_then_top_k",
        }
        if self.dim_key:
            knobs["EXPERT_DIM"] = config.read(self.dim_key, 768, int)
        layers = config.read("num_hidden_layers", REQUIRED, int)
        kinds = ["gated_experts"] * layers
        if self.dense_key:
            dense = config.read(self.dense_key, [], list, nullable=True) or []
            step = config.read(self.step_key, 1, int)
            if step < 1 or not all(isinstance(each, int) and 0 <= each < layers for each in dense):
                raise config.refuse(self.dense_key if step >= 1 else self.step_key, f"There are {layers} layers.")
            kinds = ["gated" if i in dense or (i + 1) % step else "gated_experts" for i in range(layers)]
        if self.dim_key:
            hidden = config.read("intermediate_size", REQUIRED, int)
            knobs |= {"FFN_DIM": hidden} if "gated" in kinds else {}  # without effect if no layer is dense
        coefficient = config.read("router_aux_loss_coef", 0.001, float)
        aux_loss = _aux_loss(coefficient, per_token, kinds.count("gated_experts"))
        return {**knobs, "AUX_LOSS": aux_loss, "FFN": shortest(kinds)}

    def keys(self, experiment: Any) -> dict[str, Any]:
        layers = layer_patterns.kinds(type(experiment), experiment.NUM_LAYERS)
        kinds = [layer.get("FFN", experiment.FFN) for layer in layers]
        per_token = experiment.EXPERTS_PER_TOKEN
        keys: dict[str, Any] = {
            self.number_keys[0]: experiment.NUM_EXPERTS,
            "num_experts_per_tok": per_token,
            "router_aux_loss_coef": _coefficient(experiment.AUX_LOSS, per_token, kinds.count("gated_experts")),
        }
        if self.normalized_key:
            keys[self.normalized_key] = experiment.GATES == "top_k_then_softmax"
        if self.dim_key:
            keys[self.dim_key] = experiment.hidden_dim if experiment.EXPERT_DIM is None else experiment.EXPERT_DIM
            keys["intermediate_size"] = experiment.hidden_dim
        if self.dense_key:
            keys |= {self.dense_key: [i for i, kind in enumerate(kinds) if kind == "gated"], self.step_key: 1}
        return keys


def _aux_loss(coefficient: float, per_token: int, layers: int) -> float:
    """Returns AUX_LOSS, in 15 digits: those that a float has for certain, so that `_coefficient` finds its inverse."""
    return float(f"{coefficient * per_token / max(1, layers):.15g}")


def _coefficient(aux_loss: float, per_token: int, layers: int) -> float:
    """Returns the shortest router_aux_loss_coef of which `_aux_loss` returns the argument."""
    exact = aux_loss * max(1, layers) / per_token
    rounded = (float(f"{exact:.{digits}g}") for digits in range(1, 18))
    return next((each for each in rounded if _aux_loss(each, per_token, layers) == aux_loss), exact)
