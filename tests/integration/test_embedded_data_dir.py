"""The data directory of `billing-jobs up`: one owner, private, and gone without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from billing_jobs.domain.errors import AlreadyRunning, DataDirUnusable
from billing_jobs.embedded.data_dir import DataDir
from billing_jobs.embedded.ownership import FileLock

_DEADLINE_SECONDS = 30.0

_OWN_AND_WAIT = """
import sys
from pathlib import Path
from billing_jobs.embedded.data_dir import DataDir

data_dir = DataDir(Path(sys.argv[1]), runtime_root=Path(sys.argv[2]))
data_dir.acquire()
data_dir.publish({"web": "http://127.0.0.1:8642/"})
data_dir.directory("postgres")
print(data_dir.sockets(), flush=True)
sys.stdin.read()
data_dir.release()
"""


def _own_elsewhere(path: Path, runtime_root: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start another supervisor; return it and where its sockets lie."""
    process = subprocess.Popen(
        [sys.executable, "-c", _OWN_AND_WAIT, str(path), str(runtime_root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def _end(process: subprocess.Popen[str], *, kill: bool) -> None:
    with process:
        if kill:
            process.kill()


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_all_that_is_made_is_private(tmp_path: Path) -> None:
    """Other users of the machine must not read the books, nor open the sockets."""
    with DataDir(tmp_path / "data") as data_dir:
        made = [data_dir.path, data_dir.directory("postgres"), data_dir.sockets()]

        assert [_mode(path) for path in made] == [0o700] * 3


def test_a_purge_leaves_nothing_not_even_the_parents_it_made(tmp_path: Path) -> None:
    """`down --purge` is the promise that trying it out costs nothing."""
    data_dir = DataDir(tmp_path / "share" / "billing jobs" / "dev")
    with data_dir:
        (data_dir.directory("postgres") / "file").touch()
        data_dir.file("sandbox.sqlite").touch()
        (data_dir.path / "link").symlink_to(tmp_path)
        data_dir.file("link")
        data_dir.file("never made")
        data_dir.write_state({"port": 8642})

    left = data_dir.purge()

    assert left == ()
    assert list(tmp_path.iterdir()) == []
    assert data_dir.purge() == ()


def test_a_purge_spares_what_others_put_there(tmp_path: Path) -> None:
    """A person may keep notes beside it; what was not made here is not removed here."""
    data_dir = DataDir(tmp_path / "data")
    with data_dir:
        data_dir.directory("postgres")
    (data_dir.path / "notes.txt").touch()

    left = data_dir.purge()

    assert left == ("notes.txt",)
    assert [path.name for path in data_dir.path.iterdir()] == ["notes.txt"]


def test_an_empty_directory_is_used_and_left_after_a_purge(tmp_path: Path) -> None:
    """A mounted volume is such a directory; it has a lost+found, and it is not ours to remove."""
    volume = tmp_path / "volume"
    (volume / "lost+found").mkdir(parents=True)
    data_dir = DataDir(volume)
    with data_dir:
        data_dir.directory("postgres")

    left = data_dir.purge()

    assert left == ("lost+found",)


def test_a_directory_with_others_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    """BILLING_JOBS_DATA_DIR=~ is a slip of the hand, and a purge must not cost a home."""
    (tmp_path / "thesis.tex").touch()
    data_dir = DataDir(tmp_path)

    with pytest.raises(DataDirUnusable, match=r"did not make \(thesis\.tex\)"):
        data_dir.acquire()
    with pytest.raises(DataDirUnusable, match="was not made by billing-jobs"):
        data_dir.purge()

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("below", ["file", "file/data", "file/deep/data"])
def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path, below: str) -> None:
    """Root may write nearly everywhere, but not here; the message names path and setting."""
    (tmp_path / "file").touch()
    data_dir = DataDir(tmp_path / below)

    with pytest.raises(DataDirUnusable, match="BILLING_JOBS_DATA_DIR"):
        data_dir.acquire()
    assert data_dir.holder() is None


def test_a_directory_that_is_not_ours_or_not_writable_is_refused(tmp_path: Path) -> None:
    """As root the wrong owner, else missing rights: files of two users in one place end badly."""
    path = tmp_path / "data"
    path.mkdir()
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        problem = "belongs to uid 65534"
    else:
        path.chmod(0o500)
        problem = "is not writable"

    with pytest.raises(DataDirUnusable, match=problem):
        DataDir(path).acquire()


def test_a_directory_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    """Anybody could swap the cluster for another one."""
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(0o777)

    with pytest.raises(DataDirUnusable, match="chmod 700"):
        DataDir(path).acquire()


def test_a_second_owner_learns_who_the_first_is(tmp_path: Path) -> None:
    """A second `up` prints the addresses of the first instead of starting servers twice."""
    data_dir = DataDir(tmp_path / "data")
    other, _sockets = _own_elsewhere(data_dir.path, tmp_path)
    try:
        holder = data_dir.holder()
        for attempt in (data_dir.acquire, data_dir.purge):
            with pytest.raises(AlreadyRunning, match=f"pid {other.pid}") as caught:
                attempt()
            assert "web: http://127.0.0.1:8642/" in caught.value.message
        still_running = not data_dir.wait_until_free(wait_seconds=0)
    finally:
        _end(other, kill=False)

    assert holder is not None
    assert (holder.pid, holder.facts) == (other.pid, {"web": "http://127.0.0.1:8642/"})
    assert still_running
    assert data_dir.wait_until_free(wait_seconds=_DEADLINE_SECONDS)
    assert data_dir.holder() is None


def test_a_killed_owner_blocks_nobody_and_its_sockets_go(tmp_path: Path) -> None:
    """SIGKILL removes no file; what it left outside the data directory must not pile up."""
    root = Path("/tmp")
    long_path = tmp_path / ("a long name " * 15)
    other, sockets = _own_elsewhere(long_path, root)
    made_outside = sockets.is_dir() and sockets.parent == root
    _end(other, kill=True)
    left_behind = sockets.is_dir()

    with DataDir(long_path, runtime_root=root) as data_dir:
        removed = not sockets.exists()
        mine = data_dir.sockets()
        again = data_dir.sockets()

    assert made_outside
    assert left_behind
    assert removed
    assert mine == again != sockets
    assert not mine.exists()


def test_a_holder_that_has_not_said_who_it_is_is_still_a_holder(tmp_path: Path) -> None:
    """Between lock and first word lies a moment; `status` must not call it stopped, nor fail."""
    data_dir = DataDir(tmp_path)
    lock = FileLock(tmp_path / "supervisor.lock")
    assert lock.acquire()
    try:
        holder = data_dir.holder()
    finally:
        lock.release()

    assert holder is not None
    assert holder.pid is None


def test_an_owner_that_acquires_again_keeps_its_sockets(tmp_path: Path) -> None:
    """Removing them would cut the running servers off."""
    with DataDir(tmp_path / "data") as data_dir:
        sockets = data_dir.sockets()
        data_dir.acquire()

        assert sockets.is_dir()
        held = data_dir.holder()

    assert held is not None
    assert held.pid == os.getpid()


def test_the_state_survives_the_owner(tmp_path: Path) -> None:
    """Ports and passwords that `up` chose stay the same the next time."""
    data_dir = DataDir(tmp_path / "data")
    nothing = data_dir.read_state(), data_dir.holder(), data_dir.wait_until_free(wait_seconds=0)
    with data_dir:
        data_dir.write_state({"web_port": 8642})

    assert nothing == ({}, None, True)
    assert data_dir.read_state() == {"web_port": 8642}


def test_a_broken_manifest_is_named_and_the_lock_is_free_again(tmp_path: Path) -> None:
    """After the repair the next start must not need a reboot."""
    data_dir = DataDir(tmp_path / "data")
    with data_dir:
        pass
    (data_dir.path / "manifest.json").write_text("{", encoding="ascii")

    with pytest.raises(DataDirUnusable, match=r"manifest\.json is not JSON"):
        data_dir.acquire()

    assert data_dir.holder() is None


def test_a_purge_waits_for_servers_and_refuses_while_one_runs(tmp_path: Path) -> None:
    """Removing the files under a server's feet is the one way to lose what it still writes."""
    data_dir = DataDir(tmp_path / "data", purge_seconds=0.2)
    with data_dir:
        lock = FileLock(data_dir.directory("postgres") / "postgres.server.lock")
    assert lock.acquire()

    with pytest.raises(AlreadyRunning, match="A server still runs"):
        data_dir.purge()
    lock.release()

    assert data_dir.purge() == ()


@pytest.mark.parametrize("name", ["..", "a/b", "", "state.json", "run"])
def test_only_free_names_inside_are_handed_out(tmp_path: Path, name: str) -> None:
    """A name that leads out would be removed by the purge."""
    with DataDir(tmp_path / "data") as data_dir, pytest.raises(ValueError, match="Bug"):
        data_dir.file(name)


def test_nothing_is_handed_out_without_ownership(tmp_path: Path) -> None:
    """Two processes would write one manifest."""
    with pytest.raises(RuntimeError, match="without being acquired"):
        DataDir(tmp_path / "data").directory("postgres")


def test_a_lock_on_a_removed_file_is_none(tmp_path: Path) -> None:
    """A purge removes the lock file; who waited for it must not own a ghost."""
    path = tmp_path / "lock"
    first, second = FileLock(path), FileLock(path)
    assert first.acquire()
    taken = threading.Thread(target=lambda: second.acquire(wait_seconds=_DEADLINE_SECONDS))
    taken.start()

    path.unlink()
    first.release()
    taken.join(_DEADLINE_SECONDS)

    assert second.held
    assert os.path.samestat(os.fstat(second.descriptor), path.stat())
    second.release()
    with pytest.raises(RuntimeError, match="is not held"):
        assert second.descriptor
