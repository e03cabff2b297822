"""`billing-jobs config`: what people, shells and programs see of the settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import REPOSITORY, Ended, Run, runner

from billing_jobs.config import Settings

PASSWORD = "hunter2-geheim"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in an empty directory."""
    return runner(tmp_path, monkeypatch, capsys)


def test_show_prints_every_setting(run: Run) -> None:
    """Nobody should have to read the source to know what holds."""
    ended = run("config", "show")

    assert ended.status == 0
    lines = ended.out.splitlines()
    assert lines[0].split() == ["setting", "value"]
    assert [line.split()[0] for line in lines[1:]] == list(Settings.model_fields)
    assert "reconcile_ladder_seconds         30s,2m,10m,1h,6h,24h" in lines


def test_show_tells_where_each_value_came_from(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question of every incident: which of the four places won?"""
    (tmp_path / "site.toml").write_text("max_attempts = 2\n")
    (tmp_path / "key").write_text("sk_test_1")
    monkeypatch.setenv("BILLING_JOBS_STRIPE_API_KEY_FILE", "key")
    monkeypatch.setenv("BILLING_JOBS_RING_BACKLOG", "3")

    ended = run("config", "show", "--sources")
    told = json.loads(run("config", "show", "--sources", "--json").out)

    assert ended.out.splitlines()[0].split() == ["setting", "value", "source"]
    assert told["max_attempts"] == {"value": 2, "source": f"file {tmp_path / 'site.toml'}"}
    assert told["ring_backlog"] == {"value": 3, "source": "env BILLING_JOBS_RING_BACKLOG"}
    assert told["stripe_api_key"] == {
        "value": "**********",
        "source": f"secret file {tmp_path / 'key'}",
    }
    assert told["tenant"] == {"value": "default", "source": "default"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", "--json"),
        ("show", "--sources"),
        ("show", "--sources", "--json"),
        ("validate", "--json"),
        ("env",),
        ("env", "--json"),
        ("reference",),
    ],
)
def test_no_command_shows_a_secret(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """The output goes into tickets and chats."""
    monkeypatch.setenv("BILLING_JOBS_DATABASE_URL", f"postgres://app:{PASSWORD}@db/x")
    monkeypatch.setenv("BILLING_JOBS_STRIPE_API_KEY", PASSWORD)
    monkeypatch.setenv("REDIS_URL", f"redis://:{PASSWORD}@cache")

    ended = run("config", *arguments)

    assert ended.status == 0
    assert PASSWORD not in ended.out + ended.err


def test_json_has_numbers_where_people_see_units(run: Run) -> None:
    """Programs should not have to parse `5m`."""
    told = json.loads(run("config", "show", "--json").out)

    assert list(told) == list(Settings.model_fields)
    assert told["attempt_deadline_seconds"] == 300.0
    assert told["prepared_statements"] is True
    assert told["database_url"] is None


def test_env_prints_lines_that_a_shell_can_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`billing-jobs config env > site.env` is the start of an installation."""
    monkeypatch.setenv("BILLING_JOBS_MAIL_FROM", "Billing <billing@example.com>")

    out = run("config", "env").out.splitlines()

    assert "BILLING_JOBS_MAIL_FROM='Billing <billing@example.com>'" in out
    assert "BILLING_JOBS_LEASE_TTL_SECONDS=20s" in out
    assert "# BILLING_JOBS_DATABASE_URL=" in out
    assert len(out) == len(Settings.model_fields)
    assert json.loads(run("config", "env", "--json").out)["BILLING_JOBS_DATABASE_URL"] is None


def test_validate_says_that_all_is_well_and_what_was_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`valid` alone would not tell that the file was not found."""
    assert run("config", "validate").out == ("The settings are valid. Beside defaults: nothing.\n")

    monkeypatch.setenv("BILLING_JOBS_TENANT", "acme")
    assert run("config", "validate").out.endswith("defaults: env BILLING_JOBS_TENANT.\n")
    assert json.loads(run("config", "validate", "--json").out) == {
        "valid": True,
        "problems": [],
        "sources": ["env BILLING_JOBS_TENANT"],
    }


@pytest.mark.parametrize("name", ["show", "validate", "env"])
def test_bad_settings_are_told_all_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Every command that needs settings refuses them in the same words."""
    monkeypatch.setenv("BILLING_JOBS_TENNANT", "acme")
    monkeypatch.setenv("BILLING_JOBS_MAX_ATTEMPTS", "none")

    ended = run("config", name)

    assert ended == Ended(
        2,
        "",
        "Error: The settings cannot be used; nothing was started.\n"
        "  - BILLING_JOBS_TENNANT (environment): there is no setting of this name; "
        "did you mean BILLING_JOBS_TENANT?\n"
        "  - max_attempts = none (env BILLING_JOBS_MAX_ATTEMPTS): "
        "expected a whole number from 1 to 25\n"
        "Explained in docs/errors/settings-invalid.md\n"
        "For the traceback: billing-jobs --debug ...\n",
    )
    assert (REPOSITORY / "docs/errors/settings-invalid.md").is_file()


def test_validate_tells_programs_what_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment pipeline shows the list in its own way."""
    monkeypatch.setenv("BILLING_JOBS_MAX_ATTEMPTS", "none")

    ended = run("config", "validate", "--json")

    assert (ended.status, ended.err) == (2, "")
    told = json.loads(ended.out)
    assert told["valid"] is False
    assert len(told["problems"]) == 1


def test_reference_prints_the_page_of_the_documentation(run: Run) -> None:
    """So that the page is made again by one command after a change of the model."""
    page = (REPOSITORY / "docs/reference/settings.md").read_text(encoding="utf-8")

    assert run("config", "reference").out == page
