"""The expression of ``sweep.where``: comparisons, ``and or not``, arithmetic and ``in`` over fields of the recipe.

It is written as Python writes it and read by Python's parser, but walked here: nothing is ever compiled or
called, and what is not in the list below is refused.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from recipe_toolkit.faults import FieldPath, shown

MAX_LENGTH = 2000
MAX_DEPTH = 40

_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDERS: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_WORDS = {"true": True, "false": False, "null": None}
_SCALARS = (bool, int, float, str, type(None))
_HINT = "and, or, not, comparisons, + - * / // %, in [...], numbers, strings, true, false, null, and fields"

Lookup = Callable[[FieldPath], Any]


class ExpressionError(ValueError):
    """The expression cannot be read, or has no value; the message names the part. ``hint``: what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Expression:
    """An expression that has been read. Raises ExpressionError where it is none."""

    def __init__(self, text: str) -> None:
        # In parentheses, it may go over several lines.
        self._source = f"({text.strip()}\n)"
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"is longer than {MAX_LENGTH} characters")
        if not text.strip():
            raise ExpressionError("is no expression: it is empty", _HINT)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in strings
                self._root = ast.parse(self._source, mode="eval").body
        except SyntaxError as error:
            raise ExpressionError(f"is no expression: {error.msg}", _HINT) from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError("is no expression that can be read", _HINT) from error
        self._check(self._root, 0)

    def fields(self) -> Iterator[FieldPath]:
        """The fields that it names."""
        stack: list[ast.AST] = [self._root]
        while stack:
            node = stack.pop()
            path = _path(node)
            if path is None:
                stack += ast.iter_child_nodes(node)
            elif len(path) > 1 or path[0] not in _WORDS:
                yield path

    def holds(self, lookup: Lookup) -> bool:
        """Whether it is true. ``lookup``: the value of a field. Raises ExpressionError."""
        return self._truth(self._root, lookup)

    def _said(self, node: ast.AST) -> str:
        text = " ".join((ast.get_source_segment(self._source, node) or "").split())
        return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"

    def _check(self, node: ast.AST, depth: int) -> None:
        """Refuse what is not in the language."""
        if depth > MAX_DEPTH:
            raise ExpressionError(f"is nested more than {MAX_DEPTH} deep")
        if _path(node) is not None:
            return
        if isinstance(node, (ast.BoolOp, ast.List, ast.Tuple)):
            parts: list[ast.AST] = [*(node.values if isinstance(node, ast.BoolOp) else node.elts)]
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Invert):
            parts = [node.operand]
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            parts = [node.left, node.right]
        elif isinstance(node, ast.Compare) and not any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Constant) and isinstance(node.value, _SCALARS):
            parts = []
        else:
            hint = "a field's part that holds a dash stands in brackets: roles.decode.args['max-num-seqs']"
            raise ExpressionError(
                f"{self._said(node)} is not in the language of conditions",
                hint if isinstance(node, (ast.Attribute, ast.Subscript)) else f"known here: {_HINT}",
            )
        for part in parts:
            self._check(part, depth + 1)

    def _value(self, node: ast.AST, lookup: Lookup) -> Any:
        path = _path(node)
        if path is not None:
            return _WORDS[str(path[0])] if len(path) == 1 and path[0] in _WORDS else lookup(path)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(item, lookup) for item in node.elts]
        if isinstance(node, ast.BoolOp):
            wanted = isinstance(node.op, ast.Or)
            return wanted if any(self._truth(item, lookup) is wanted for item in node.values) else not wanted
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not):
                return not self._truth(node.operand, lookup)
            number = self._number(node.operand, lookup)
            return -number if isinstance(node.op, ast.USub) else number
        if isinstance(node, ast.BinOp):
            left, right = self._number(node.left, lookup), self._number(node.right, lookup)
            try:
                return _ARITHMETIC[type(node.op)](left, right)
            except (ZeroDivisionError, OverflowError) as error:
                raise ExpressionError(f"{self._said(node)}: {error}") from error
        assert isinstance(node, ast.Compare)
        return self._comparison(node, lookup)

    def _comparison(self, node: ast.Compare, lookup: Lookup) -> bool:
        left = self._value(node.left, lookup)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self._value(right_node, lookup)
            if isinstance(op, (ast.In, ast.NotIn)):
                holds = self._is_in(left, right, right_node) is isinstance(op, ast.In)
            elif isinstance(op, (ast.Eq, ast.NotEq)):
                holds = _same(left, right) is isinstance(op, ast.Eq)
            else:
                if not _ordered(left, right):
                    raise ExpressionError(f"{self._said(node)}: {shown(left)} and {shown(right)} have no order", _NULL)
                holds = _ORDERS[type(op)](left, right)
            if not holds:
                return False
            left = right
        return True

    def _is_in(self, item: Any, holder: Any, node: ast.AST) -> bool:
        if isinstance(holder, str) and isinstance(item, str):
            return item in holder
        if isinstance(holder, list):
            return any(_same(item, other) for other in holder)
        raise ExpressionError(f"{self._said(node)} is {shown(holder)}, which holds nothing", "in [1, 2] takes a list")

    def _number(self, node: ast.AST, lookup: Lookup) -> Any:
        value = self._value(node, lookup)
        if not _is_number(value):
            raise ExpressionError(f"{self._said(node)} is {shown(value)}, not a number", _NULL)
        return value

    def _truth(self, node: ast.AST, lookup: Lookup) -> bool:
        value = self._value(node, lookup)
        if not isinstance(value, bool):
            raise ExpressionError(f"{self._said(node)} is {shown(value)}, not true or false", "compare it: x > 0")
        return value


_NULL = "a field that the recipe does not set, and that has no default, is null: FIELD == null or FIELD > 8"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ordered(one: Any, other: Any) -> bool:
    return (_is_number(one) and _is_number(other)) or (isinstance(one, str) and isinstance(other, str))


def _same(one: Any, other: Any) -> bool:
    """Equal, and of one kind: ``true`` is not 1, as it is for Python."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _path(node: ast.AST) -> FieldPath | None:
    """The field that ``a.b['c-d'][0]`` names; None where the node is something else."""
    parts: list[str | int] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and type(node.slice.value) in (str, int)
        ):
            parts.append(node.slice.value)  # type: ignore[arg-type]
        else:
            return None
        node = node.value
    return (node.id, *reversed(parts))
