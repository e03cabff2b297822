"""
What the sandbox remembers: payment intents, captures, idempotency keys, its clock.

Owns the memory and its one way to change: a record that is written to the journal first and
applied after, by the same code that replays the journal at a start. So a restart forgets nothing.
Decides nothing: the rules of a payment are in `payment_intents.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from billing_jobs.sandbox.answers import JsonObject
from billing_jobs.sandbox.journal import Journal, JournalDamaged

#: Stripe may drop a key of its first API version after a day.
KEY_LIFETIME_SECONDS = 24 * 60 * 60.0
#: Most keys remembered, about 400 MB of answers; past it the oldest are forgotten early.
KEYS_MAX = 200_000
#: Most payment intents held in memory, about 500 MB.
INTENTS_MAX = 200_000
#: Distinct keys counted for one payment intent and operation; more is a bug of the client anyway.
KEYS_COUNTED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Intent:
    """One payment intent: the object Stripe shows, and what only the sandbox knows about it."""

    shown: JsonObject
    #: Decides the fault; stays when Stripe no longer shows it.
    token: str
    #: Confirms that arrived and were no replays.
    confirms: int = 0
    #: Distinct idempotency keys by operation.
    keys: dict[str, list[str]] = field(default_factory=dict)

    def counted(self, operation: str, key: str | None) -> Intent:
        """Return the intent with one more arrival of this key."""
        seen = self.keys.get(operation, [])
        keys = dict(self.keys)
        if key is not None and key not in seen and len(seen) < KEYS_COUNTED_MAX:
            keys[operation] = [*seen, key]
        confirms = self.confirms + (operation == "confirm")
        return Intent(self.shown, self.token, confirms, keys)

    def showing(self, shown: JsonObject, token: str) -> Intent:
        """Return the intent with a new face."""
        return Intent(shown, token, self.confirms, self.keys)

    def as_record(self) -> JsonObject:
        """Return what the journal keeps."""
        return {
            "shown": self.shown,
            "token": self.token,
            "confirms": self.confirms,
            "keys": self.keys,
        }


@dataclass(frozen=True, slots=True)
class SavedAnswer:
    """The first answer under an idempotency key, and what it answered."""

    fingerprint: str
    status: int
    body: str
    saved_at: float


class Book:
    """
    The memory of one sandbox.

    Everything but `sync` is called with `lock` held. Times are seconds since the epoch on the
    sandbox's own clock, which tests may advance.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self.lock = threading.Lock()
        self.intents: dict[str, Intent] = {}
        self.captures: list[JsonObject] = []
        self.faults: JsonObject = {}
        self.key_lifetime_seconds = KEY_LIFETIME_SECONDS
        self._offset_seconds = 0.0
        self._answers: dict[str, SavedAnswer] = {}
        self._captured: set[str] = set()
        self._journal = journal
        self._clock = clock
        for record in journal.records():
            self._apply(record)

    def now(self) -> float:
        """Return the sandbox's time."""
        return self._clock() + self._offset_seconds

    def clock_record(self, advance_seconds: float, key_lifetime_seconds: float) -> JsonObject:
        """Return the part of a record that moves the clock."""
        return {
            "clock": {
                "offset_seconds": self._offset_seconds + advance_seconds,
                "key_lifetime_seconds": key_lifetime_seconds,
            }
        }

    def answer_under(self, key: str) -> SavedAnswer | None:
        """Return what was answered under this key, unless the key's life is over."""
        answer = self._answers.get(key)
        if answer is None or self._is_forgotten(answer):
            return None
        return answer

    def record(self, record: JsonObject) -> int:
        """
        Write one event down, then make it true; return the position for `sync`.

        Crash safety: the line is in the file before anybody can see the event. A crash in between
        is repaired by the replay at the next start.
        """
        position = self._journal.write(record)
        self._apply(record)
        return position

    def sync(self, position: int) -> None:
        """Return when everything up to `position` survives a power cut. Needs no lock."""
        self._journal.sync(position)

    def _apply(self, record: JsonObject) -> None:
        if "clock" in record:
            self._offset_seconds = record["clock"]["offset_seconds"]
            self.key_lifetime_seconds = record["clock"]["key_lifetime_seconds"]
        if "faults" in record:
            self.faults = record["faults"]
        if "intent" in record:
            intent = Intent(**record["intent"])
            self.intents[intent.shown["id"]] = intent
        if "capture" in record:
            self._capture(record["capture"])
        if "answer" in record:
            self._remember(record["answer"])

    def _capture(self, capture: JsonObject) -> None:
        intent_id = capture["payment_intent"]
        if intent_id in self._captured:
            raise JournalDamaged(
                f"Bug: {intent_id} was captured twice. A payment intent has at most one "
                "successful charge; keep the journal and report it."
            )
        self._captured.add(intent_id)
        self.captures.append(capture)

    def _remember(self, saved: JsonObject) -> None:
        self._answers.pop(saved["key"], None)
        self._answers[saved["key"]] = SavedAnswer(**saved["answer"])
        # The oldest stand first, so this looks at no more than it removes.
        while self._answers:
            key, oldest = next(iter(self._answers.items()))
            if len(self._answers) <= KEYS_MAX and not self._is_forgotten(oldest):
                return
            del self._answers[key]

    def _is_forgotten(self, answer: SavedAnswer) -> bool:
        return self.now() - answer.saved_at >= self.key_lifetime_seconds
