"""Conditions of --where: `params>10e9 and devices<=128`, `BATCH_SIZE==16 and loss<2`."""

import ast
import operator
from collections.abc import Callable, Collection
from typing import Any

from layers.errors import UsageError, did_you_mean

_COMPARE = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_EQUALITY = (ast.Eq, ast.NotEq)
_SIGNS = {ast.USub: operator.neg, ast.UAdd: operator.pos}


def holds(expression: str, value_of: Callable[[str], Any], names: Collection[str], *, example: str) -> bool:
    """Returns whether a condition holds. A comparison with a value that is missing (None) does not.

    Args:
      expression: comparisons of names, numbers, texts, true, false and none by <, <=, >, >=, ==, !=, with `and`, `or`,
        `not` and parentheses. A name that is not an identifier is written as metric("arc_easy/acc,none").
      value_of: returns the value of a name; it is called only for those that decide.
      names: the known names.
      example: a condition to show in errors.

    Raises:
      UsageError: the condition contains anything else, or compares the order of a text and a number.
    """
    not_one = f"--where={expression} is not a condition. Write for example --where='{example}'."

    def compare(op: ast.cmpop, a: Any, b: Any) -> bool:
        if type(op) not in _EQUALITY and None in (a, b):
            return False
        try:
            return _COMPARE[type(op)](a, b)
        except TypeError:
            raise UsageError(
                f"--where={expression} orders values of two kinds (got {a!r} and {b!r}). Compare numbers with numbers."
            ) from None

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() | str() | None as constant):
                return constant
            case ast.UnaryOp(op=op, operand=ast.Constant(value=int() | float() as number)) if type(op) in _SIGNS:
                return _SIGNS[type(op)](number)
            case ast.Name(id=name) | ast.Call(func=ast.Name(id="metric"), args=[ast.Constant(value=str(name))]) if (
                name in names
            ):
                return value_of(name)
            case ast.Name(id=("true" | "false") as name):
                return name == "true"
            case ast.Name(id="none"):
                return None
            case ast.Name(id=name) | ast.Call(func=ast.Name(id="metric"), args=[ast.Constant(value=str(name))]):
                raise UsageError(f"Unknown name '{name}' in --where. {did_you_mean(name, names)}")
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(value(part) for part in parts)
            case ast.BoolOp(op=ast.Or(), values=parts):
                return any(value(part) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return not value(part)
            case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _COMPARE for op in ops):
                sides = [value(side) for side in (left, *rights)]
                return all(compare(op, a, b) for op, a, b in zip(ops, sides, sides[1:], strict=False))
        raise UsageError(not_one)

    try:
        return bool(value(ast.parse(expression.strip(), mode="eval").body))
    except SyntaxError as error:
        raise UsageError(not_one) from error
