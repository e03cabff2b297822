"""Where settings come from: files, secret files, the environment, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from billing_jobs.config import Settings, child_environment, settings_with_sources
from billing_jobs.config_sources import Known, Layers, default_data_dir, read_layers
from billing_jobs.config_values import SecretUrl
from billing_jobs.domain.errors import SettingsInvalid

KNOWN = Known(names=("max_attempts", "tenant", "database_url"), secrets=("database_url",))
SECRET = "hunter2-geheim"


def read(
    cwd: Path, variables: Mapping[str, str] | None = None, *, system: Path | None = None
) -> Layers:
    """Read from this directory, as if nothing else were on the machine."""
    return read_layers(
        KNOWN,
        overrides={},
        environ=variables or {},
        cwd=cwd,
        system_directory=system or cwd / "no-system-directory",
    )


def refused(cwd: Path, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Load what must be refused."""
    with pytest.raises(SettingsInvalid) as error:
        settings_with_sources(environ=variables, cwd=cwd)
    return error.value.problems


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("billing-jobs.toml", "max_attempts = 3\nlease_ttl_seconds = '1m'\n"),
        ("billing-jobs.yaml", "max_attempts: 3\nlease_ttl_seconds: 1m\n"),
        ("billing-jobs.yml", "# by hand\nmax_attempts: 3\nlease_ttl_seconds: 60\n"),
    ],
)
def test_the_file_of_the_working_directory_is_read_by_its_suffix(
    tmp_path: Path, name: str, text: str
) -> None:
    """TOML and YAML say the same, and the path may hold spaces."""
    directory = tmp_path / "a site"
    directory.mkdir()
    (directory / name).write_text(text)

    settings, sources = settings_with_sources(environ={}, cwd=directory)

    assert (settings.max_attempts, settings.lease_ttl_seconds) == (3, 60)
    assert sources["max_attempts"] == f"file {directory / name}"


def test_one_file_is_read_the_nearest(tmp_path: Path) -> None:
    """Values of two files never mix: the named one, else the directory's, else the system's."""
    system = tmp_path / "etc"
    system.mkdir()
    (system / "config.toml").write_text("max_attempts = 1\n")
    assert read(tmp_path, system=system).found["max_attempts"].raw == 1

    (tmp_path / "billing-jobs.toml").write_text("tenant = 'here'\n")
    assert "max_attempts" not in read(tmp_path, system=system).found

    (tmp_path / "named.yml").write_text("tenant: named\n")
    named = {"BILLING_JOBS_CONFIG": "named.yml"}
    assert read(tmp_path, named, system=system).found["tenant"].raw == "named"


def test_without_a_file_nothing_is_missed(tmp_path: Path) -> None:
    """A configuration file is an offer."""
    layers = read(tmp_path)

    assert not layers.problems
    assert set(layers.found) == {"data_dir"}


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
@pytest.mark.parametrize("suffix", ["toml", "yaml"])
def test_an_empty_file_sets_nothing(tmp_path: Path, text: str, suffix: str) -> None:
    """A file whose lines are all commented out is a common start."""
    (tmp_path / f"billing-jobs.{suffix}").write_text(text)

    assert not read(tmp_path).problems


