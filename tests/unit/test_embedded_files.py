"""The small files and paths around the embedded servers: logs, JSON, sockets, ports, pauses."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from billing_jobs.domain.errors import DataDirUnusable, PortTaken
from billing_jobs.embedded import json_file, socket_dir
from billing_jobs.embedded.log_file import LogFile
from billing_jobs.embedded.manifest import Manifest
from billing_jobs.embedded.processes import Backoff
from billing_jobs.embedded.supervised import describe_status
from billing_jobs.embedded.tcp_ports import free_port, is_answered, require_free_port


def _append(log: LogFile, text: str) -> None:
    descriptor = log.open()
    os.write(descriptor, text.encode())
    os.close(descriptor)


def test_a_log_is_cut_while_its_writer_goes_on_writing(tmp_path: Path) -> None:
    """A server keeps its descriptor for weeks; the disk must not fill up meanwhile."""
    log = LogFile(tmp_path / "server.log", bytes_max=100)
    writer = log.open()

    os.write(writer, b"x" * 200 + b"\n")
    log.trim()
    os.write(writer, b"the next line\n")
    os.close(writer)

    assert log.path.read_text() == "the next line\n"
    assert log.older.stat().st_size == 201
    assert log.older.stat().st_mode & 0o777 == 0o600


def test_a_log_is_cut_even_when_the_older_half_cannot_be_kept(tmp_path: Path) -> None:
    """On a full disk lines are worth less than the disk."""
    log = LogFile(tmp_path / "server.log", bytes_max=10)
    log.older.mkdir()

    _append(log, "x" * 100)
    log.trim()

    assert log.path.stat().st_size == 0


def test_the_end_of_a_log_is_a_screenful_and_survives_broken_text(tmp_path: Path) -> None:
    """It goes into an error message: short, and never an error of its own."""
    log = LogFile(tmp_path / "server.log")

    missing = log.tail(), log.last_line()
    _append(log, "".join(f"line {number}\n" for number in range(9000)))
    log.path.write_bytes(log.path.read_bytes() + b"\xff\n")

    assert missing == ("", "")
    assert len(log.tail().splitlines()) == 15
    assert log.last_line() == "\ufffd"


def test_json_is_replaced_as_a_whole_and_private(tmp_path: Path) -> None:
    """Half a state after a power cut would block every later start."""
    path = tmp_path / "state.json"

    json_file.write(path, {"a": 1})
    json_file.write(path, {"b": [2]})

    assert json_file.read(path) == {"b": [2]}
    assert path.stat().st_mode & 0o777 == 0o600
    assert not json_file.sibling(path).exists()


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"])
def test_json_that_somebody_broke_is_named(tmp_path: Path, content: bytes) -> None:
    """The message says which file to remove."""
    path = tmp_path / "state.json"
    path.write_bytes(content)

    with pytest.raises(DataDirUnusable, match=r"state\.json .*Remove it"):
        json_file.read(path)


@pytest.mark.parametrize("names", [["../../etc"], ["/etc"], [""], ["."], [3], "postgres"])
def test_a_manifest_never_leads_a_purge_out_of_its_directory(tmp_path: Path, names: object) -> None:
    """A purge removes what is listed; a list that somebody changed must not reach elsewhere."""
    path = tmp_path / "manifest.json"
    json_file.write(path, {"entries": names})

    with pytest.raises(DataDirUnusable, match="Restore the file"):
        assert Manifest(path).entries


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/a/short path/run", None),
        ("/" + "long" * 30, "bytes"),
        ("/a,b", "only letters"),
        ("/a:5432", "only letters"),
        ('/a"b', "only letters"),
        ("/bücher", "only letters"),
    ],
)
def test_paths_that_sockets_cannot_have_are_known(path: str, problem: str | None) -> None:
    """A comma makes two directories of one for PostgreSQL, a colon a port for a URL parser."""
    refusal = socket_dir.refusal(Path(path))

    assert (refusal is None) == (problem is None)
    assert problem is None or problem in str(refusal)


def test_the_longest_path_that_fits_is_allowed() -> None:
    """One byte more, and bind() would fail in the server with words nobody understands."""
    name = "/.s.PGSQL.5432"
    longest = Path("/" + "x" * (socket_dir.SOCKET_PATH_BYTES_MAX - len(name) - 1))

    assert socket_dir.refusal(longest) is None
    assert socket_dir.refusal(longest.with_name(longest.name + "x")) is not None


def test_no_root_for_short_sockets_says_what_to_set(tmp_path: Path) -> None:
    """A TMPDIR may be as long as the data directory."""
    too_long = tmp_path / ("long" * 40)
    too_long.mkdir()

    with pytest.raises(DataDirUnusable, match="XDG_RUNTIME_DIR or TMPDIR"):
        socket_dir.short_path([tmp_path / "missing", too_long])


def test_a_short_directory_is_removed_only_when_it_is_ours(tmp_path: Path) -> None:
    """After a reboot the name may be somebody else's, or a link to what must stay."""
    ours, precious = tmp_path / "billing-jobs-1", tmp_path / "precious"
    ours.mkdir()
    (ours / "vk.sock").touch()
    precious.mkdir()
    link = tmp_path / "billing-jobs-2"
    link.symlink_to(precious)

    for path in (ours, ours, precious, link):
        socket_dir.remove_short(path)

    assert not ours.exists()
    assert precious.exists()
    assert link.is_symlink()


def test_a_taken_port_is_named_with_what_wanted_it_and_what_to_change() -> None:
    """The words of the system alone send a person to a search engine."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        answered = is_answered(port)
        with pytest.raises(PortTaken) as caught:
            require_free_port(port, "the dashboard", option="--web-port")

    assert answered
    for word in (str(port), "the dashboard", "--web-port", "Address already in use"):
        assert word in caught.value.message


def test_a_free_port_is_free_and_silent() -> None:
    """Who gets it binds it next."""
    port = free_port()

    require_free_port(port, "a test", option="nothing")

    assert not is_answered(port)


def test_pauses_grow_to_a_limit() -> None:
    """A process that ends at once must not take the machine, nor wait for hours."""
    pauses = [Backoff().pause_seconds(failures) for failures in range(1, 10)]

    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.5, 30.0)


def test_an_end_is_told_in_words() -> None:
    """`-9` is a riddle at three in the morning."""
    assert describe_status(3) == "exit status 3"
    assert describe_status(-9) == "killed by SIGKILL"
    assert describe_status(-200) == "killed by signal 200"
