"""As whom PostgreSQL runs, and the first steps of a child on its leash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from billing_jobs.domain.errors import ServerFailed
from billing_jobs.embedded import identity as identities
from billing_jobs.embedded.identity import SAME, Identity, Way, leash_argv, postgres_identity

_LEASH = Path(identities.__file__).with_name("leash.py")


def _leash(
    *, parent: int, way: str, program: tuple[str, ...], death_signal: int = signal.SIGTERM
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(_LEASH), str(parent), str(int(death_signal)), way]
    return subprocess.run(
        [*argv, "65534", "65534", *program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def _open_ways() -> list[Way]:
    others = (Way.NAMESPACE, Way.OTHER_USER)
    tried = {way: identities.try_way(Identity(way, 65534, 65534)) for way in others}
    return [Way.SAME, *(way for way in others if tried[way] is None)]


def test_an_ordinary_user_runs_postgres_as_he_is() -> None:
    """No namespace and no trial where none is needed."""

    def never(_identity: Identity) -> str | None:
        raise AssertionError

    assert postgres_identity(euid=1000, named=lambda _uid: True, refusal=never) is SAME


def test_root_gets_the_first_way_that_is_open() -> None:
    """Containers forbid namespaces to root as a rule; the second way must then be taken."""
    closed = {Way.NAMESPACE: "Operation not permitted"}

    first = postgres_identity(euid=0, refusal=lambda _identity: None)
    second = postgres_identity(euid=0, refusal=lambda identity: closed.get(identity.way))

    assert first.way is Way.NAMESPACE
    assert second.way is Way.OTHER_USER
    assert second.uid == second.owner != 0


def test_a_user_without_a_name_gets_one_in_a_namespace() -> None:
    """`docker run --user 4242`: initdb refuses a uid that is not in passwd."""
    found = postgres_identity(euid=4242, named=lambda _uid: False, refusal=lambda _identity: None)

    assert found.way is Way.NAMESPACE
    assert found.owner == os.geteuid()


@pytest.mark.parametrize("euid", [0, 2**31 - 7])
def test_no_way_left_says_why_and_what_to_do(euid: int) -> None:
    """The last resort is a message, not a user added to the system."""
    with pytest.raises(ServerFailed, match="namespace: forbidden here") as caught:
        postgres_identity(euid=euid, refusal=lambda _identity: "forbidden here")

    assert "as an ordinary user" in caught.value.message
    assert "BILLING_JOBS_DATABASE_URL" in caught.value.message


def test_the_trial_tells_an_open_way_from_a_closed_one() -> None:
    """The refusal is a sentence for a person, who may have to change the machine's settings."""
    refused = identities.try_way(Identity(Way.NAMESPACE, -2, -2))

    assert identities.try_way(SAME) is None
    assert _leash(parent=os.getpid(), way="same", program=()).returncode == 0
    assert refused is not None
    assert refused.startswith("cannot start this way: ")


def test_a_program_that_is_not_there_is_named_in_each_way() -> None:
    """The log then says which, and not only that something ended."""
    for way in _open_ways():
        ended = _leash(parent=os.getpid(), way=way, program=("/nowhere/server", "--port"))

        assert ended.returncode == 126
        assert "cannot start /nowhere/server: No such file or directory" in ended.stderr


def test_a_signal_that_the_kernel_does_not_know_is_refused() -> None:
    """A child without its death signal would outlive a killed supervisor: better none at all."""
    ended = _leash(parent=os.getpid(), way="same", program=("/bin/true",), death_signal=1000)

    assert ended.returncode == 126
    assert ended.stderr == "cannot start /bin/true: prctl: Invalid argument\n"


def test_a_child_whose_supervisor_died_first_never_becomes_the_program() -> None:
    """The signal of the kernel comes only for a death after it was asked for; this is the gap."""
    ended = _leash(parent=os.getpid() + 1, way="same", program=("/bin/sh", "-c", "echo started"))

    assert ended.returncode == 125
    assert ended.stdout == ""


def test_each_way_that_is_open_here_leads_to_its_user(tmp_path: Path) -> None:
    """What the server sees must be a uid that is not 0, and the directories of the supervisor."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "private").touch()
    ways = _open_ways()

    answers = {
        way: _leash(parent=os.getpid(), way=way, program=("/bin/sh", "-c", f"id -u; ls '{home}'"))
        for way in ways
    }

    assert ways[0] is Way.SAME
    for way, ended in answers.items():
        uid = os.geteuid() if way is Way.SAME else 65534
        assert ended.stdout.split() == [str(uid), "private"], ended.stderr


def test_a_shell_that_ignores_ctrl_c_does_not_make_the_child_deaf() -> None:
    """`billing-jobs up &` starts with SIGINT ignored; Postgres must hear it all the same."""
    show = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    argv = leash_argv(identity=SAME, death_signal=0, argv=(sys.executable, "-c", show))
    # The leash expects us as its parent; `exec` keeps it that way.
    script = 'trap "" INT; exec "$@"'

    ended = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *argv],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert ended.stdout.strip() == "False"