@pytest.mark.parametrize(
    ("files", "variables", "told"),
    [
        (("billing-jobs.toml", "billing-jobs.yaml"), {}, "several configuration files"),
        (("billing-jobs.yaml", "billing-jobs.yml"), {}, "several configuration files"),
        (("billing-jobs.toml", "billing-jobs.json"), {}, "several configuration files"),
        (("billing-jobs.json",), {}, "ends in .toml, .yaml or .yml"),
        (("etc/config.toml", "etc/config.yml"), {}, "config.toml and config.yml"),
        (("site.json",), {"BILLING_JOBS_CONFIG": "site.json"}, "ends in .toml, .yaml or .yml"),
        ((), {"BILLING_JOBS_CONFIG": "site.toml"}, "no such file"),
        ((), {"BILLING_JOBS_CONFIG": "etc.toml"}, "is a directory"),
    ],
)
def test_a_file_that_is_not_clearly_meant_is_an_error(
    tmp_path: Path, files: tuple[str, ...], variables: Mapping[str, str], told: str
) -> None:
    """A silent choice between two files, or none, is a configuration that nobody chose."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc.toml").mkdir()
    for file in files:
        (tmp_path / file).write_text("")

    layers = read(tmp_path, variables, system=tmp_path / "etc")

    assert len(layers.problems) == 1
    assert told in layers.problems[0]
    assert layers.incomplete


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("billing-jobs.toml", b"tenant = no\n", "not TOML: Invalid value (at line 1, column 10)"),
        ("billing-jobs.yaml", b"tenant: [\n", "not YAML: "),
        ("billing-jobs.yaml", b"tenant: 2026-99-99\n", "not YAML: "),
        ("billing-jobs.yaml", b"tenant: \x00\n", "not YAML: "),
        ("billing-jobs.yaml", b"just a text\n", "expected lines of the form `name: value`"),
        ("billing-jobs.yaml", b"- a\n- list\n", "expected lines of the form `name: value`"),
        ("billing-jobs.toml", b"\xff\xfe", "it is not UTF-8 text"),
        ("billing-jobs.toml", b"#" * 1_048_577, "larger than 1048576 bytes"),
    ],
)
def test_a_broken_file_is_told_with_its_place(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    """Line and column are what a person needs to repair it."""
    (tmp_path / name).write_bytes(content)

    (problem,) = read(tmp_path).problems

    assert problem.startswith(f"file {tmp_path / name}: ")
    assert told in problem


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("billing-jobs.yaml", f"database_url: *{SECRET}\n"),
        ("billing-jobs.yaml", f"database_url: !{SECRET} x\n"),
        ("billing-jobs.yaml", f"database_url: '{SECRET}\n"),
        ("billing-jobs.toml", f"database_url = {SECRET}\n"),
        ("billing-jobs.toml", f"database_url = '{SECRET}\n"),
    ],
)
def test_a_broken_file_is_not_quoted(tmp_path: Path, name: str, text: str) -> None:
    """The broken line may be the one with the password, because it had odd characters."""
    (tmp_path / name).write_text(text)

    (problem,) = read(tmp_path).problems

    assert SECRET not in problem


def test_what_an_unreadable_file_would_have_set_is_not_missed(tmp_path: Path) -> None:
    """One broken line must not be followed by a list of settings that are all there."""
    (tmp_path / "billing-jobs.toml").write_text("database_url = \n")

    told = refused(tmp_path, {"BILLING_JOBS_ENV": "prod"})

    assert len(told) == 1
    assert "not TOML" in told[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [("tenant: no", "False"), ("max_attempts: yes", "True"), ("tenant: {a: 1}", "{'a': 1}")],
)
def test_what_yaml_makes_of_a_bare_word_is_refused(tmp_path: Path, text: str, value: str) -> None:
    """YAML 1.1 reads `no` as False; a tenant of that name must be quoted, not lost."""
    (tmp_path / "billing-jobs.yaml").write_text(text)

    (problem,) = refused(tmp_path, {})

    assert f"= {value} (file " in problem


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("BILLING_JOBS_MAX_ATEMPTS", "BILLING_JOBS_MAX_ATTEMPTS"),
        ("BILLING_JOBS_DATABASE_URL_FIEL", "BILLING_JOBS_DATABASE_URL_FILE"),
        ("BILLING_JOBS_CONFG", "BILLING_JOBS_CONFIG"),
        ("billing_jobs_tenant", "BILLING_JOBS_TENANT"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(
    tmp_path: Path, written: str, meant: str
) -> None:
    """A misspelt variable is a default that nobody chose."""
    (problem,) = read(tmp_path, {written: "1"}).problems

    assert problem == (
        f"{written} (environment): there is no setting of this name; did you mean {meant}?"
    )


def test_an_unknown_variable_that_resembles_nothing_gets_the_list(tmp_path: Path) -> None:
    """A guess that is far off sends people the wrong way."""
    (problem,) = read(tmp_path, {"BILLING_JOBS_ZZZ": "1"}).problems

    assert problem.endswith("`billing-jobs config env` lists all names")


@pytest.mark.parametrize("written", ["max_atempts", "MAX_ATTEMPTS", "max-attempts"])
def test_an_unknown_key_of_a_file_is_refused_with_the_nearest_name(
    tmp_path: Path, written: str
) -> None:
    """The same in a file; a section is a key too, and we have none."""
    (tmp_path / "billing-jobs.yaml").write_text(f"{written}: 3\n")

    (problem,) = read(tmp_path).problems

    assert "did you mean max_attempts?" in problem
    assert str(tmp_path / "billing-jobs.yaml") in problem


def test_other_variables_are_none_of_our_business(tmp_path: Path) -> None:
    """Only our prefix is ours, and the command's own variables are known."""
    variables = {"PATH": "/bin", "BILLING": "1", "BILLING_JOBS_DEBUG": "1", "MAX_ATTEMPTS": "9"}

    layers = read(tmp_path, variables)

    assert not layers.problems
    assert "max_attempts" not in layers.found


