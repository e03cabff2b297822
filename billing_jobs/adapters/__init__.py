"""The world behind the ports."""

from __future__ import annotations
