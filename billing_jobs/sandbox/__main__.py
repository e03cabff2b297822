"""
`python -m billing_jobs.sandbox`: puts the gateway together and runs it.

The one place of the sandbox that reads a clock.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

from billing_jobs.sandbox.app import App
from billing_jobs.sandbox.book import Book
from billing_jobs.sandbox.files import write_port
from billing_jobs.sandbox.journal import Journal, JournalDamaged, JournalInUse
from billing_jobs.sandbox.server import SandboxServer


def main(arguments: list[str] | None = None) -> int:
    """
    Run until SIGTERM or SIGINT; return the exit status.

    Crash safety: everything is in the journal, see `Journal`. Started again with the same journal,
    the sandbox goes on where it was killed.
    """
    options = _options(arguments)
    stopping = threading.Event()
    try:
        with closing(Journal(options.journal)) as journal:
            app = App(Book(journal, time.time), stopping.wait)
            server = SandboxServer((options.host, options.port), app, stopping)
            _serve(server, options, stopping)
    except (OSError, JournalInUse, JournalDamaged) as error:
        sys.stderr.write(f"The sandbox gateway cannot start: {error}\n")
        return 2
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m billing_jobs.sandbox",
        description="A payment gateway for tests: Stripe-compatible subset, faults on demand.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True, help="port, 0 for a free one")
    parser.add_argument("--journal", type=Path, required=True, help="the book; made if missing")
    parser.add_argument("--port-file", type=Path, help="written with the port once it listens")
    return parser.parse_args(arguments)


def _serve(server: SandboxServer, options: argparse.Namespace, stopping: threading.Event) -> None:
    # Waited for and not handled: a handler that sets an event while this thread holds the event's
    # lock would wait for itself.
    ends = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    thread = threading.Thread(target=server.run, name="accept", daemon=True)
    thread.start()
    if options.port_file:
        write_port(options.port_file, server.port)
    sys.stdout.write(
        f"sandbox gateway on http://{options.host}:{server.port}, journal {options.journal}\n"
    )
    sys.stdout.flush()
    signal.sigwait(ends)
    stopping.set()
    server.stop()


if __name__ == "__main__":
    sys.exit(main())
