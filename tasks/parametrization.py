"""Width parametrization: scales of initial weights, learning rates and outputs (standard or muP)."""

import dataclasses
from typing import Literal

from layers.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parametrization:
    """Maximal update parametrization (Yang et al. 2021, Tensor Programs V, table 3, for Adam), or standard.

    With m = width / base_width, under `mup`:

    | role      | initial standard deviation              | learning rate | factor on its output      |
    | --------- | --------------------------------------- | ------------- | ------------------------- |
    | embedding | fixed                                   | 1             | 1; m^-1 as a tied head    |
    | hidden    | fan_in^-1/2, or a fixed one times m^-1/2 | m^-1          | 1                         |
    | output    | fan_in^-1                               | m^-1          | 1                         |
    | scale, bias | fixed                                 | 1             | 1                         |

    `abs_mup` replaces m^-1 by fan_in^-1 in the learning rates, and needs a base only if something else uses m. At m = 1
    `mup` has the learning rates of `standard`. Learning rates transfer only between models of the same depth, the same
    head size and the same ratio of hidden units to width (Lingle 2024, arXiv 2404.05728, section 2).

    An optimizer whose updates are proportional to each weight's root mean square (Adafactor) already scales updates of
    hidden weights by m^-1/2 and of output weights by m^-1 relative to the base; its rates omit these factors. Those of
    Muon with spectral scales omit both (Yang et al. 2023).

    Raises:
      UsageError: the base is missing, or does not divide the width.
    """

    rule: Literal["standard", "mup", "abs_mup"] = "standard"
    width: int | None = None  # of the residual stream
    base_width: int | None = None  # the width at which `mup` has the learning rates of `standard`

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
          UsageError: the base is missing.
        """
        if self.rule == "standard":
            return 1.0
        if self.base_width is None or self.width is None:
            raise UsageError(
                f"PARAMETRIZATION = {self.rule} needs BASE_WIDTH, the width at which learning rates are tuned. Set "
                f"BASE_WIDTH=64, for example."
            )
        return self.width / self.base_width

    def rate(self, role: str, fan_in: int, relative: Literal["rms", "spectral"] | None = None) -> float:
        """Returns the factor on a weight's learning rate.

        Args:
          role: see layers.weights.weight.Role.
          fan_in: number of inputs summed into one output.
          relative: updates are proportional to the root mean square of the weight ("rms"), or change each output by the
            same amount at every width ("spectral").
        """
        if self.rule == "standard" or role not in ("hidden", "output") or relative == "spectral":
            return 1.0
        rate = 1 / self.multiple if self.rule == "mup" else 1 / fan_in
        if relative == "rms":
            return rate**0.5 if role == "hidden" else 1.0
        return rate

    def shrinkage(self, role: str) -> float:
        """Returns the root mean square of an initial weight over that at the base width."""
        if self.rule == "standard" or role not in ("hidden", "output"):
            return 1.0
        return self.multiple**-0.5 if role == "hidden" else 1 / self.multiple
