"""What is shown of settings: masked secrets, and a reference that is true."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from pydantic import Secret

from billing_jobs import config_sources, config_values
from billing_jobs.cli.config import settings_page
from billing_jobs.config import SECRET_FIELDS, Settings, default_text, load_settings, masked
from billing_jobs.config_sources import variable
from billing_jobs.config_values import SecretUrl, allowed_text
from billing_jobs.domain.errors import SettingsInvalid

REPOSITORY = Path(__file__).parents[2]
PASSWORD = "hunter2-geheim"


def load(directory: Path, **given: object) -> Settings:
    """Load from options only, and from no file of the machine the test runs on."""
    (directory / "empty.toml").touch()
    environ = {"BILLING_JOBS_CONFIG": str(directory / "empty.toml"), "HOME": str(directory)}
    return load_settings(given, environ, directory)


def problems(directory: Path, **given: object) -> tuple[str, ...]:
    """Load what must be refused, and return what was told."""
    with pytest.raises(SettingsInvalid) as refused:
        load(directory, **given)
    return refused.value.problems


def secrets(password: str) -> dict[str, str]:
    """Plant a password in each setting that may hold one."""
    return {
        "database_url": f"postgresql://app:{password}@db/x",
        "broker_url": f"sentinel://:{password}@a:1;sentinel://:{password}@b:1",
        "smtp_url": f"smtp://mailer:{password}@mail:25",
        "stripe_api_key": password,
    }


@pytest.mark.parametrize("password", [PASSWORD, f"{PASSWORD}/;:?#@{PASSWORD}", f"@{PASSWORD}"])
def test_secrets_are_masked_wherever_settings_are_shown(tmp_path: Path, password: str) -> None:
    """Settings end up in tickets, shells and logs."""
    settings = load(tmp_path, **secrets(password))

    shown = (repr(settings), str(settings), str(masked(settings)), settings.model_dump_json())
    assert not any(PASSWORD in text for text in shown)
    assert masked(settings)["database_url"] == "postgresql+psycopg://app:***@db/x"
    assert masked(settings)["broker_url"] == "sentinel://:***@a:1;sentinel://:***@b:1"
    assert settings.stripe_api_key is not None
    assert settings.stripe_api_key.get_secret_value() == password


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", f"mysql://app:{PASSWORD}@db/x"),
        ("database_url", f"mysql://db/x?user=app&password={PASSWORD}"),
        ("database_url", f"postgresql://app:{PASSWORD} @db/x"),
        ("database_url", f"app:{PASSWORD}@db/x"),
        ("broker_url", [f"redis://:{PASSWORD}@h"]),
        ("stripe_api_key", f"{PASSWORD} "),
        ("stripe_api_key", {"key": PASSWORD}),
        ("sandbox_url", f"http://user:{PASSWORD}@h"),
        ("mail_from", f"postgresql://app:{PASSWORD}@db/x"),
    ],
)
def test_secrets_are_masked_in_errors(tmp_path: Path, name: str, value: object) -> None:
    """The first thing a person does with an error is to send it to somebody."""
    told = problems(tmp_path, **{name: value})

    assert len(told) == 1
    assert PASSWORD not in told[0]


def test_secrets_are_masked_in_relations(tmp_path: Path) -> None:
    """A relation quotes several values, and one of them may be a URL."""
    url = f"postgresql://u:{PASSWORD}@h.io/x"

    told = problems(tmp_path, env="prod", database_url=url, broker_url="redis://h")

    assert "env = prod (option), database_url = postgresql://u:***@h.io/x (option): " in told[-1]
    assert PASSWORD not in "".join(told)


def test_the_list_of_secrets_is_that_of_the_model() -> None:
    """A new secret that is not in the list could not be given as a file, and would be shown."""
    secret = {
        name
        for name, field in Settings.model_fields.items()
        if any("Secret" in str(part) for part in (field.annotation, *get_args(field.annotation)))
    }

    assert secret == set(SECRET_FIELDS)
    assert issubclass(SecretUrl, Secret)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_each_setting_is_explained_in_one_sentence(name: str) -> None:
    """A knob that nobody can explain is a knob that nobody may turn."""
    field = Settings.model_fields[name]

    assert field.description is not None
    assert field.description[0].isupper()
    assert field.description.endswith(".")
    assert allowed_text(field)
    assert variable(name) == f"BILLING_JOBS_{name.upper()}"


@pytest.mark.parametrize("name", [n for n in Settings.model_fields if n != "data_dir"])
def test_each_default_is_itself_accepted(tmp_path: Path, name: str) -> None:
    """What `config env` and the reference print can be put back, and means the same."""
    text = default_text(name)

    settings = load(tmp_path, **({name: text} if text else {}))

    assert getattr(settings, name) == getattr(load(tmp_path), name)


def test_the_reference_page_is_the_one_made_from_the_model() -> None:
    """After a change: `billing-jobs config reference > docs/reference/settings.md`."""
    page = (REPOSITORY / "docs/reference/settings.md").read_text(encoding="utf-8")

    assert page == settings_page()
    assert all(f"`{variable(name)}`" in page for name in Settings.model_fields)


@pytest.mark.parametrize("module", [config_sources, config_values], ids=lambda m: m.__name__)
def test_the_examples_in_docstrings_are_true(module: ModuleType) -> None:
    """An example that is wrong teaches the wrong thing."""
    result = doctest.testmod(module)

    assert result.attempted > 0
    assert result.failed == 0
