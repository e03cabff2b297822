"""A supervisor for a person who has no servers."""

from __future__ import annotations
