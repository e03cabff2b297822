"""The embedded servers of an ordinary user, also when the tests themselves run as root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from billing_jobs.embedded.identity import SAME, Identity, Way, leash_argv

_NOBODY = 65534

_AS_ANOTHER_USER = """
import os, sys, tempfile
from pathlib import Path
from billing_jobs.embedded.binaries import find_postgres
from billing_jobs.embedded.data_dir import DataDir
from billing_jobs.embedded.identity import SAME, postgres_identity
from billing_jobs.embedded.postgres import EmbeddedPostgres

assert os.geteuid() != 0 and postgres_identity(euid=os.geteuid()) is SAME
with tempfile.TemporaryDirectory(dir="/tmp") as root:
    data_dir = DataDir(Path(root) / "data")
    with data_dir:
        server = EmbeddedPostgres(
            data_dir.directory("postgres"),
            socket_dir=data_dir.sockets(),
            binaries=find_postgres(),
            log=data_dir.directory("log") / "postgres.log",
        )
        server.start(deadline_seconds=30)
        owner = (data_dir.path / "postgres" / "pg18" / "PG_VERSION").stat().st_uid
        server.stop()
    assert data_dir.purge() == ()
print(owner, server.pid)
"""


def test_an_ordinary_user_starts_it_too() -> None:
    """Most people are not root, and root tests nothing of what holds for them."""
    root = os.geteuid() == 0
    # Root's interpreter may lie where only root may read: this way keeps the right to do so.
    identity = Identity(Way.OTHER_USER, _NOBODY, _NOBODY) if root else SAME
    argv = leash_argv(
        identity=identity, death_signal=9, argv=(sys.executable, "-c", _AS_ANOTHER_USER)
    )

    ended = subprocess.run(
        argv,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [str(_NOBODY if root else os.geteuid()), "None"]
