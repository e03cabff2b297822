"""The pages about the sandbox against the sandbox: a page that drifts sends people into a wall."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.stripe_client import PATH, confirm, create
from support.wire import sandbox_process

from billing_jobs.sandbox import mail
from billing_jobs.sandbox.faults import Fault, token_rule

_DOCS = Path(__file__).parents[2] / "docs"
_REFERENCE = (_DOCS / "reference" / "sandbox.md").read_text(encoding="utf-8")
_HOW_TO = (_DOCS / "how-to" / "break-the-gateway.md").read_text(encoding="utf-8")


def test_the_reference_names_every_fault_and_no_other() -> None:
    """A fault that is not on the page is not found; one too much is a token that is refused."""
    named = set(re.findall(r"`pm_sandbox_([a-z_]+)`", _REFERENCE)) - {"ok"}

    assert {name for name in named if not name.startswith("decline_")} == (
        {fault.value for fault in Fault} - {"decline"}
    )
    assert "`pm_sandbox_decline_<code>`" in _REFERENCE


def test_tokens_in_the_how_to_are_known() -> None:
    """Whoever copies one must not get `resource_missing`."""
    tokens = set(re.findall(r"pm_sandbox_[a-z0-9_]+", _HOW_TO + _REFERENCE))

    unknown = {token for token in tokens if token_rule(token) is None}
    assert unknown <= {"pm_sandbox_", "pm_sandbox_decline_"}


def test_the_reference_names_every_failing_domain() -> None:
    """The same for mails."""
    for domain in (*mail._AT_RCPT, *mail._AT_DATA, mail._DROP_AFTER_DATA):  # noqa: SLF001
        assert f"`{domain}`" in _REFERENCE


def test_the_reference_names_every_endpoint(tmp_path: Path) -> None:
    """The sandbox lists its endpoints itself when it is asked for a wrong one."""
    with sandbox_process(tmp_path) as sandbox:
        answer = sandbox.http.request("GET", f"{sandbox.url}/sandbox/nothing")

    known = answer.json()["error"]["message"].partition("there are")[2]
    endpoints = re.findall(r"(?:GET|POST) /sandbox/[a-z]+", known)
    assert len(endpoints) == 7
    for endpoint in endpoints:
        assert f"`{endpoint}`" in _REFERENCE


@pytest.mark.parametrize("number", [0, 1])
def test_the_code_of_the_how_to_runs(number: int) -> None:
    """The second block goes on where the first one ends."""
    blocks = re.findall(r"```python\n(.*?)```", _HOW_TO, re.DOTALL)

    program = "\n".join(blocks[: number + 1])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert len(blocks) == 2


def test_the_commands_of_the_how_to_are_taken(tmp_path: Path) -> None:
    """The bodies that the page gives to curl, sent as curl sends them."""
    bodies = re.findall(r"/sandbox/(faults|clock)[ \\\n]+-d '(.*?)'", _HOW_TO, re.DOTALL)
    with sandbox_process(tmp_path) as sandbox:
        for endpoint, body in bodies:
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            url = f"{sandbox.url}/sandbox/{endpoint}"
            answer = sandbox.http.request("POST", url, body=body, headers=headers)
            assert answer.status == 200, answer.data
        basic = {"Authorization": "Basic c2tfdGVzdDo="}
        listed = sandbox.http.request("GET", sandbox.url + PATH, headers=basic)
        sandbox.set_faults()
        paid = confirm(sandbox, create(sandbox)["id"])

    assert len(bodies) == 4
    assert (listed.status, paid.status) == (200, 200)
