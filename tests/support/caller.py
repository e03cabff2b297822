"""
A plain process of another service, kept running so that each call costs no start of Python.

Run as a program it reads one snippet of Python a line (as JSON) and answers with the value of its
last expression, or the error that it raised, and how long it took.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A process that does not end when its input ends is killed after this long.
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a snippet came to."""

    value: Any
    error: str | None
    message: str
    seconds: float


@dataclass
class Caller:
    """The running process."""

    process: subprocess.Popen[str]

    def run(self, code: str) -> Answer:
        """Run a snippet; errors come back as values."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the caller's process ended"
        return Answer(**json.loads(line))

    def value(self, code: str) -> Any:  # noqa: ANN401 - whatever the snippet says
        """Run a snippet that must not fail; return its value."""
        answer = self.run(code)
        assert answer.error is None, f"{answer.error}: {answer.message}"
        return answer.value


@contextmanager
def caller(directory: Path, environment: Mapping[str, str]) -> Iterator[Caller]:
    """Run a process with exactly this environment until the block ends."""
    with (directory / "caller.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield Caller(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _serve() -> None:
    names: dict[str, Any] = {}
    answers = sys.stdout
    # What snippets print must not be taken for an answer.
    sys.stdout = sys.stderr
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line), names), default=str) + "\n")
        answers.flush()


def _answer(code: str, names: dict[str, Any]) -> dict[str, Any]:
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    started, value, error, message = time.monotonic(), None, None, ""
    try:
        exec(compile(ast.Module(body, []), "<snippet>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<snippet>", "eval"), names)
    except Exception as raised:  # noqa: BLE001 - the answer is the error
        error, message = type(raised).__name__, str(raised)
    return {
        "value": value,
        "error": error,
        "message": message,
        "seconds": time.monotonic() - started,
    }


if __name__ == "__main__":
    _serve()
