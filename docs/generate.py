"""
Write the pages of `docs/reference/` that are made from the code: states, commands, log events.

Run `python docs/generate.py` after a change of one of them; `tests/architecture/test_docs.py`
compares the pages with what this would write. Owns the words around the tables and nothing else.
"""

from __future__ import annotations

import inspect
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path

from billing_jobs import cli
from billing_jobs.cli import console
from billing_jobs.domain.job import TERMINAL_STATES, TRANSITIONS, JobState, Verb
from billing_jobs.domain.ledger import NoticeState
from billing_jobs.domain.payment import (
    ATTEMPT_TRANSITIONS,
    LIVE_ATTEMPT_STATES,
    AttemptState,
)
from billing_jobs.logs import Event
