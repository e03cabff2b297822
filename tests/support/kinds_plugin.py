"""Registers the kinds for tests; a worker imports it as an entry point."""

from __future__ import annotations

from support.kinds import KINDS

from billing_jobs.registry import registry

for kind in KINDS:
    registry.add(kind)
