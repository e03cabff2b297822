"""Periodic work, one function a file."""

from __future__ import annotations