def test_a_variable_that_is_set_to_nothing_is_unset(tmp_path: Path) -> None:
    """Compose files write `VARIABLE=` for what they do not have."""
    variables = {"BILLING_JOBS_TENANT": " ", "BILLING_JOBS_CONFIG": "", "DATABASE_URL": ""}

    assert set(read(tmp_path, variables).found) == {"data_dir"}


def test_an_unknown_option_is_a_problem_and_not_ignored(tmp_path: Path) -> None:
    """A command that misspells an option's setting must not run with the default."""
    layers = read_layers(
        KNOWN, overrides={"max_atempts": 1, "tenant": None}, environ={}, cwd=tmp_path
    )

    assert layers.problems == [
        "max_atempts (option): there is no setting of this name; did you mean max_attempts?"
    ]


def test_a_secret_may_be_a_file(tmp_path: Path) -> None:
    """Docker, Kubernetes and systemd hand secrets over as files, with a newline at the end."""
    (tmp_path / "dsn").write_text("postgresql://app:pw@db/x\n")

    found = read(tmp_path, {"BILLING_JOBS_DATABASE_URL_FILE": "dsn"}).found["database_url"]

    assert found.raw == "postgresql://app:pw@db/x"
    assert found.source == f"secret file {tmp_path / 'dsn'}"


def test_a_secret_file_counts_more_than_the_configuration_file(tmp_path: Path) -> None:
    """What the environment names is said for this process, the file for all of them."""
    (tmp_path / "dsn").write_text("postgresql://h/secret")
    (tmp_path / "billing-jobs.toml").write_text("database_url = 'postgresql://h/file'\n")

    layers = read(tmp_path, {"BILLING_JOBS_DATABASE_URL_FILE": "dsn"})

    assert layers.found["database_url"].raw == "postgresql://h/secret"


@pytest.mark.parametrize(
    ("content", "variables", "told"),
    [
        (None, {}, "no such file"),
        ("\n", {}, "the file is empty"),
        ("x", {"BILLING_JOBS_DATABASE_URL": "postgresql://h/x"}, "both are set; keep one"),
    ],
)
def test_a_secret_file_that_gives_no_clear_answer_is_an_error(
    tmp_path: Path, content: str | None, variables: Mapping[str, str], told: str
) -> None:
    """Starting with the wrong password, or none, only moves the error to a worse place."""
    if content is not None:
        (tmp_path / "dsn").write_text(content)

    layers = read(tmp_path, {"BILLING_JOBS_DATABASE_URL_FILE": "dsn", **variables})

    assert len(layers.problems) == 1
    assert "BILLING_JOBS_DATABASE_URL_FILE" in layers.problems[0]
    assert told in layers.problems[0]


