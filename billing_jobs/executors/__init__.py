"""The billing work, one file an action."""

from __future__ import annotations
