"""Celery: application, doors, beat and shutdown."""

from __future__ import annotations
