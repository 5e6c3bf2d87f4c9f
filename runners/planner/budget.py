"""Time and cost of training on a number of tokens: device-hours by the roofline, and at an assumed MFU."""

import dataclasses
from typing import Any

from layers.errors import UsageError

Plan = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What is trained on, and what it is paid with."""

    tokens: float
    price: float | None = None  # of a device for an hour, in any currency
    mfu: float | None = None  # model FLOP/s over those of the chips, in the estimate

    @classmethod
    def named(cls, tokens: float | None, price: float | None, mfu: float | None, *, has_chip: bool) -> "Budget | None":
        """Returns the budget that flags describe; None without --tokens.

        Raises:
          UsageError: a value is out of range, or has no effect.
        """
        if tokens is None:
            for name, value in (("price", price), ("mfu", mfu)):
                if value is not None:
                    raise UsageError(f"--{name} needs a number of tokens (got --{name}={value}). Set --tokens=300e9.")
            return None
        if not 0 < tokens < float("inf"):
            raise UsageError(f"--tokens must be above 0 (got {tokens:g}). Set for example --tokens=300e9.")
        if price is not None and not 0 < price < float("inf"):
            raise UsageError(f"--price must be above 0 (got {price:g}). Set the price of a device for an hour.")
        if mfu is not None and not 0 < mfu <= 1:
            raise UsageError(f"--mfu must be above 0 and at most 1 (got {mfu:g}). Set for example --mfu=0.4.")
        if not has_chip:
            raise UsageError(f"--tokens={tokens:g} needs a chip. Set --topology=h100:8x8 or --chip=h100.")
        return cls(tokens=tokens, price=price, mfu=mfu)

    def of(self, content: Plan, flops: float) -> dict[str, Any]:
        """Returns the budget's part of a plan: hours of all devices together, and their cost.

        Args:
          content: the plan. Without a roofline, because the program does not compile, the bound is None.
          flops: of one device per second.
        """
        speed, work = content.get("roofline_tokens_per_second"), content["flops_per_token"]
        work = work / 3 if content["step"] == "decode" else work  # the forward pass alone
        bound = None if speed is None else self.tokens / speed * content["devices"] / 3600
        estimate = None if self.mfu is None else self.tokens * work / (flops * self.mfu) / 3600
        cost = lambda hours: None if hours is None or self.price is None else hours * self.price
        return {
            **dataclasses.asdict(self),
            "bound_device_hours": bound,
            "bound_cost": cost(bound),
            "estimate_device_hours": estimate,
            "estimate_cost": cost(estimate),
        }


def rows(content: Plan) -> list[tuple[str, str]]:
    """Returns the figures of a plan's budget, of terminal and pages; none without --tokens."""
    if (budget := content.get("budget")) is None:
        return []
    tokens = f"{budget['tokens']:.4g}".replace("e+", "e")
    least = "about" if content.get("roofline_is_estimate") else "at least"
    kinds = {"bound": (f"{tokens} tokens, by the roofline", least)}
    if budget["mfu"] is not None:
        kinds["estimate"] = (f"{tokens} tokens, at an MFU of {budget['mfu']:.1%}", "about")
    if budget["bound_device_hours"] is None and budget["mfu"] is None:
        return [(f"{tokens} tokens", "time unknown: the program does not fit. --mfu=0.4 estimates it")]
    found = []
    for kind, (name, word) in kinds.items():
        hours, cost = budget[f"{kind}_device_hours"], budget[f"{kind}_cost"]
        if hours is None:
            continue
        price = "" if cost is None else f", cost {word} {_number(cost)} at {budget['price']:g} per device-hour"
        days = f"{_number(hours / content['devices'] / 24)} days on {content['devices']:,} devices"
        found.append((name, f"{word} {_number(hours)} device-hours ({days}){price}"))
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
