"""Makes the types of `perdure.blocking` of the async classes: `python core/tests/blocking_stub.py` writes them.

A method that is awaited becomes one that returns what the wait gives; a class of the async API that has a blocking one
becomes that one; an async iterator becomes an iterator. Attributes have the type of what `__init__` assigns to them, as
far as that can be read off its text; where it cannot, annotate the assignment.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure import blocking, opening
from perdure.blocking.facade import HIDDEN, Facade, Items
from perdure.contracts.store import Store

STUB = Path(blocking.__file__).with_suffix(".pyi")
COMMAND = "python core/tests/blocking_stub.py"

HEADER = f'''"""The same names without `await`; see `__init__.py`.

Made of the async classes by `{COMMAND}`: do not edit.
"""

'''
AWAITED = {"Coroutine": -1, "Awaitable": 0}
ITERATORS = ("AsyncIterator", "AsyncIterable", "AsyncGenerator")
DUNDERS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
KEPT = ("__init__", "__contains__")
KINDS = {kind.__name__: facade for kind, facade in Facade._kinds.items()}
OWN = {*KINDS, Items.__name__}
STORES = {name for name, facade in KINDS.items() if issubclass(facade._of, Store)}
MADE_BY_USERS = ("Agent", "AgentStore", "Worker")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Names:
    """Where the names of annotations come from."""

    def __init__(self) -> None:
        self._imports: dict[str, tuple[str, str | None]] = {}

    def use(self, annotation: ast.expr, module: ModuleType) -> None:
        """Take note of the names in an annotation that stands in a module."""
        places = _imports_of(module)
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name) and node.id not in OWN and not hasattr(builtins, node.id):
                self.add(node.id, places.get(node.id, module.__name__))

    def add(self, name: str, module: str, original: str | None = None) -> None:
        """Take note of a name."""
        known = self._imports.setdefault(name, (module, original))
        assert known == (module, original), f"{name} means two things: {known[0]} and {module}"

    def lines(self) -> Iterator[str]:
        """Yield the imports."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name, (module, original) in self._imports.items():
            found[module].append(name if original is None else f"{original} as {name}")
        for module in sorted(found):
            yield f"from {module} import {', '.join(sorted(found[module]))}"


def _imports_of(module: ModuleType) -> dict[str, str]:
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _class(kind: type[Any]) -> ast.ClassDef:
    tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


# --- signatures ---


class _Taken(ast.NodeTransformer):
    """Changes what a parameter takes: a store may be one of the user's own, which is async."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in STORES:
            return node
        self._names.add(f"Async{node.id}", KINDS[node.id]._of.__module__, node.id)
        return ast.parse(f"{node.id} | Async{node.id}", mode="eval").body


def _given(returned: ast.expr, names: Names) -> ast.expr:
    """Return the type of what a caller gets who does not await."""
    if isinstance(returned, ast.Subscript) and isinstance(returned.value, ast.Name):
        inner = returned.slice.elts if isinstance(returned.slice, ast.Tuple) else [returned.slice]
        if returned.value.id in AWAITED:
            return _given(inner[AWAITED[returned.value.id]], names)
        if returned.value.id in ITERATORS:
            names.add(Items.__name__, Items.__module__)
            return ast.Subscript(ast.Name(Items.__name__), inner[0])
    return returned


def _signature(function: Function, module: ModuleType, names: Names, returns: str | None = None) -> str:
    args = copy.deepcopy(function.args)
    for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]:
        if arg.annotation is not None:
            names.use(arg.annotation, module)
            arg.annotation = _Taken(names).visit(arg.annotation)
    args.defaults = [_default(value) for value in args.defaults]
    args.kw_defaults = [None if value is None else _default(value) for value in args.kw_defaults]
    if returns is None:
        assert function.returns is not None, f"{function.name} does not say what it returns"
        given = _given(copy.deepcopy(function.returns), names)
        names.use(given, module)
        returns = ast.unparse(given)
    return f"def {DUNDERS.get(function.name, function.name)}({ast.unparse(args)}) -> {returns}:"


def _default(value: ast.expr) -> ast.expr:
    simple = isinstance(value, ast.Constant) or (isinstance(value, ast.Tuple) and not value.elts)
    return value if simple else ast.Constant(...)


def _body(function: Function) -> list[str]:
    """Return the summary of a function's docstring, or the dots of a stub."""
    told = ast.get_docstring(function)
    return ["    ..."] if told is None else [f'    """{told.partition(chr(10))[0]}"""']


# --- attributes ---


