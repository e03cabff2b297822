"""The settings: what is accepted, what is refused and how it is told."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from billing_jobs.config import Settings, load_settings, settings_with_sources
from billing_jobs.config_values import duration_text, parse_duration
from billing_jobs.domain.errors import SettingsInvalid

PRODUCTION = {
    "BILLING_JOBS_ENV": "prod",
    "BILLING_JOBS_DATABASE_URL": "postgresql://app:pw@db.example.com/billing?sslmode=require",
    "BILLING_JOBS_BROKER_URL": "rediss://broker.example.com:6379/0",
    "BILLING_JOBS_GATEWAY": "stripe",
    "BILLING_JOBS_STRIPE_API_KEY": "sk_live_0123456789",
}


def environment(directory: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name an empty file, so that no file of the machine the test runs on has a say."""
    empty = directory / "empty.toml"
    empty.touch()
    return {
        "BILLING_JOBS_CONFIG": str(empty),
        "HOME": str(directory / "home"),
        **(variables or {}),
    }


def load(
    directory: Path,
    options: Mapping[str, object] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Settings:
    """Load from these options and variables only."""
    return load_settings(options, environment(directory, variables), directory)


def problems(
    directory: Path,
    options: Mapping[str, object] | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Load what must be refused, and return what was told."""
    with pytest.raises(SettingsInvalid) as refused:
        load(directory, options, variables)
    return refused.value.problems


def test_without_any_source_the_defaults_are_those_of_the_design(tmp_path: Path) -> None:
    """A person who sets nothing gets a working installation with the documented values."""
    settings = load(tmp_path)

    assert settings.env == "dev"
    assert settings.database_url is None
    assert settings.max_attempts == 4
    assert list(settings.reconcile_ladder_seconds) == [30, 120, 600, 3600, 21600, 86400]
    assert settings.ring_timeout_seconds == 0.2
    assert settings.data_dir == tmp_path / "home/.local/share/billing-jobs/dev"


def test_a_stronger_source_wins(tmp_path: Path) -> None:
    """Operators override a file with the environment and that with an option, never otherwise."""
    file = tmp_path / "site.toml"
    file.write_text("max_attempts = 2\nring_backlog = 3\nworker_concurrency = 4\n")
    variables = {
        "BILLING_JOBS_CONFIG": str(file),
        "BILLING_JOBS_MAX_ATTEMPTS": "5",
        "BILLING_JOBS_RING_BACKLOG": "6",
    }

    settings, sources = settings_with_sources(
        {"max_attempts": 7, "ring_backlog": None}, environment(tmp_path, variables), tmp_path
    )

    assert (settings.max_attempts, settings.ring_backlog, settings.worker_concurrency) == (7, 6, 4)
    assert sources["max_attempts"] == "option"
    assert sources["ring_backlog"] == "env BILLING_JOBS_RING_BACKLOG"
    assert sources["worker_concurrency"] == f"file {file}"
    assert sources["tenant"] == "default"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("250ms", 0.25), ("1s", 1.0), ("1", 1.0), (" 0.5 s ", 0.5), ("0.3", 0.3)],
)
def test_a_duration_may_have_a_unit(tmp_path: Path, written: str, seconds: float) -> None:
    """People write 250ms; nobody should have to compute 0.25."""
    assert load(
        tmp_path, variables={"BILLING_JOBS_DISPATCH_INTERVAL_SECONDS": written}
    ) == Settings(dispatch_interval_seconds=seconds, data_dir=load(tmp_path).data_dir)


@pytest.mark.parametrize("seconds", [0.0, 0.25, 1.5, 30.0, 90.0, 300.0, 7200.0, 0.0001])
def test_a_duration_is_written_as_it_may_be_given(seconds: float) -> None:
    """`config env` prints what can be put back."""
    assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize("written", ["soon", "-1s", "5 minutes", "", "inf", "nan", "1e3s"])
def test_a_text_that_is_no_duration_is_refused(tmp_path: Path, written: str) -> None:
    """A unit that is not understood must not become seconds."""
    (problem,) = problems(tmp_path, {"lease_ttl_seconds": written})

    assert problem == (
        f"lease_ttl_seconds = {written} (option): "
        "this is no duration; expected a duration from 1s to 1h"
    )


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("30s,2m", (30, 120)), ("30s, 1h", (30, 3600)), ([1, "5m"], (1, 300)), ("10", (10,))],
)
def test_a_ladder_is_a_list_or_a_text_with_commas(
    tmp_path: Path, given: object, seconds: tuple[float, ...]
) -> None:
    """The environment has texts only, files have lists."""
    assert load(tmp_path, {"reconcile_ladder_seconds": given}).reconcile_ladder_seconds == seconds


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "POSTGRES"])
def test_database_urls_are_normalised_to_the_driver_we_ship(tmp_path: Path, scheme: str) -> None:
    """Platforms hand out postgres://, SQLAlchemy needs the driver's name."""
    url = load(tmp_path, {"database_url": f"{scheme}://u:p@h/x"}).database_url

    assert url is not None
    assert url.get_secret_value() == "postgresql+psycopg://u:p@h/x"


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:6379/0",
        "rediss://h",
        "redis+socket:///run/x.sock",
        "sentinel://a:1;sentinel://b:1",
    ],
)
def test_the_brokers_of_the_design_are_accepted(tmp_path: Path, url: str) -> None:
    """Redis, Valkey and Sentinel, over TCP, TLS and sockets."""
    broker = load(tmp_path, {"broker_url": url}).broker_url

    assert broker is not None
    assert broker.get_secret_value() == url


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("database_url", "mysql://h/x", "only Postgres is supported"),
        ("database_url", "postgresql+asyncpg://h/x", "psycopg is the only driver"),
        ("database_url", "postgresql://", "not such a URL"),
        ("database_url", "postgres", "not such a URL"),
        ("database_url", 5432, "expected postgresql://"),
        ("database_url", "postgresql://u:p w@h/x", "a space in a URL is written %20"),
        ("broker_url", "amqp://h", "RabbitMQ is not supported yet"),
        ("broker_url", "valkey://h", "Valkey is written redis://"),
        ("broker_url", "unix:///run/x", "a socket is written redis+socket:///path"),
        ("smtp_url", "http://h", "expected smtp://"),
        ("sandbox_url", "ftp://h", "expected a URL that begins with http://"),
        ("sandbox_url", "http://user:pw@h", "without user and password"),
        ("env", "production", "expected one of dev, test, prod"),
        ("gateway", "paypal", "expected one of sandbox, stripe"),
        ("log_level", "LOUD", "expected one of DEBUG, INFO, WARNING, ERROR"),
        ("max_attempts", 0, "expected a whole number from 1 to 25"),
        ("max_attempts", 26, "expected a whole number from 1 to 25"),
        ("max_attempts", "2.5", "expected a whole number from 1 to 25"),
        ("max_attempts", True, "this is true or false, and no number"),
        ("lease_ttl_seconds", True, "this is no duration"),
        ("lease_ttl_seconds", "999ms", "expected a duration from 1s to 1h"),
        ("ring_timeout_seconds", "301ms", "expected a duration from 10ms to 300ms"),
        ("dispatch_interval_seconds", "49ms", "expected a duration from 50ms to 1s"),
        ("reconcile_ladder_seconds", "", "expected 1 to 20 ascending durations"),
        ("reconcile_ladder_seconds", "30s,", "expected 1 to 20 ascending durations"),
        ("reconcile_ladder_seconds", list(range(1, 22)), "expected 1 to 20 ascending durations"),
        ("prepared_statements", "perhaps", "expected true or false"),
        ("tenant", "a b", "expected 1 to 64 letters"),
        ("tenant", False, "expected 1 to 64 letters"),
        ("celery_config", "celery-config", "expected the name of a Python module"),
        ("mail_from", "billing", "expected an address"),
        ("mail_from", "a@b\r\nBcc: c@d", "expected an address"),
        ("flower_address", "0.0.0.0:5555/x", "expected an IP address or the name of a host"),
        ("stripe_api_key", "a b", "expected 1 to 500 characters without spaces"),
        ("data_dir", 5, "expected a directory"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(
    tmp_path: Path, name: str, value: object, reason: str
) -> None:
    """The line names the setting and what would be accepted, so that nobody has to look it up."""
    (problem,) = problems(tmp_path, {name: value})

    assert problem.startswith(f"{name} = ")
    assert "(option)" in problem
    assert reason in problem


@pytest.mark.parametrize("value", ["info", "INFO", "Info"])
def test_the_log_level_is_read_in_any_case(tmp_path: Path, value: str) -> None:
    """Both spellings are common, and neither is a mistake."""
    assert load(tmp_path, {"log_level": value}).log_level == "INFO"


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """A person repairs a configuration in one go, not one restart a mistake."""
    file = tmp_path / "site.yaml"
    file.write_text("max_atempts: 3\nring_backlog: many\n")

    told = problems(
        tmp_path,
        {"worker_concurrency": 0},
        {
            "BILLING_JOBS_CONFIG": str(file),
            "BILLING_JOBS_LEASE_TTL": "20s",
            "BILLING_JOBS_ATTEMPT_DEADLINE_SECONDS": "10s",
            "BILLING_JOBS_ENV": "prod",
            "BILLING_JOBS_DATABASE_URL": "mysql://h/x",
        },
    )

    assert "did you mean BILLING_JOBS_LEASE_TTL_SECONDS?" in told[0]
    assert f"max_atempts (file {file}): there is no setting of this name" in told[1]
    assert "did you mean max_attempts?" in told[1]
    text = "\n".join(told)
    assert f"ring_backlog = many (file {file}): expected a whole number from 1 to 100" in text
    assert "worker_concurrency = 0 (option)" in text
    assert "database_url = mysql://h/x (env BILLING_JOBS_DATABASE_URL)" in text
    assert "attempt_deadline_seconds = 10s (env BILLING_JOBS_ATTEMPT_DEADLINE_SECONDS)" in text
    assert "broker_url is not set" in text
    assert "database_url is not set" not in text, "a bad value is told once"


def test_an_error_survives_pickle(tmp_path: Path) -> None:
    """Celery and multiprocessing carry errors between processes."""
    with pytest.raises(SettingsInvalid) as refused:
        load(tmp_path, {"max_attempts": 0})

    copy = pickle.loads(pickle.dumps(refused.value))
    assert copy.problems == refused.value.problems


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (
            {"gateway_read_timeout_seconds": "297s"},
            ("gateway_connect_timeout_seconds = 3s", "gateway_read_timeout_seconds = 297s"),
        ),
        ({"mail_timeout_seconds": "300s"}, ("mail_timeout_seconds = 300s", "= 5m (default)")),
        ({"reconcile_ladder_seconds": "30s,30s"}, ("reconcile_ladder_seconds = 30s,30s",)),
        ({"reconcile_ladder_seconds": "2m,30s"}, ("reconcile_ladder_seconds = 2m,30s",)),
        ({"gateway": "stripe"}, ("gateway = stripe", "stripe_api_key is not set")),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    tmp_path: Path, options: Mapping[str, object], names: tuple[str, ...]
) -> None:
    """A time-out beyond the deadline would let two workers charge; both values are named."""
    (problem,) = problems(tmp_path, options)

    assert all(name in problem for name in names)


