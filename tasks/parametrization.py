"""How initial weights, learning rates and outputs follow a model's width: standard, or muP."""

import dataclasses
from typing import Literal

from layers.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parametrization:
    """Maximal update parametrization (Yang et al. 2021, Tensor Programs V, table 3, for Adam), or none.

    With m = width / base_width, under `mup`:

    | role      | initial standard deviation              | learning rate | factor on its output      |
    | --------- | --------------------------------------- | ------------- | ------------------------- |
    | embedding | fixed                                   | 1             | 1; m^-1 as a tied head    |
    | hidden    | fan_in^-1/2, or a fixed one times m^-1/2 | m^-1          | 1                         |
    | output    | fan_in^-1                               | m^-1          | 1                         |
    | scale, bias | fixed                                 | 1             | 1                         |

    `abs_mup` has fan_in^-1 for m^-1 in the learning rates, and needs no base where nothing else asks for m. At m = 1
    `mup` has the learning rates of `standard`. What must be the same at all widths is what has a role of its own in the
    rates: depth, head size, and the hidden layer's multiple of the width (Lingle 2024, arXiv 2404.05728, section 2).

    An optimizer that moves each weight in proportion to its own root mean square (Adafactor) moves hidden weights by
    m^-1/2 and output weights by m^-1 of what it does at the base already; its rates leave that out.

    Raises:
      UsageError: no base is stated, or it does not divide the width.
    """

    rule: Literal["standard", "mup", "abs_mup"] = "standard"
    width: int | None = None  # of the residual stream
    base_width: int | None = None  # the width whose learning rates are those of the standard parametrization

    def __post_init__(self):
        if self.rule == "standard":
            return
        if self.rule == "mup":
            _ = self.multiple
        if self.base_width is None or self.width is None:
            return
        if self.base_width < 1 or self.width % self.base_width:
            raise UsageError(
                f"BASE_WIDTH must divide MODEL_DIM = {self.width} under PARAMETRIZATION = {self.rule} (got "
                f"{self.base_width}). Widths are multiples of the base."
            )

    @property
    def multiple(self) -> float:
        """m, the width over the base; 1 under `standard`.

        Raises:
          UsageError: there is no base.
        """
        if self.rule == "standard":
            return 1.0
        if self.base_width is None or self.width is None:
            raise UsageError(
                f"PARAMETRIZATION = {self.rule} needs BASE_WIDTH, the width that learning rates refer to: set "
                f"BASE_WIDTH=64, or whatever width they are tuned at."
            )
        return self.width / self.base_width

    def rate(self, role: str, fan_in: int, relative_updates: bool = False) -> float:
        """The factor on a weight's learning rate.

        Args:
          role: see layers.weights.weight.Role.
          fan_in: inputs summed into one output.
          relative_updates: the optimizer moves each weight in proportion to its own root mean square.
        """
        if self.rule == "standard" or role not in ("hidden", "output"):
            return 1.0
        rate = 1 / self.multiple if self.rule == "mup" else 1 / fan_in
        if relative_updates:
            return rate**0.5 if role == "hidden" else 1.0
        return rate

    def shrinkage(self, role: str) -> float:
        """How much smaller the root mean square of a weight is than at the base width."""
        if self.rule == "standard" or role not in ("hidden", "output"):
            return 1.0
        return self.multiple**-0.5 if role == "hidden" else 1 / self.multiple
