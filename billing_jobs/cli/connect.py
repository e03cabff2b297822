"""
How a command finds the cluster: the configured servers, or those of a running `billing-jobs up`.

Owns the look into the data directory. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from billing_jobs import bootstrap
from billing_jobs.bootstrap import Runtime
from billing_jobs.config import Settings, load_settings
from billing_jobs.embedded.data_dir import DataDir

#: What a running `up` publishes and a command may use where nothing is configured.
SHARED = ("database_url", "broker_url", "sandbox_url", "smtp_url")


def settings() -> Settings:
    """Return the settings, with the addresses of a running `up` where none are configured."""
    configured = load_settings()
    if configured.database_url is not None and configured.broker_url is not None:
        return configured
    holder = DataDir(configured.data_dir).holder()
    facts = {} if holder is None else holder.facts
    overrides = {
        name: facts[name]
        for name in SHARED
        if name in facts and getattr(configured, name, None) in {None, ""}
    }
    return load_settings(overrides) if overrides else configured


@contextmanager
def runtime() -> Iterator[Runtime]:
    """
    Lend a runtime on the cluster until the block ends.

    Raises `SettingsInvalid` when nothing is configured and no `up` runs.
    """
    built = bootstrap.build(settings())
    try:
        yield built
    finally:
        built.database.close()
