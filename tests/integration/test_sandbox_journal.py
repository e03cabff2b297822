"""
The book of the sandbox gateway: torn, damaged, contended.

It is the proof of what was charged, so it never guesses.
"""

from __future__ import annotations

import ast
import json
import os
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

import billing_jobs.sandbox
from billing_jobs.sandbox.__main__ import main
from billing_jobs.sandbox.app import App, Request
from billing_jobs.sandbox.book import Book
from billing_jobs.sandbox.journal import Journal, JournalDamaged, read_captures


@pytest.mark.parametrize("torn", [b'{"capture":{"charge":"ch_', b"\x00" * 60 + b"\n", b"7\n"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    """Killed in the middle of a write, the book opens again without what nobody was told."""
    path = tmp_path / "journal"
    first, second = {"capture": {"charge": "ch_1"}}, {"capture": {"charge": "ch_2"}}
    with closing(Journal(path)) as journal:
        journal.sync(journal.write(first))
    with path.open("ab") as file:
        file.write(torn)
    assert read_captures(path) == [first["capture"]]

    with closing(Journal(path)) as journal:
        journal.sync(journal.write(second))

    with closing(Journal(path)) as journal:
        assert list(journal.records()) == [first, second]


def test_an_answer_is_on_the_disk_before_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut nobody may hold an answer that the book does not know."""
    path = tmp_path / "journal"
    synced: list[int] = []
    with closing(Journal(path)) as journal:
        app = App(Book(journal, lambda: 0.0), lambda _seconds: None)
        real = os.fsync

        def noted(file: int) -> None:
            real(file)
            synced.append(size_of(path))

        monkeypatch.setattr(os, "fsync", noted)
        body = "amount=1&currency=eur&payment_method=pm_sandbox_ok&confirm=true"
        request = Request("POST", "/v1/payment_intents", "", {"authorization": "Bearer k"}, body)

        assert app.answer(request).status == 200

        assert synced == [size_of(path)]
        journal.sync(size_of(path))
        assert len(synced) == 1


def size_of(path: Path) -> int:
    """Return how many bytes are in a file."""
    return path.stat().st_size


def test_a_damaged_journal_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle nothing can be torn; a guess there would be a false oracle."""
    journal = tmp_path / "journal"
    journal.write_bytes(b'{"clock":{"offset_seconds":0,"key_lifetime_seconds":1}}\n???\n{"a":1}\n')

    assert main(["--port", "0", "--journal", str(journal)]) == 2
    assert "Line 2" in capsys.readouterr().err


def test_a_book_with_two_charges_for_one_intent_is_refused(tmp_path: Path) -> None:
    """It cannot happen; should it, everything stops before it is hidden."""
    line = json.dumps({"capture": {"payment_intent": "pi_1"}})
    (tmp_path / "journal").write_text(f"{line}\n{line}\n")
    journal = Journal(tmp_path / "journal")

    with pytest.raises(JournalDamaged, match="pi_1 was captured twice"):
        Book(journal, lambda: 0.0)

    journal.close()
    journal.close()


def test_two_sandboxes_cannot_share_a_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each would charge what the other has charged already."""
    with closing(Journal(tmp_path / "journal")):
        assert main(["--port", "0", "--journal", str(tmp_path / "journal")]) == 2

    assert "--journal" in capsys.readouterr().err


def test_a_taken_port_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback is no answer to a user."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        assert main(["--port", port, "--journal", str(tmp_path / "journal")]) == 2

    assert "cannot start" in capsys.readouterr().err


def test_the_oldest_keys_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound for keys, too; what is forgotten early is what Stripe would forget first."""
    monkeypatch.setattr("billing_jobs.sandbox.book.KEYS_MAX", 2)
    journal = Journal(tmp_path / "journal")
    book = Book(journal, lambda: 0.0)
    for key in ("first", "second", "third"):
        answer = {"fingerprint": "f", "status": 200, "body": "{}", "saved_at": 0.0}
        book.record({"answer": {"key": key, "answer": answer}})
    journal.close()

    assert book.answer_under("first") is None
    assert book.answer_under("third") is not None


def test_the_gateway_needs_nothing_but_the_standard_library() -> None:
    """The other side of the wire shares no code with ours: a shared mistake would hide in both."""
    directory = Path(billing_jobs.sandbox.__file__).parent
    imported = set()
    for path in directory.glob("*.py"):
        if path.name == "mail.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}

    foreign = {
        name
        for name in imported
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not name.startswith("billing_jobs.sandbox")
    }
    assert not foreign
