"""Small changes to a module's source, one at a time, each of which its tests should notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

OPERATORS = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
}
# What only people read: messages, annotations, and what type checkers alone import.
LEFT_ALONE = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)
FIELDS_LEFT_ALONE = ("annotation", "returns", "decorator_list")
# Whose first two arguments may stand either way.
SYMMETRIC = ("maximum", "minimum", "logical_and", "logical_or", "equal", "assert_equal", "isclose")
LONGEST = 150


class Mutant(NamedTuple):
    """One change: `place` of the tree holds `new` instead of `old`; `change` says so, without the line's number."""

    line: int
    change: str
    place: tuple[ast.AST, str, int | None]
    old: Any
    new: Any

    def source(self, tree: ast.AST) -> str:
        """The module with the change; `tree` is what `mutants` was given."""
        _put(self.place, self.new)
        changed = ast.unparse(tree)
        _put(self.place, self.old)
        return changed


def mutants(tree: ast.AST, where: str = "module") -> Iterator[Mutant]:
    """Every change to a module, from its first line to its last."""
    for field, value in ast.iter_fields(tree):
        if field in FIELDS_LEFT_ALONE:
            continue
        for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            for new in _changes(child, is_condition=field == "test"):
                line = getattr(child, "lineno", getattr(tree, "lineno", 0))
                yield Mutant(line, f"{where}: {_text(child)} -> {_text(new)}", (tree, field, i), child, new)
            is_scope = isinstance(child, (ast.FunctionDef, ast.ClassDef))
            yield from mutants(child, child.name if is_scope and where == "module" else where)


def _changes(node: ast.AST, is_condition: bool) -> Iterator[ast.AST]:
    if is_condition:
        yield from (ast.Constant(True), ast.Constant(False))
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        yield from (_with(node, op=other()) for other in OPERATORS.get(type(node.op), []))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from (_with(node, ops=[other()]) for other in OPERATORS.get(type(node.ops[0]), []))
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        is_bool, value = isinstance(node.value, bool), node.value
        yield ast.Constant(not value if is_bool else value + 1 if isinstance(value, int) else 2 * value or 1.0)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif (
        isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or (isinstance(node, ast.Assign) and _names(node.targets) & _names([node.value]))
    ):
        yield ast.Pass()


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    """Without one of the named arguments, and with the first two of the others swapped."""
    for i, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            yield _with(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])
    first, name = node.args[:2], ast.unparse(node.func).rpartition(".")[2]
    can_swap = len(first) == 2 and not any(isinstance(x, ast.Starred) for x in first) and name not in SYMMETRIC
    if can_swap and ast.dump(first[0]) != ast.dump(first[1]):
        yield _with(node, args=[first[1], first[0], *node.args[2:]])


def _is_left_alone(node: ast.AST) -> bool:
    text = ast.unparse(node.test if isinstance(node, ast.If) else node.func if isinstance(node, ast.Call) else [])
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return isinstance(node, LEFT_ALONE) or is_docstring or text in ("TYPE_CHECKING", "InvalidArgument")


def _names(nodes: list) -> set[str]:
    return {x.id for node in nodes for x in ast.walk(node) if isinstance(x, ast.Name)}


def _with(node: Any, **fields: Any) -> Any:
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def _put(place: tuple[Any, str, int | None], node: Any) -> None:
    parent, field, i = place
    if i is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[i] = node


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
