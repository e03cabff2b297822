"""What executors may say, what errors carry, and what Postgres can keep of both."""

from __future__ import annotations

import ast
import copy
import math
import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from enum import IntEnum
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import billing_jobs
from billing_jobs.domain import errors
from billing_jobs.domain.errors import (
    BillingJobsError,
    BookInvalid,
    GatewayBusy,
    GatewayError,
    IllegalTransition,
    SettingsInvalid,
)
from billing_jobs.domain.job import JobState, NewJob, Recording, Verb
from billing_jobs.domain.outcome import Completed, Defer, FollowUp, Refused, RetryLater, Unknown
from billing_jobs.domain.payment import (
    ATTEMPT_TRANSITIONS,
    LIVE_ATTEMPT_STATES,
    AttemptState,
    check_attempt_transition,
)
from billing_jobs.domain.storable import (
    CUT,
    DEPTH_MAX,
    json_bytes,
    storable_json,
    storable_recording,
    storable_text,
)
from billing_jobs.worker.results import JobNotSuccessful


def below(error: type[BillingJobsError]) -> Iterator[type[BillingJobsError]]:
    """Walk the tree of errors."""
    for child in error.__subclasses__():
        yield child
        yield from below(child)


ALL_ERRORS: list[type[BillingJobsError]] = sorted(
    {BillingJobsError, JobNotSuccessful, *below(BillingJobsError)}, key=lambda error: error.__name__
)


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_survives_pickle_and_copy(error: type[BillingJobsError]) -> None:
    """Celery sends errors between processes; one that cannot be read again kills the reader."""
    raised = error("What, which, what to do.")

    for again in (pickle.loads(pickle.dumps(raised)), copy.copy(raised), copy.deepcopy(raised)):
        assert type(again) is error
        assert (again.message, str(again), again.args) == (
            raised.message,
            str(raised),
            raised.args,
        )


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_can_be_made_without_a_text(error: type[BillingJobsError]) -> None:
    """Libraries make errors again from what they believe are their arguments: from nothing."""
    assert error().message == ""


def test_a_list_of_problems_survives_pickle() -> None:
    """All faults of a book or of the settings are told together, in every process."""
    for kind in (BookInvalid, SettingsInvalid):
        again = pickle.loads(pickle.dumps(kind("Two are wrong.", ["the first", "the second"])))

        assert again.problems == ("the first", "the second")
        assert str(again) == "Two are wrong.\n  - the first\n  - the second"


def test_what_a_gateway_said_survives_pickle() -> None:
    """The raw answer and the pause are what the next decision is made from."""
    again = pickle.loads(pickle.dumps(GatewayBusy("busy", raw="{}", retry_after_seconds=3.0)))

    assert isinstance(again, GatewayError)
    assert (again.message, again.raw, again.retry_after_seconds) == ("busy", "{}", 3.0)


def test_every_error_names_a_page_of_its_own() -> None:
    """`code` is what an operator types into the docs; two errors on one page help nobody."""
    public = [error for error in ALL_ERRORS if not error.__name__.startswith("_")]
    codes = [error.code for error in public]

    assert len(codes) == len(set(codes))
    assert [code for code in codes if not code.replace("-", "").isalpha()] == []


def test_the_tree_on_top_of_the_module_shows_every_error() -> None:
    """The overview is the first thing a reader sees, so it must be whole."""
    tree = errors.__doc__ or ""
    there = [
        error.__name__ for error in below(BillingJobsError) if error.__module__ == errors.__name__
    ]

    assert [name for name in there if not name.startswith("_") and f" {name} " not in tree] == []


def test_no_module_makes_an_error_of_its_own() -> None:
    """One root, one file. The one exception is what Celery's `get()` raises for a caller."""
    known = {error.__name__ for error in ALL_ERRORS}
    package = Path(billing_jobs.__file__).parent
    found = {
        node.name
        for path in package.rglob("*.py")
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in known for base in node.bases)
    }

    assert found == {"JobNotSuccessful"}


def test_outcomes_are_values() -> None:
    """Equal when they say the same, and nobody changes one after the fact."""
    assert RetryLater("busy", after_seconds=3.0) == RetryLater("busy", after_seconds=3.0)
    assert Completed() != Completed({"n": 1})
    for outcome in (Completed(), RetryLater("x"), Defer("x", 1.0), Refused("x"), Unknown("x", "y")):
        with pytest.raises(FrozenInstanceError):
            setattr(outcome, fields(outcome)[0].name, "other")


