"""Blind mutants of a journal: its source with one small change each, made without a look at the laws.

A mutant is a module made of the changed source. It differs from the original in one place: a comparison turned round, a
number moved by one, `and` for `or`, a condition negated, a statement or an argument left out, a constant swapped.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
CALLS = {"min": "max", "max": "min", "nsmallest": "nlargest", "nlargest": "nsmallest", "append": "remove"}
IGNORED = ("__init__", "from_url")
"""Functions of which nothing is changed: what they do is said elsewhere."""


@dataclass(frozen=True)
class Mutant:
    """One change of a source.

    Attributes:
        line: Where it is.
        change: What was made of what.
        source: The changed source.
    """

    line: int
    change: str
    source: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.change}"

    def load(self, name: str) -> ModuleType:
        """Import the changed source as a module of this name."""
        specification = importlib.util.spec_from_loader(name, loader=None)
        assert specification is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules[name] = module
        exec(compile(self.source, f"<{name}>", "exec"), module.__dict__)
        return module


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Return every mutant of a source file, in the order of its lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if hasattr(node, "lineno")]
    inside = _inside_functions(tree)
    for number, node in enumerate(nodes):
        if id(node) not in inside:
            continue
        for place in range(len(list(_changes(node)))):
            changed = copy.deepcopy(tree)
            twin = [one for one in ast.walk(changed) if hasattr(one, "lineno")][number]
            list(_changes(twin))[place]()
            source = ast.unparse(ast.fix_missing_locations(changed))
            yield Mutant(getattr(node, "lineno", 0), f"{ast.unparse(node)} -> {ast.unparse(twin)}"[:160], source)


def _inside_functions(tree: ast.Module) -> set[int]:
    inside: set[int] = set()
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and function.name not in IGNORED:
            for statement in function.body:
                inside.update(id(node) for node in ast.walk(statement) if not _is_docstring(statement))
    return inside


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _changes(node: Any) -> Iterator[Any]:
    """Return what can be done to a node, each as a function that does it."""
    if isinstance(node, ast.Compare):
        yield from (_set(node.ops, index, SWAPPED[type(op)]()) for index, op in enumerate(node.ops))
    elif isinstance(node, ast.BoolOp):
        yield _attribute(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        yield _attribute(node, "values", node.values[:-1])
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield _attribute(node, "op", ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield _attribute(node, "value", node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield _attribute(node, "value", not node.value)
    elif isinstance(node, (ast.IfExp, ast.If)):
        yield _attribute(node, "test", ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.AugAssign):
        yield _attribute(node, "value", ast.Constant(0))
    elif isinstance(node, ast.Call):
        yield from _call_changes(node)
    elif isinstance(node, ast.Slice):
        yield from (_attribute(node, edge, None) for edge in ("lower", "upper") if getattr(node, edge) is not None)


def _call_changes(node: ast.Call) -> Iterator[Any]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in CALLS:
        field = "id" if isinstance(node.func, ast.Name) else "attr"
        yield _attribute(node.func, field, CALLS[name])
    if len(node.keywords) > 1:
        yield _attribute(node, "keywords", node.keywords[:-1])


def _set(items: list[Any], index: int, value: Any) -> Any:
    return lambda: items.__setitem__(index, value)


def _attribute(node: Any, name: str, value: Any) -> Any:
    return lambda: setattr(node, name, value)
