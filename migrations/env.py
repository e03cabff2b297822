"""
Runs the migrations: online over a given connection, or offline as SQL text.

The database's address comes from the settings of billing_jobs; there is no alembic.ini.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, pool


def run_offline(url: str) -> None:
    """Print the SQL instead of running it."""
    context.configure(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"})
    with context.begin_transaction():
        context.run_migrations()


def run_online(url: str) -> None:
    """
    Run all steps in one transaction.

    Crash safety: a crash rolls everything back. Two runs at once wait for each other on an advisory
    lock of the transaction, and the second one finds nothing to do.
    """
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(5011971001)")
            context.run_migrations()


address = context.config.attributes["database_url"]
if context.is_offline_mode():
    run_offline(address)
else:
    run_online(address)