def test_two_completed_runs_do_not_share_a_result() -> None:
    """A default that is shared would carry one job's result into another."""
    assert Completed().result is not Completed().result
    assert (Completed().effects, Completed().then) == ((), ())


def test_a_follow_up_is_due_at_once_unless_it_says_otherwise() -> None:
    """What follows a decline follows now; a look-up waits."""
    assert FollowUp("work", {}).after_seconds == 0.0
    assert FollowUp("work", {}).key is None


@pytest.mark.parametrize(("delay", "at_once"), [(0.0, True), (-1.0, True), (0.1, False)])
def test_a_new_job_knows_whether_it_is_due_at_once(delay: float, *, at_once: bool) -> None:
    """Only then is it rung for."""
    job = NewJob(uuid4(), "work", "default", {}, "acme", "default", 4, delay_seconds=delay)

    assert job.due_at_once is at_once


@pytest.mark.parametrize("source", AttemptState)
def test_a_charge_attempt_goes_only_where_its_table_says(source: AttemptState) -> None:
    """A declined attempt that could become a success would be money without a trace."""
    for target in AttemptState:
        if target in ATTEMPT_TRANSITIONS[source]:
            check_attempt_transition(source, target)
        else:
            with pytest.raises(IllegalTransition, match=f"from {source} to {target}"):
                check_attempt_transition(source, target)


def test_an_attempt_is_live_as_long_as_something_can_become_of_it() -> None:
    """The states that lock the debt are exactly those that are not an end."""
    assert {state for state in AttemptState if ATTEMPT_TRANSITIONS[state]} == LIVE_ATTEMPT_STATES


@given(st.text(alphabet=st.characters()))
def test_every_text_can_be_stored_after_cleaning(text: str) -> None:
    """Postgres takes UTF-8 without NUL; cleaning twice changes nothing more."""
    clean = storable_text(text)

    assert "\x00" not in clean
    assert clean.encode().decode() == clean
    assert storable_text(clean) == clean


def test_a_good_text_is_not_changed() -> None:
    """Names of people are not ours to change."""
    assert storable_text("Zoë, 東京 🎉\n") == "Zoë, 東京 🎉\n"


class Level(IntEnum):
    """A number with a name."""

    HIGH = 3


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        (True, True),
        (Level.HIGH, 3),
        (10**30, 10**30),
        (0.5, 0.5),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (JobState.PENDING, "pending"),
        ((1, [2, {"a": (3,)}]), [1, [2, {"a": [3]}]]),
        ({1: {None: "a\x00"}}, {"1": {"None": "a\ufffd"}}),
        (Path("a"), "a"),
        (b"a", "b'a'"),
    ],
    ids=repr,
)
def test_every_value_becomes_json_that_postgres_takes(value: object, kept: object) -> None:
    """A forgotten `str()` in an executor must not undo its run."""
    assert storable_json({"value": value}) == {"value": kept}


def test_nesting_is_cut_where_no_result_needs_it() -> None:
    """Endless nesting would end in a RecursionError while the run is recorded."""
    deep: object = 1
    for _ in range(10_000):
        deep = {"in": [deep]}

    kept: object = storable_json(cast("dict[str, object]", deep))

    depth = 0
    while kept != CUT:
        assert isinstance(kept, dict | list)
        kept, depth = (kept["in"] if isinstance(kept, dict) else kept[0]), depth + 1
    assert depth == DEPTH_MAX + 1


def test_the_end_of_a_run_is_cut_to_size() -> None:
    """Texts by characters, results by bytes; what fits is left as it is."""
    recording = Recording(
        Verb.COMPLETE,
        JobState.COMPLETED,
        outcome="x",
        result={"t": "é"},
        error="abc",
        reason="abcd",
    )

    whole = storable_recording(recording, result_bytes=15, error_chars=4)
    cut = storable_recording(recording, result_bytes=14, error_chars=3)
    empty = storable_recording(
        Recording(Verb.DEFER, JobState.PENDING, outcome="x"), result_bytes=1, error_chars=1
    )

    assert (json_bytes({"t": "é"}), whole) == (15, recording)
    assert cut.result == {"outcome": "result_too_large", "bytes": 15}
    assert (cut.error, cut.reason) == ("abc", "abc")
    assert (empty.result, empty.error, empty.reason) == (None, None, None)
