"""Periods come from the anchor alone, and a local day begins when its date does."""

from __future__ import annotations

import io
import struct
from calendar import monthrange
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from billing_jobs.domain.errors import InputError
from billing_jobs.domain.periods import (
    INTERVAL_COUNT_MAX,
    YEAR_MAX,
    YEAR_MIN,
    Anchor,
    Interval,
    IntervalUnit,
    Period,
    day_start,
    due_indexes,
    index_of,
    instant_of,
    local_date,
    period_at,
)

# The machine may be busy: a slow example is no failure.
unhurried = settings(deadline=None)

MONTHLY = Interval(IntervalUnit.MONTH)
# Zones that move their clocks at midnight, skipped a day, or differ by odd minutes.
HARD_ZONES = (
    "Africa/Cairo",
    "America/Asuncion",
    "America/Havana",
    "America/Santiago",
    "America/St_Johns",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Atlantic/Azores",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kwajalein",
    "UTC",
)

intervals = st.builds(
    Interval, st.sampled_from(list(IntervalUnit)), st.integers(1, INTERVAL_COUNT_MAX)
)
days = st.dates(date(1950, 1, 1), date(2150, 12, 31))


@st.composite
def anchors(draw: st.DrawFn) -> Anchor:
    """Any day, and month ends with and without the flag."""
    day = draw(days)
    if draw(st.booleans()):
        return Anchor(day)
    last = day.replace(day=monthrange(day.year, day.month)[1])
    return Anchor(last, month_end=draw(st.booleans()))


def starts(anchor: Anchor, interval: Interval, count: int) -> list[str]:
    """The first boundaries, as text."""
    return [str(period_at(anchor, interval, index).start) for index in range(count)]


def test_a_monthly_subscription_from_the_31st_comes_back_to_the_31st() -> None:
    """Computed from the boundary before, it would stay on the 28th for ever."""
    assert starts(Anchor(date(2025, 1, 31)), MONTHLY, 5) == [
        "2025-01-31",
        "2025-02-28",
        "2025-03-31",
        "2025-04-30",
        "2025-05-31",
    ]


def test_a_yearly_subscription_from_29_february_waits_for_the_next_one() -> None:
    """Three years on the 28th, then the 29th again."""
    yearly = Interval(IntervalUnit.YEAR)

    assert starts(Anchor(date(2024, 2, 29)), yearly, 5) == [
        "2024-02-29",
        "2025-02-28",
        "2026-02-28",
        "2027-02-28",
        "2028-02-29",
    ]


def test_month_end_is_a_flag_and_no_guess() -> None:
    """30 April may mean the 30th or the last day; only the customer knows."""
    april = date(2025, 4, 30)

    assert starts(Anchor(april, month_end=True), MONTHLY, 2) == ["2025-04-30", "2025-05-31"]
    assert starts(Anchor(april), MONTHLY, 2) == ["2025-04-30", "2025-05-30"]


def test_a_month_end_anchor_must_be_the_end_of_a_month() -> None:
    """Else the first period would not start on the day that was agreed."""
    with pytest.raises(InputError, match="2025-04-29 is not the last day of its month"):
        Anchor(date(2025, 4, 29), month_end=True)


@pytest.mark.parametrize(
    ("unit", "count", "second"),
    [
        (IntervalUnit.WEEK, 1, "2025-02-07"),
        (IntervalUnit.WEEK, 2, "2025-02-14"),
        (IntervalUnit.MONTH, 6, "2025-07-31"),
        (IntervalUnit.QUARTER, 1, "2025-04-30"),
        (IntervalUnit.QUARTER, 2, "2025-07-31"),
        (IntervalUnit.YEAR, 2, "2027-01-31"),
    ],
)
def test_an_interval_counts_its_units(unit: IntervalUnit, count: int, second: str) -> None:
    """Fortnightly and half-yearly are counts, not units of their own."""
    assert starts(Anchor(date(2025, 1, 31)), Interval(unit, count), 2)[1] == second


@pytest.mark.parametrize("count", [0, -1, INTERVAL_COUNT_MAX + 1, True, 1.0])
def test_an_interval_of_nothing_or_of_a_lifetime_is_refused(count: int) -> None:
    """Zero months would be an endless loop of invoices."""
    with pytest.raises(InputError, match=f"counts 1 to {INTERVAL_COUNT_MAX} months"):
        Interval(IntervalUnit.MONTH, count)


@unhurried
@given(anchors(), intervals, st.integers(-30, 30))
def test_periods_join_without_gap_or_overlap(anchor: Anchor, interval: Interval, at: int) -> None:
    """Half-open: the end of one is the start of the next, so no day is paid twice or never."""
    period, following = period_at(anchor, interval, at), period_at(anchor, interval, at + 1)

    assert period.end == following.start
    assert period.days == (period.end - period.start).days > 0


@unhurried
@given(anchors(), intervals, days)
def test_every_day_lies_in_the_period_of_its_index(
    anchor: Anchor, interval: Interval, day: date
) -> None:
    """index_of and period_at are each other's inverse, before the anchor too."""
    assert day in period_at(anchor, interval, index_of(anchor, interval, day))


