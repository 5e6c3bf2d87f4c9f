"""Conditions of `registry list --where`."""

import ast
import operator
from collections.abc import Callable, Mapping

from layers.errors import UsageError, did_you_mean

_COMPARE = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_TOTALS = {"params": "parameters"}
NAMES = (
    "params",
    "parameters",
    "bytes",
    "bytes_per_device",
    "gradient_bytes_per_device",
    "optimizer_bytes_per_device",
    "devices",
)


def matches(expression: str, totals: Callable[[], Mapping[str, int]], devices: int) -> bool:
    """Returns whether a condition such as `params>10e9 and devices<=128` holds.

    `totals` is called only if the condition needs them.

    Raises:
      UsageError: the condition contains anything other than numbers, known names, comparisons, `and`, `or`, `not`.
    """

    def value(node: ast.expr) -> float | bool:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id="devices"):
                return devices
            case ast.Name(id=name) if name in NAMES:
                return totals()[_TOTALS.get(name, name)]
            case ast.Name(id=name):
                raise UsageError(f"Unknown name '{name}' in --where. {did_you_mean(name, NAMES)}")
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(value(part) for part in parts)
            case ast.BoolOp(op=ast.Or(), values=parts):
                return any(value(part) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return not value(part)
            case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _COMPARE for op in ops):
                sides = [value(side) for side in (left, *rights)]
                return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, sides, sides[1:], strict=False))
        raise UsageError(
            f"--where={expression} is not a condition. Write for example --where='params>1e9 and devices<=8'."
        )

    try:
        return bool(value(ast.parse(expression.strip(), mode="eval").body))
    except SyntaxError as error:
        raise UsageError(f"--where={expression} is not a condition. Write for example --where='params>1e9'.") from error
