"""The conditions of `registry list --where`."""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence

from layers.errors import UsageError, did_you_mean

_COMPARE = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
NAMES = ("params", "bytes", "bytes_per_device", "gradient_bytes_per_device", "optimizer_bytes_per_device", "devices")


def where(expression: str, totals: Callable[[], Mapping[str, int]], mesh: Sequence[int]) -> bool:
    """Whether a condition such as `params>10e9 and devices<=128` holds.

    Raises:
      UsageError: it is not made of numbers, the known names, comparisons, `and`, `or`, `not`.
    """

    def value(node: ast.expr) -> float | bool:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id="devices"):
                return math.prod(max(size, 1) for size in mesh)
            case ast.Name(id=name) if name in NAMES:
                return totals()["parameters" if name == "params" else name]
            case ast.Name(id=name):
                raise UsageError(f"--where knows no '{name}'. {did_you_mean(name, NAMES)}")
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
            f"--where={expression} is no condition: write for example --where='params>1e9 and devices<=8'."
        )

    try:
        return bool(value(ast.parse(expression.strip(), mode="eval").body))
    except SyntaxError as error:
        raise UsageError(f"--where={expression} is no condition: write for example --where='params>1e9'.") from error
