"""Every known way in which Celery clusters fail is tested, named as covered, or pending."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.case_lists import celery_case_ids, covered, ids_in_tests, names_of_tests, pending, told


def test_the_list_of_celery_cases_is_read_whole() -> None:
    """A table row that the pattern misses would be a case that nobody checks."""
    ids = celery_case_ids()

    assert len(ids) == len(set(ids)) == 71
    assert (ids[0], ids[-1]) == ("C001", "C110")


def test_every_celery_case_is_in_exactly_one_place() -> None:
    """In a test, in the table of covered ones, or pending: never in none and never in two."""
    tested = {case_id for case_id in ids_in_tests() if case_id.startswith("C")}
    places = [tested, set(covered()), set(pending("celery"))]

    counts = {case_id: sum(case_id in place for place in places) for case_id in celery_case_ids()}

    assert [case_id for case_id, count in counts.items() if count == 0] == [], "in no place"
    assert [case_id for case_id, count in counts.items() if count > 1] == [], "in two places"
    assert set().union(*places) - set(counts) == set(), "no such case"


def test_a_covered_case_names_a_test_that_exists_and_why_it_would_fail() -> None:
    """A renamed test must not leave a promise behind that nothing keeps."""
    names = names_of_tests()

    for case_id, entry in covered().items():
        assert set(entry) == {"test", "why"}, case_id
        assert entry["test"] in names, f"{case_id}: there is no test {entry['test']}"
        assert entry["why"].strip(), f"{case_id}: why would the test fail if the fault came back?"


def test_every_pending_celery_case_says_what_it_waits_for() -> None:
    """A list without reasons is a list nobody works off."""
    assert all(": needs " in reason for reason in pending("celery").values())


def test_pending_celery_cases_are_printed() -> None:
    """Reported as an expected failure, for those are in the summary of every run."""
    waiting = pending("celery")
    if waiting:
        pytest.xfail(told(waiting))


def test_a_case_counts_as_tested_by_name_by_parameter_and_by_table(tmp_path: Path) -> None:
    """The three ways in which a test may carry its id; a mention in prose is none of them."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_sample.py").write_text(
        '''
"""C007 is only mentioned."""
import pytest
TABLE: dict[str, int] = {"C003": 1}
PLAIN = ["C004"]
UNUSED = ["C005"]

def test_c001_killed_in_charge() -> None: ...

def test_C002_frozen() -> None: ...

@pytest.mark.parametrize("case_id", sorted(TABLE))
def test_by_table(case_id: str) -> None: ...

@pytest.mark.parametrize("case_id", PLAIN)
def test_by_list(case_id: str) -> None: ...

@pytest.mark.parametrize("late", [pytest.param(True, id="C006-late-acknowledgement")])
def test_by_parameter(late: bool) -> None:
    assert "C008"

def helper() -> str:
    return "C009"
''',
        encoding="utf-8",
    )

    found = ids_in_tests(folder)

    assert found == {
        "C001": {"tests/test_sample.py::test_c001_killed_in_charge"},
        "C002": {"tests/test_sample.py::test_C002_frozen"},
        "C003": {"tests/test_sample.py::test_by_table"},
        "C004": {"tests/test_sample.py::test_by_list"},
        "C006": {"tests/test_sample.py::test_by_parameter"},
    }
    assert names_of_tests(folder) == set().union(*found.values())


def test_the_printed_list_groups_cases_by_what_they_wait_for() -> None:
    """One line a reason can be read in the summary of a run; seventy cannot."""
    assert told({"C001": "needs a", "C002": "needs b", "C004": "needs a"}) == (
        "3 cases are pending\n    needs a: C001, C004\n    needs b: C002"
    )
