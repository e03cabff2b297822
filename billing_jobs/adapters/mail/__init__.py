"""Mail transports behind the one port."""

from __future__ import annotations