def test_a_relation_is_not_judged_on_a_value_that_is_refused(tmp_path: Path) -> None:
    """Judging the default in its place would accuse a value that fits."""
    told = problems(
        tmp_path, {"gateway_read_timeout_seconds": "299s", "attempt_deadline_seconds": "much"}
    )

    assert len(told) == 1
    assert told[0].startswith("attempt_deadline_seconds = much (option)")


def test_settings_at_the_edge_of_a_relation_are_accepted(tmp_path: Path) -> None:
    """The rule is `shorter than`, and one notch below is fine."""
    load(tmp_path, {"gateway_read_timeout_seconds": "296s", "mail_timeout_seconds": "299s"})
    load(tmp_path, {"reconcile_ladder_seconds": "1s"})
    load(tmp_path, {"gateway": "stripe", "stripe_api_key": "sk_test_1"})


def test_a_complete_production_configuration_is_accepted(tmp_path: Path) -> None:
    """The strictness of prod must not refuse what a site has to run."""
    assert load(tmp_path, variables=PRODUCTION).env == "prod"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"BILLING_JOBS_GATEWAY": "sandbox"}, "the sandbox moves no money"),
        ({"BILLING_JOBS_DATABASE_URL": ""}, "set BILLING_JOBS_DATABASE_URL"),
        ({"BILLING_JOBS_BROKER_URL": ""}, "set BILLING_JOBS_BROKER_URL"),
        ({"BILLING_JOBS_STRIPE_API_KEY": ""}, "set BILLING_JOBS_STRIPE_API_KEY"),
    ],
)
def test_production_refuses_what_only_suits_trying(
    tmp_path: Path, changed: Mapping[str, str], expected: str
) -> None:
    """An embedded database or a sandbox in production loses money quietly."""
    (problem,) = problems(tmp_path, variables={**PRODUCTION, **changed})

    assert expected in problem


