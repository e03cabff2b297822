"""
Free jobs whose lease expired, and cancel those that came too late.

Owns the caution: never before a full ttl of unbroken turns, so that after an outage every owner had
the chance to renew before anybody is rescued.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from billing_jobs import logs
from billing_jobs.lifecycle import Engine
from billing_jobs.logs import Event
from billing_jobs.ports import RescuePolicy

log = logs.get_logger("rescue")

#: Jobs freed in one turn; what is left is freed in the next.
RESCUE_BATCH = 100

#: A turn that comes later than this after the last one broke the chain, in parts of the ttl.
UNBROKEN_SHARE = 0.5


@dataclass
class Rescuer:
    """Remembers since when its turns have been unbroken."""

    engine: Engine
    _unbroken_since: float | None = field(default=None, init=False)
    _last_turn: float | None = field(default=None, init=False)

    def turn(self) -> int:
        """
        Rescue what may be rescued now; return how many jobs were freed or cancelled.

        Crash safety: guarded statements; two rescuers at once skip each other's rows.
        """
        if not self._patient():
            return 0
        ttl = self.engine.limits.lease_ttl_seconds
        policy = RescuePolicy(bury_kinds=self.engine.registry.buried_when_expired())
        freed = self.engine.store.rescue(policy, limit=RESCUE_BATCH, ttl_seconds=ttl)
        if freed:
            log.warning(Event.JOB_RESCUED, count=len(freed))
        return len(freed) + len(self.engine.store.expire(limit=RESCUE_BATCH))

    def broken(self) -> None:
        """Forget the chain: a turn failed, so owners may not have been able to renew either."""
        self._unbroken_since = None
        self._last_turn = None

    def _patient(self) -> bool:
        now = self.engine.clock.steady_seconds()
        ttl = self.engine.limits.lease_ttl_seconds
        if self._last_turn is None or now - self._last_turn > ttl * UNBROKEN_SHARE:
            self._unbroken_since = now
        self._last_turn = now
        assert self._unbroken_since is not None
        return now - self._unbroken_since >= ttl
