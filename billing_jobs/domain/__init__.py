"""Pure rules: values in, values out."""

from __future__ import annotations
