"""The ports over Postgres, the truth."""

from __future__ import annotations
