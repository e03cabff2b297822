"""The ports in memory, for tests."""

from __future__ import annotations
