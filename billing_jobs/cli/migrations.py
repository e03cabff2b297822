"""
Where the migrations are, and how alembic runs them.

Owns the calls of alembic. A checkout keeps them beside the package, the wheel inside it.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

import billing_jobs


def upgrade(database_url: str, revision: str = "head") -> None:
    """
    Bring the schema to a revision.

    Crash safety: one transaction; run twice, or by two at once, the second finds nothing to do.
    """
    command.upgrade(configuration(database_url), revision)


def downgrade(database_url: str, revision: str) -> None:
    """
    Take the schema back to a revision; what the later ones made is lost.

    Crash safety: one transaction.
    """
    command.downgrade(configuration(database_url), revision)


def head() -> str:
    """Return the newest revision that this version of the package knows."""
    found = ScriptDirectory(str(directory())).get_current_head()
    assert found is not None, "Bug: there are no migrations"
    return found


def configuration(database_url: str) -> Config:
    """Return alembic's configuration for one database."""
    config = Config(attributes={"database_url": database_url})
    config.set_main_option("script_location", str(directory()).replace("%", "%%"))
    return config


def directory() -> Path:
    """Return the directory of the migrations."""
    package = Path(billing_jobs.__file__).parent
    inside = package / "_migrations"
    return inside if inside.is_dir() else package.parent / "migrations"
