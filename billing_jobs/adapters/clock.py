"""
The one place that reads the time of this process and makes new ids.

The database's clock decides about jobs; these serve waiting, trust windows and logs.
"""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from uuid import UUID

#: Bits of a version 7 id beside its millisecond (RFC 9562, section 5.7).
RANDOM_A_BITS, RANDOM_B_BITS = 12, 62


class SystemClock:
    """`Clock` over the operating system."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    def steady_seconds(self) -> float:
        """
        Return seconds since the machine started, sleep included.

        CLOCK_BOOTTIME where there is one: a laptop that slept past its lease must not trust it.
        """
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def new_id(self) -> UUID:
        """
        Return a version 7 UUID.

        Its random bits come from the operating system at each call, for a generator in the process
        would be copied by fork and two children would make the same ids.
        """
        milliseconds = time.time_ns() // 1_000_000
        random_a = secrets.randbits(RANDOM_A_BITS)
        random_b = secrets.randbits(RANDOM_B_BITS)
        return UUID(
            int=(milliseconds & 0xFFFFFFFFFFFF) << 80
            | 0x7 << 76
            | random_a << 64
            | 0b10 << 62
            | random_b
        )