@pytest.mark.parametrize(
    ("rest", "accepted"),
    [
        ("u:p@db.example.com/x", False),
        ("u:p@db.example.com/x?sslmode=prefer", False),
        ("u:p@a.example.com,b.example.com:5432/x?sslmode=verify-full", True),
        ("u:p@localhost,b.example.com/x", False),
        ("u:p@localhost.evil.example/x", False),
        ("u:p@127.0.0.1:5432/x", True),
        ("u:p@[::1]:5432/x", True),
        ("u:p@localhost/x", True),
        ("/x?host=/run/postgresql", True),
        ("/x?host=db.example.com", False),
        ("u:p@%2Frun%2Fpostgresql/x", True),
    ],
)
def test_production_reaches_other_hosts_over_tls_only(
    tmp_path: Path, rest: str, *, accepted: bool
) -> None:
    """A password in the clear on a network is worth refusing to start."""
    variables = {**PRODUCTION, "BILLING_JOBS_DATABASE_URL": f"postgresql://{rest}"}

    if accepted:
        assert load(tmp_path, variables=variables).env == "prod"
    else:
        assert "another host is reached over TLS only" in problems(tmp_path, variables=variables)[0]


def test_settings_made_directly_hold_the_same_relations() -> None:
    """There is no way around the checks, and the message quotes no value."""
    with pytest.raises(ValidationError) as refused:
        Settings(gateway="stripe", data_dir=Path("/x"))

    assert "set BILLING_JOBS_STRIPE_API_KEY" in str(refused.value)

    with pytest.raises(ValidationError) as refused:
        Settings.model_validate({"stripe_api_key": "hunter2 geheim"})
    assert "hunter2" not in str(refused.value)


def test_settings_made_directly_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """pydantic-settings would; then no error could say where a value came from."""
    monkeypatch.setenv("BILLING_JOBS_MAX_ATTEMPTS", "9")
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/data")

    settings = Settings()

    assert settings.max_attempts == 4
    assert settings.data_dir == Path("/srv/data/billing-jobs/dev")


def test_settings_do_not_change(tmp_path: Path) -> None:
    """What was checked at the start is what holds until the end."""
    settings = load(tmp_path)

    with pytest.raises(ValidationError):
        settings.max_attempts = 5
