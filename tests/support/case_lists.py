"""Where each case of tests/cases stands: in a test, named as covered by one, or pending."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

TESTS = Path(__file__).resolve().parents[1]
CASES = TESTS / "cases"

# Test functions are written in small letters, parameter ids as the case is: both count.
_IN_A_NAME = re.compile(r"test_(?P<id>[CcDd][0-9]{2,3})(?:_|$)")
_IN_AN_ID = re.compile(r"(?P<id>[CD][0-9]{2,3})(?:[-_ ].*)?")


def billing_cases() -> dict[str, dict[str, Any]]:
    """The billing cases by id."""
    cases = json.loads((CASES / "billing_cases.json").read_text(encoding="utf-8"))
    return {case["id"]: case for case in cases}


def celery_case_ids() -> list[str]:
    """The ids of the Celery failure cases, in the order of their tables."""
    text = (CASES / "celery_failures.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (C[0-9]{3}) \|", text, re.MULTILINE)


def pending(kind: str) -> dict[str, str]:
    """The cases of a kind that no test proves yet, each with what it waits for."""
    lists = json.loads((CASES / "pending.json").read_text(encoding="utf-8"))
    return cast("dict[str, str]", lists[kind])


def covered() -> dict[str, dict[str, str]]:
    """Cases that a test without their id proves: the test, and why it would fail."""
    text = (CASES / "covered.json").read_text(encoding="utf-8")
    return cast("dict[str, dict[str, str]]", json.loads(text))


def told(waiting: Mapping[str, str]) -> str:
    """The pending cases as a list to print, by what they wait for."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for case_id, reason in waiting.items():
        by_reason[reason].append(case_id)
    lines = [f"    {reason}: {', '.join(ids)}" for reason, ids in by_reason.items()]
    return "\n".join([f"{len(waiting)} cases are pending", *lines])


def ids_in_tests(folder: Path = TESTS) -> dict[str, set[str]]:
    """
    Case ids that tests carry, with the names of those tests.

    An id counts in a function's name (`test_c014_...`) or as a parameter of it: a text inside
    `parametrize(...)`, or inside a table of the module that `parametrize(...)` names.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        tables = _tables(module)
        for function in _functions(module):
            for case_id in _ids_of(function, tables):
                found[case_id].add(f"{path.relative_to(folder.parent).as_posix()}::{function.name}")
    return dict(found)


def names_of_tests(folder: Path = TESTS) -> set[str]:
    """Every test function as file::name, the file relative to the root of the repository."""
    return {
        f"{path.relative_to(folder.parent).as_posix()}::{function.name}"
        for path in folder.rglob("test_*.py")
        for function in _functions(ast.parse(path.read_text(encoding="utf-8")))
    }


def _functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test_"):
                yield node
            case _:
                continue


def _tables(module: ast.Module) -> dict[str, ast.expr]:
    tables: dict[str, ast.expr] = {}
    for node in module.body:
        if isinstance(node, ast.Assign):
            tables |= {name.id: node.value for name in node.targets if isinstance(name, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            tables[node.target.id] = node.value
    return tables


def _ids_of(
    function: ast.FunctionDef | ast.AsyncFunctionDef, tables: Mapping[str, ast.expr]
) -> Iterator[str]:
    in_name = _IN_A_NAME.match(function.name)
    if in_name:
        yield in_name["id"].upper()
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("parametrize"):
            for node in ast.walk(decorator):
                named = tables.get(node.id) if isinstance(node, ast.Name) else None
                for inner in ast.walk(named or node):
                    yield from _ids_of_text(inner)


def _ids_of_text(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        match = _IN_AN_ID.fullmatch(node.value)
        if match:
            yield match["id"]
