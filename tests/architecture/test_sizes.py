"""Functions and modules stay small: ruff counts statements, this counts lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "billing_jobs"
FUNCTION_LINES_MAX = 40
MODULE_LINES_MAX = 400


def test_no_function_is_longer_than_forty_lines() -> None:
    """A function that does not fit on a screen is not read; its docstring does not count."""
    found = [item for path in PACKAGE.rglob("*.py") for item in _long_functions(path)]
    assert "\n".join(found) == ""


def test_no_module_is_longer_than_four_hundred_lines() -> None:
    """A longer module has a second purpose."""
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path.name: n for path, n in lengths.items() if n > MODULE_LINES_MAX} == {}


def _long_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = node.body[0] if ast.get_docstring(node) is not None else None
            docstring = 0 if text is None else (text.end_lineno or 0) - text.lineno + 1
            lines = (node.end_lineno or 0) - node.lineno + 1 - docstring
            if lines > FUNCTION_LINES_MAX:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}: {lines} lines"
