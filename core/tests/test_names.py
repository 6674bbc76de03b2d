"""The names of the package are what it says, and are loaded when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import perdure


def test_every_name_is_there_and_is_what_type_checkers_see() -> None:
    tree = ast.parse(Path(perdure.__file__).read_text("utf-8"))
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("perdure.")
        for alias in node.names
    }
    assert sorted(typed) == sorted(perdure.__all__) == dir(perdure)
    for name, module in typed.items():
        assert getattr(perdure, name) is getattr(sys.modules[str(module)], name)


def test_importing_the_package_or_the_authors_surface_loads_no_runtime() -> None:
    code = (
        "import sys, perdure, perdure.backend\n"
        "print([name for name in sys.modules if name.startswith(('perdure.runtime', 'perdure.bundle', 'perdure.models'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
