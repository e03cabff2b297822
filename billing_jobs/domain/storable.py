"""
What Postgres can keep of a text, of a JSON object and of the end of a run.

Owns the replacement of what it refuses (NUL, lone surrogates, numbers that are not finite) and the
cutting to size, so that no record fails for its texts. How much is kept the settings say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

from billing_jobs.domain.job import Recording

#: JSON nested deeper than this is cut: no result needs it, and Python's recursion ends somewhere.
DEPTH_MAX = 32

#: Stands for what was cut.
CUT = "…"


def storable_text(text: str) -> str:
    """
    Replace NUL and lone surrogates, which Postgres refuses.

    >>> storable_text("a" + chr(0) + "b" + chr(0xD800))
    'a�b?'
    """
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def storable_json(values: Mapping[str, object]) -> dict[str, object]:
    """
    Return a copy that JSON and Postgres can hold; what JSON does not know becomes text.

    >>> storable_json({"ratio": math.nan, "by": {1: (True, None)}})
    {'ratio': 'nan', 'by': {'1': [True, None]}}
    """
    return _object(values, DEPTH_MAX)


def storable_recording(recording: Recording, *, result_bytes: int, error_chars: int) -> Recording:
    """Return the end of a run with its result and texts made storable and cut to size."""
    result = None if recording.result is None else storable_json(recording.result)
    if result is not None and json_bytes(result) > result_bytes:
        result = {"outcome": "result_too_large", "bytes": json_bytes(result)}
    return replace(
        recording,
        result=result,
        error=_cut(recording.error, error_chars),
        reason=_cut(recording.reason, error_chars),
    )


def json_bytes(values: Mapping[str, object]) -> int:
    """Return how long an object is as JSON."""
    return len(json.dumps(values).encode())


def _cut(text: str | None, chars_max: int) -> str | None:
    return None if text is None else storable_text(text)[:chars_max]


def _object(values: Mapping[str, object], depth: int) -> dict[str, object]:
    return {storable_text(str(name)): _value(value, depth) for name, value in values.items()}


def _value(value: object, depth: int) -> object:
    kept: object
    match value:
        case None | bool() | int():
            kept = value
        case float() if math.isfinite(value):
            kept = value
        case Mapping() | list() | tuple() if depth == 0:
            kept = CUT
        case Mapping():
            kept = _object(value, depth - 1)
        case list() | tuple():
            kept = [_value(item, depth - 1) for item in value]
        case _:
            kept = storable_text(str(value))
    return kept