@unhurried
@given(anchors(), intervals, st.integers(-30, 30))
def test_a_period_knows_its_index_from_each_of_its_days(
    anchor: Anchor, interval: Interval, at: int
) -> None:
    """The last day belongs to it, the end does not."""
    period = period_at(anchor, interval, at)

    assert index_of(anchor, interval, period.start) == at
    assert index_of(anchor, interval, period.end - timedelta(days=1)) == at
    assert index_of(anchor, interval, period.end) == at + 1
    assert period.end not in period


@unhurried
@given(anchors(), st.integers(-500, 500))
def test_a_month_boundary_is_the_anchors_day_or_the_months_last(anchor: Anchor, at: int) -> None:
    """Never another day, however many months have gone by."""
    start = period_at(anchor, MONTHLY, at).start
    last = monthrange(start.year, start.month)[1]

    assert start.day == (last if anchor.month_end else min(anchor.date.day, last))


@pytest.mark.parametrize(("unit", "at"), [(IntervalUnit.WEEK, 10**9), (IntervalUnit.YEAR, 8000)])
def test_a_period_beyond_the_calendar_is_refused(unit: IntervalUnit, at: int) -> None:
    """A runaway index says so, instead of dying of an overflow."""
    with pytest.raises(InputError, match=f"period {at} of every 1 {unit}"):
        period_at(Anchor(date(2025, 1, 31)), Interval(unit), at)


@pytest.mark.parametrize("end", [date(2025, 1, 1), date(2024, 12, 31)])
def test_a_period_without_days_is_refused(end: date) -> None:
    """An empty period would be billed at full price for nothing."""
    with pytest.raises(InputError, match="must end after it starts"):
        Period(date(2025, 1, 1), end)


def test_after_an_outage_each_missed_period_is_due_oldest_first() -> None:
    """Three months without a run are three invoices, not one and not a jump to today."""
    anchor = Anchor(date(2025, 1, 31))

    assert list(due_indexes(anchor, MONTHLY, first_index=1, today=date(2025, 4, 30))) == [1, 2, 3]


@pytest.mark.parametrize(
    ("today", "ends_on", "due"),
    [
        (date(2025, 1, 30), None, []),
        (date(2025, 1, 31), None, [0]),
        (date(2025, 2, 27), None, [0]),
        (date(2025, 2, 28), None, [0, 1]),
        (date(2025, 2, 28), date(2025, 2, 28), [0, 1]),
        (date(2025, 9, 9), date(2025, 2, 27), [0]),
        (date(2025, 9, 9), date(2025, 1, 1), []),
    ],
)
def test_a_period_is_due_from_its_first_day_until_the_end_date(
    today: date, ends_on: date | None, due: list[int]
) -> None:
    """Nothing before the start, nothing after the end, whenever the job runs."""
    anchor = Anchor(date(2025, 1, 31))

    found = due_indexes(anchor, MONTHLY, first_index=-5, today=today, ends_on=ends_on)

    assert list(found) == due


@unhurried
@given(anchors(), intervals, days, days)
def test_two_runs_bill_what_one_late_run_would(
    anchor: Anchor, interval: Interval, one_day: date, other_day: date
) -> None:
    """How often the job ran must not be visible in what was billed."""
    early, late = sorted((one_day, other_day))
    first_run = due_indexes(anchor, interval, first_index=0, today=early)

    second_run = due_indexes(anchor, interval, first_index=first_run.stop, today=late)

    assert [*first_run, *second_run] == list(
        due_indexes(anchor, interval, first_index=0, today=late)
    )


@pytest.mark.parametrize(
    ("zone", "day", "instant"),
    [
        ("Europe/Berlin", "2026-03-29", "2026-03-28T23:00:00"),
        ("Asia/Tokyo", "2026-03-01", "2026-02-28T15:00:00"),
        # Midnight is missing: the day begins at 01:00.
        ("Africa/Cairo", "2026-04-24", "2026-04-23T22:00:00"),
        ("America/Havana", "2026-03-08", "2026-03-08T05:00:00"),
        ("America/Santiago", "2026-09-06", "2026-09-06T04:00:00"),
        ("Asia/Beirut", "2026-03-29", "2026-03-28T22:00:00"),
        ("Atlantic/Azores", "2026-03-29", "2026-03-29T01:00:00"),
        # Midnight comes twice: the day begins at the first.
        ("America/Havana", "2026-11-01", "2026-11-01T04:00:00"),
        ("Atlantic/Azores", "2026-10-25", "2026-10-25T00:00:00"),
        # The whole day is missing.
        ("Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00"),
        ("Pacific/Apia", "2011-12-31", "2011-12-30T10:00:00"),
        # The gap began half an hour before midnight: the day begins at 00:30.
        ("America/Toronto", "1919-03-31", "1919-03-31T04:30:00"),
    ],
)
def test_a_day_begins_when_its_date_does(zone: str, day: str, instant: str) -> None:
    """Bills are due by local dates, and midnight is not always there to wait for."""
    start = day_start(date.fromisoformat(day), ZoneInfo(zone))

    assert start == datetime.fromisoformat(instant).replace(tzinfo=UTC)