def test_only_secrets_may_be_files(tmp_path: Path) -> None:
    """For the rest it would be one more way to say the same."""
    (problem,) = read(tmp_path, {"BILLING_JOBS_TENANT_FILE": "x"}).problems

    assert "did you mean BILLING_JOBS_TENANT?" in problem


def test_common_names_count_where_none_of_ours_says_anything(tmp_path: Path) -> None:
    """A platform sets DATABASE_URL for everybody; our own name is said on purpose."""
    common = {"DATABASE_URL": "postgres://h/common", "REDIS_URL": "redis://h/1"}
    settings, sources = settings_with_sources(environ=common, cwd=tmp_path)
    assert sources["database_url"] == "env DATABASE_URL"
    assert settings.broker_url is not None
    assert settings.broker_url.get_secret_value() == "redis://h/1"

    (tmp_path / "billing-jobs.toml").write_text("database_url = 'postgres://h/ours'\n")
    settings, sources = settings_with_sources(environ=common, cwd=tmp_path)
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value().endswith("/ours")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_DATA_HOME": "/srv/data", "HOME": "/home/ann"}, "/srv/data/billing-jobs/dev"),
        ({"HOME": "/home/ann"}, "/home/ann/.local/share/billing-jobs/dev"),
        (
            {"XDG_DATA_HOME": "relative", "HOME": "/home/ann"},
            "/home/ann/.local/share/billing-jobs/dev",
        ),
    ],
)
def test_the_data_directory_follows_the_xdg_rules(
    variables: Mapping[str, str], expected: str
) -> None:
    """Every user has a place of their own, without asking and without root."""
    assert default_data_dir(variables, Path("/cwd")) == Path(expected)


def test_a_user_without_a_home_keeps_the_data_in_the_working_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Containers run as numbers that no user database knows; that is no reason to crash."""
    assert default_data_dir({}, Path("/cwd")).is_absolute(), "the user database knows this user"

    monkeypatch.setattr("billing_jobs.config_sources.os.getuid", lambda: 2**31 - 7)
    assert default_data_dir({}, Path("/cwd")) == Path("/cwd/.billing-jobs/dev")


@pytest.mark.parametrize(
    ("written", "expected"),
    [("~/jobs", "/home/ann/jobs"), ("~", "/home/ann"), ("jobs", "jobs"), ("/srv/x", "/srv/x")],
)
def test_the_data_directory_is_resolved_once(tmp_path: Path, written: str, expected: str) -> None:
    """A process that changes its directory must not change its data."""
    variables = {"HOME": "/home/ann", "BILLING_JOBS_DATA_DIR": written}

    settings, _ = settings_with_sources(environ=variables, cwd=tmp_path)

    assert settings.data_dir == tmp_path / expected
    assert settings.data_dir.is_absolute()


def test_a_child_process_reads_what_its_parent_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is set for a child comes out of its environment again, secrets unmasked."""
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.delenv("REDIS_URL", raising=False)
    told = {"drain_slice_seconds": 1.5, "prepared_statements": False, "tenant": "a.b"}
    url = SecretUrl("postgresql+psycopg://app:pw@db/x")

    environ = child_environment({**told, "database_url": url, "broker_url": None})
    environ |= {"BILLING_JOBS_CONFIG": "", "XDG_DATA_HOME": str(tmp_path)}
    settings, _ = settings_with_sources(environ=environ, cwd=tmp_path)

    assert environ["INHERITED"] == "yes"
    assert {name: getattr(settings, name) for name in told} == told
    assert (settings.database_url, settings.broker_url) == (url, None)


def test_the_process_is_asked_when_nobody_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defaults of environment and directory are those of the process, at the call."""
    monkeypatch.setenv("BILLING_JOBS_CONFIG", "site.toml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.toml").write_text("worker_concurrency = 9\n")

    settings, sources = settings_with_sources()

    assert isinstance(settings, Settings)
    assert sources["worker_concurrency"] == f"file {tmp_path / 'site.toml'}"