def _attributes(node: ast.ClassDef, module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the public attributes of a class with their types, those that its body annotates first."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and _is_public(line.target.id):
            yield line.target.id, ast.unparse(line.annotation)
    init = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    for target, value, annotation in [] if init is None else _assigned(init):
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and _is_public(target.attr):
            assert init is not None
            found = annotation or _inferred(value, init, node, module)
            assert found, f"the type of {node.name}.{target.attr} cannot be read off: annotate it in __init__"
            yield target.attr, found


def _assigned(init: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr | None, str | None]]:
    for line in ast.walk(init):
        if isinstance(line, ast.AnnAssign):
            yield line.target, line.value, ast.unparse(line.annotation)
        elif isinstance(line, ast.Assign):
            for target in line.targets:
                if isinstance(target, ast.Tuple) and isinstance(line.value, ast.Tuple):
                    yield from ((one, value, None) for one, value in zip(target.elts, line.value.elts, strict=True))
                else:
                    yield target, line.value, None


def _inferred(value: ast.expr | None, init: ast.FunctionDef, node: ast.ClassDef, module: ModuleType) -> str | None:
    match value:
        case ast.Constant(value=None):
            return "None"
        case ast.IfExp(body=body, orelse=orelse):
            kinds = [_inferred(one, init, node, module) for one in (orelse, body)]
            # Which of the two comes depends on whether it is None.
            parts = {part: None for kind in kinds for part in (kind or "?").split(" | ")}
            if not any(isinstance(one, ast.Constant) and one.value is None for one in (body, orelse)):
                parts.pop("None", None)
            return None if "?" in parts else " | ".join(sorted(parts, key=lambda part: part == "None"))
        case ast.Name(id=name):
            given = [*init.args.args, *init.args.kwonlyargs]
            found = next((arg.annotation for arg in given if arg.arg == name), None)
            return None if found is None else ast.unparse(found)
        case ast.Call(func=ast.Name(id=name)):
            made = getattr(module, name, None)
            return name if isinstance(made, type) else _returned(made)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)):
            kind = node.name if owner == "self" else _inferred(ast.Name(owner), init, node, module)
            found_kind = KINDS[kind]._of if kind in KINDS else None
            return _returned(getattr(found_kind, name, None))
        case _:
            return None


def _returned(function: Any) -> str | None:
    returned: str | None = getattr(function, "__annotations__", {}).get("return")
    return returned


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name not in HIDDEN


# --- the stub ---


def _members(kind: type[Any], names: Names) -> Iterator[str]:
    seen: set[str] = set()
    for owner in kind.__mro__:
        if owner.__module__.startswith("perdure"):
            node, module = _class(owner), sys.modules[owner.__module__]
            for name, annotation in _attributes(node, module):
                if name not in seen:
                    seen.add(name)
                    names.use(ast.parse(annotation, mode="eval").body, module)
                    yield from ("@property", f"def {name}(self) -> {annotation}: ...")
            for function in node.body:
                if isinstance(function, Function) and function.name not in seen and _is_shown(function, kind):
                    seen.add(function.name)
                    if any(isinstance(one, ast.Name) and one.id == "property" for one in function.decorator_list):
                        yield "@property"
                    yield from (_signature(function, module, names), *_body(function))


def _is_shown(function: Function, kind: type[Any]) -> bool:
    if function.name == "__init__":
        return kind.__name__ in MADE_BY_USERS
    return _is_public(function.name) or function.name in DUNDERS or function.name in KEPT


def _open_store(names: Names) -> Iterator[str]:
    tree = ast.parse(inspect.getsource(opening))
    function = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "open_store")
    told = '    """Open the stores of an agent. They are open when it returns; `with` closes them."""'
    yield from (_signature(function, opening, names, "AgentStore"), told)


def make() -> str:
    """Return the stub, formatted."""
    names, lines = Names(), list[str]()
    names.add("BlockingCallError", "perdure.blocking.loop")
    for facade in Facade._kinds.values():
        summary = (facade._of.__doc__ or "").strip().partition("\n")[0]
        lines += [f"class {facade._of.__name__}:", f'    """{summary}"""']
        lines += [f"    {line}" for line in _members(facade._of, names)]
    lines += _open_store(names)
    listed = "__all__ = [" + ", ".join(f'"{name}"' for name in sorted(blocking.__all__)) + "]"
    return _formatted(HEADER + "\n".join([*names.lines(), listed, *lines]) + "\n")


def _formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for verb in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        command = [str(ruff), *verb, "--stdin-filename", str(STUB), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", check=False)
        assert done.returncode == 0, f"{done.stderr}\n{text}"
        text = done.stdout
    return text


if __name__ == "__main__":
    STUB.write_text(make(), encoding="utf-8")
