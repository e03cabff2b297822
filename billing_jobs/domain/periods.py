"""
Billing periods: half-open ranges of local dates, always computed from the anchor.

Owns which period a day lies in, where each one starts and ends, and the instant at which a local
day or time begins. Never from the previous period or the last run: chained addition turns the
31st into the 28th for ever. Not here: what a period costs (billing.py), the calendar of periodic
jobs (schedule.py).
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from billing_jobs.domain.errors import InputError

#: Longest interval: sixty units (five years of months), far past any price list.
INTERVAL_COUNT_MAX = 60

#: Days that have a start: the tz database knows no offsets before this, and a year later than the
#: last one cannot be moved by a zone's offset without leaving what `datetime` can hold.
YEAR_MIN = 1900
YEAR_MAX = 9990

_DAYS_A_WEEK = 7
_MONTHS_A_YEAR = 12
# A gap in local time is at most a day long (Apia, 2011), and 17 halvings find a second in a day.
_GAP_HALVINGS = 17


class IntervalUnit(StrEnum):
    """What a subscription's period is counted in."""

    #: Seven days.
    WEEK = "week"
    #: A calendar month.
    MONTH = "month"
    #: Three calendar months.
    QUARTER = "quarter"
    #: Twelve calendar months.
    YEAR = "year"


_MONTHS_A_UNIT = {IntervalUnit.MONTH: 1, IntervalUnit.QUARTER: 3, IntervalUnit.YEAR: 12}


@dataclass(frozen=True, slots=True)
class Interval:
    """The length of a period: `count` units, for example every 2 weeks."""

    unit: IntervalUnit
    count: int = 1

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 1 <= self.count <= INTERVAL_COUNT_MAX:
            raise InputError(
                f"an interval counts 1 to {INTERVAL_COUNT_MAX} {self.unit}s, not {self.count!r}",
            )

    @property
    def months(self) -> int:
        """Calendar months of the interval; 0 when it is counted in weeks."""
        return _MONTHS_A_UNIT.get(self.unit, 0) * self.count


@dataclass(frozen=True, slots=True)
class Anchor:
    """The local date from which all periods count; `month_end` means each month's last day."""

    date: date
    month_end: bool = False

    def __post_init__(self) -> None:
        if self.month_end and self.date.day != monthrange(self.date.year, self.date.month)[1]:
            raise InputError(
                f"{self.date} is not the last day of its month, so it cannot anchor month ends",
            )


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """Local dates from `start` up to but not including `end`."""

    start: date
    end: date

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise InputError(f"a period must end after it starts: {self.start} to {self.end}")

    @property
    def days(self) -> int:
        """Days in the period."""
        return (self.end - self.start).days

    def __contains__(self, day: date) -> bool:
        return self.start <= day < self.end


def period_at(anchor: Anchor, interval: Interval, index: int) -> Period:
    """
    The period with that index; 0 starts at the anchor, negative ones lie before it.

    >>> str(period_at(Anchor(date(2024, 1, 31)), Interval(IntervalUnit.MONTH), 1).start)
    '2024-02-29'
    """
    return Period(_boundary(anchor, interval, index), _boundary(anchor, interval, index + 1))


def index_of(anchor: Anchor, interval: Interval, day: date) -> int:
    """The index of the period that the day lies in; negative before the anchor."""
    if interval.months == 0:
        return (day - anchor.date).days // (_DAYS_A_WEEK * interval.count)
    index = (_month_number(day) - _month_number(anchor.date)) // interval.months
    # The boundary of that index lies in the day's month or before; only in the same month can it
    # be later than the day, and then the day still belongs to the period before.
    return index if _boundary(anchor, interval, index) <= day else index - 1


def due_indexes(
    anchor: Anchor,
    interval: Interval,
    *,
    first_index: int,
    today: date,
    ends_on: date | None = None,
) -> range:
    """
    The periods to bill in advance by `today`, oldest first: begun, not before the first, not ended.

    `ends_on` is the last day on which a period may start. When the job runs is not asked: a late
    run is owed all that was missed, and a second run that passes the next index is owed nothing.
    """
    last_day = today if ends_on is None else min(today, ends_on)
    first = max(first_index, 0)
    return range(first, max(first, index_of(anchor, interval, last_day) + 1))


def instant_of(local: datetime, zone: ZoneInfo) -> datetime:
    """
    The instant in UTC of a local time: the first of a doubled one; a skipped one moves forward.

    >>> str(instant_of(datetime(2026, 3, 8, 2, 30), ZoneInfo("America/New_York")))
    '2026-03-08 07:30:00+00:00'
    """
    if local.tzinfo is not None:
        raise InputError(f"{local} already has an offset; give the bare local time")
    _check_year(local.date())
    # fold=0 asks for the first of two, and for the offset before a gap, which moves the time by it.
    return local.replace(tzinfo=zone, fold=0).astimezone(UTC)


def local_date(instant: datetime, zone: ZoneInfo) -> date:
    """What "today" is in the zone at that instant."""
    if instant.tzinfo is None:
        raise InputError(f"{instant} is no instant: it has no offset")
    return instant.astimezone(zone).date()


def day_start(day: date, zone: ZoneInfo) -> datetime:
    """
    The first instant, in UTC, whose local date is that day or later.

    Midnight may be missing (the day starts at 01:00), doubled (it starts at the first), or the
    whole day may be missing, as in Apia on 2011-12-30 (it starts with the next one, of length 0).
    """
    midnight = datetime.combine(day, time())
    start = instant_of(midnight, zone)
    if start.astimezone(zone).replace(tzinfo=None) == midnight:
        return start
    # Midnight falls into a gap. Read with the offset after the gap it lies before the change, read
    # with the one before (`start`) at or after it: the change itself is in between.
    before = midnight.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _first_instant_of_day(day, zone, before, start)


def _first_instant_of_day(day: date, zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    # Whole seconds, for zones change at whole seconds. Below `low` the local date is earlier than
    # the day, or `low` itself is the change.
    seconds_low, seconds_high = 0, int((high - low).total_seconds())
    for _ in range(_GAP_HALVINGS):
        middle = (seconds_low + seconds_high) // 2
        if local_date(low + timedelta(seconds=middle), zone) >= day:
            seconds_high = middle
        else:
            seconds_low = min(middle + 1, seconds_high)
    return low + timedelta(seconds=seconds_high)


def _boundary(anchor: Anchor, interval: Interval, index: int) -> date:
    try:
        if interval.months == 0:
            return anchor.date + timedelta(days=_DAYS_A_WEEK * interval.count * index)
        return _month_boundary(anchor, interval.months * index)
    except (OverflowError, ValueError) as error:
        raise InputError(
            f"period {index} of every {interval.count} {interval.unit} from {anchor.date} "
            "lies outside the calendar (years 1 to 9999)",
        ) from error


def _month_boundary(anchor: Anchor, months: int) -> date:
    year, month = divmod(_month_number(anchor.date) + months, _MONTHS_A_YEAR)
    days = monthrange(year, month + 1)[1]
    return date(year, month + 1, days if anchor.month_end else min(anchor.date.day, days))


def _month_number(day: date) -> int:
    return day.year * _MONTHS_A_YEAR + day.month - 1


def _check_year(day: date) -> None:
    if not YEAR_MIN <= day.year <= YEAR_MAX:
        raise InputError(f"{day} lies outside the years {YEAR_MIN} to {YEAR_MAX}")