@pytest.mark.parametrize("name", HARD_ZONES)
def test_day_starts_agree_with_a_clock_that_is_read_all_year(name: str) -> None:
    """The oracle knows no rule: it looks at the local date every quarter of an hour."""
    zone = ZoneInfo(name)
    quarter = timedelta(minutes=15)
    instant = datetime(2025, 12, 30, tzinfo=UTC)
    first_seen: dict[date, datetime] = {}

    while instant < datetime(2027, 1, 3, tzinfo=UTC):
        first_seen.setdefault(instant.astimezone(zone).date(), instant)
        instant += quarter

    year = [date(2026, 1, 1) + timedelta(days=days) for days in range(365)]
    assert [day_start(day, zone) for day in year] == [first_seen[day] for day in year]


@unhurried
@given(
    st.sampled_from(sorted(available_timezones())),
    st.dates(date(YEAR_MIN, 1, 2), date(2100, 1, 1)),
)
def test_a_day_ends_where_the_next_begins_in_every_zone(name: str, day: date) -> None:
    """Starts never go backwards, and no zone stands on one date for two days."""
    zone = ZoneInfo(name)
    start, end = day_start(day, zone), day_start(day + timedelta(days=1), zone)

    assert timedelta() <= end - start <= timedelta(hours=48)
    assert local_date(start, zone) >= day
    assert local_date(start - timedelta(seconds=1), zone) <= day


def made_up_zone(change: datetime, before: timedelta, gap: timedelta) -> ZoneInfo:
    """A zone whose clocks once jump forward, as bytes of the TZif format (RFC 8536, version 1)."""
    header = b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 1, 2, 4)
    moment = struct.pack(">lB", int(change.timestamp()), 1)
    seconds = int(before.total_seconds())
    types = struct.pack(">lBBlBB", seconds, 0, 0, seconds + int(gap.total_seconds()), 1, 0)
    return ZoneInfo.from_file(io.BytesIO(header + moment + types + b"XXX\0"))


@unhurried
@given(
    st.integers(100_000, 2**31 - 100_000),
    st.integers(-12 * 3600, -1),
    st.integers(1, 24 * 3600),
)
@example(864_038_214, -12 * 3600, 86_399)
def test_a_day_whose_midnight_was_skipped_begins_with_the_jump(
    change_seconds: int, before_seconds: int, gap_seconds: int
) -> None:
    """Wherever midnight lies in the gap; real zones have only shown its ends and its middle."""
    change = datetime.fromtimestamp(change_seconds, UTC)
    before, gap = timedelta(seconds=before_seconds), timedelta(seconds=gap_seconds)
    zone = made_up_zone(change, before, gap)
    old_date, new_date = ((change + offset).date() for offset in (before, before + gap))

    if (change + before).time() == time():
        assert day_start(old_date, zone) == change
    if old_date != new_date:
        assert day_start(new_date, zone) == change


@pytest.mark.parametrize(
    ("zone", "local", "instant"),
    [
        ("America/New_York", "2026-03-08T02:30", "2026-03-08T07:30:00"),
        ("America/New_York", "2026-11-01T01:30", "2026-11-01T05:30:00"),
        ("Australia/Lord_Howe", "2026-10-04T02:15", "2026-10-03T15:45:00"),
        ("Pacific/Apia", "2011-12-30T08:00", "2011-12-30T18:00:00"),
    ],
)
def test_a_skipped_local_time_moves_forward_and_a_doubled_one_is_the_first(
    zone: str, local: str, instant: str
) -> None:
    """A reminder at 02:30 is sent once on every day, also on those."""
    found = instant_of(datetime.fromisoformat(local), ZoneInfo(zone))

    assert found == datetime.fromisoformat(instant).replace(tzinfo=UTC)


def test_an_instant_is_never_read_as_a_local_time() -> None:
    """A stored UTC time taken for local was how an invoice came a day early."""
    with pytest.raises(InputError, match="already has an offset"):
        instant_of(datetime(2026, 3, 8, 2, 30, tzinfo=UTC), ZoneInfo("America/New_York"))


def test_a_local_time_is_never_read_as_an_instant() -> None:
    """And the other way round."""
    with pytest.raises(InputError, match="is no instant"):
        local_date(datetime.fromisoformat("2026-03-08T02:30"), ZoneInfo("America/New_York"))


@pytest.mark.parametrize("year", [YEAR_MIN - 1, YEAR_MAX + 1])
def test_a_day_outside_the_years_of_zones_is_refused(year: int) -> None:
    """9999-12-31 in Hawaii ends in a year that Python cannot name."""
    with pytest.raises(InputError, match=f"outside the years {YEAR_MIN} to {YEAR_MAX}"):
        day_start(date(year, 12, 31), ZoneInfo("Pacific/Honolulu"))
