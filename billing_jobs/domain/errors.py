"""
Every error of billing_jobs, one tree. Expected answers of executors are outcomes, not errors.

    BillingJobsError
    ├── InputError                 what a person or a caller gave us is wrong
    │   ├── ArgumentsInvalid       arguments of delay() or enqueue() that do not validate
    │   ├── UnknownJobKind         a kind that no registered executor carries
    │   ├── UnknownQueue           a queue that is not declared
    │   ├── OptionRefused          an option of apply_async we cannot keep (link, a naive eta)
    │   ├── UnknownCurrency        no ISO 4217 currency with minor units
    │   ├── AmountInvalid          not an integer in minor units, or out of range
    │   ├── BookInvalid            lines of an imported book; all of them at once
    │   ├── SettingsInvalid        settings; all of them at once
    │   └── NotFound               nothing has that id
    ├── EnqueueError               the job was not recorded; nothing is half done
    ├── StoreUnavailable           Postgres cannot be reached, or did not answer in time
    ├── RecordRefused              Postgres refused what a run wanted to write; nothing was written
    ├── LeaseLost                  another worker owns the job now; nothing was written
    ├── IllegalTransition          a state change that the state machine does not know
    ├── GatewayError               what a payment gateway did, by what is known about the money
    │   ├── GatewayNotSent         provably nothing was sent; safe to try again
    │   ├── GatewayBusy            refused before execution (429, 409 in flight); safe to try again
    │   ├── GatewayOutcomeUnknown  sent, and no usable answer: money may have moved
    │   ├── GatewayRefusedRequest  our request is wrong; no money moved, trying again is useless
    │   └── GatewayAuthentication  our credentials are refused; nothing was executed
    ├── MailError                  what a mail server did, by what is known about the mail
    │   ├── MailNotSent            provably not accepted; safe to try again
    │   ├── MailRefused            refused for good
    │   └── MailOutcomeUnknown     the connection was lost after DATA: it may have been accepted
    └── EmbeddedError              servers that `up` runs for a person who has none
        ├── ServerNotFound         no binary: neither a wheel nor on the PATH
        ├── ServerFailed           it did not start, or died; with the end of its log
        ├── DataDirUnusable        not writable, not ours, or made by another major version
        ├── AlreadyRunning         another supervisor owns the data directory
        └── PortTaken              somebody else listens there

Each message says what happened, which thing, and what to do next. `code` names the page under
`docs/errors/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class BillingJobsError(Exception):
    """The root. Errors carry their text as the one argument, so that they survive pickle."""

    #: The name of the page under docs/errors/.
    code: ClassVar[str] = "error"

    def __init__(self, message: str = "") -> None:
        """Keep the finished sentence: what, which, what to do."""
        super().__init__(message)

    @property
    def message(self) -> str:
        """The sentence for a person."""
        return str(self.args[0])


class InputError(BillingJobsError):
    """What a person or a caller gave us is wrong; nothing was done."""

    code = "input"


class ArgumentsInvalid(InputError):
    """Arguments of a job that do not validate."""

    code = "arguments-invalid"


class UnknownJobKind(InputError):
    """A kind that no registered executor carries."""

    code = "unknown-job-kind"


class UnknownQueue(InputError):
    """A queue that is not declared."""

    code = "unknown-queue"


class OptionRefused(InputError):
    """An option of apply_async that cannot be kept: it would fire too early, or lie."""

    code = "option-refused"


class UnknownCurrency(InputError):
    """No ISO 4217 currency with minor units."""

    code = "unknown-currency"


class AmountInvalid(InputError):
    """An amount that is not an integer in minor units, or out of range."""

    code = "amount-invalid"


class _Problems(InputError):
    """Several problems told together, so that a person repairs them in one go."""

    def __init__(self, message: str = "", problems: Sequence[str] = ()) -> None:
        """Keep the heading and each problem."""
        super().__init__(message)
        self.args = (message, tuple(problems))

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence a problem, in the order met."""
        return tuple(self.args[1])

    def __str__(self) -> str:
        return "\n".join((self.message, *(f"  - {problem}" for problem in self.problems)))


class BookInvalid(_Problems):
    """Lines of an imported book that are wrong; nothing was imported."""

    code = "book-invalid"


class SettingsInvalid(_Problems):
    """Settings that are wrong; nothing was started."""

    code = "settings-invalid"


class NotFound(InputError):
    """Nothing has that id."""

    code = "not-found"


class EnqueueError(BillingJobsError):
    """The job was not recorded, and nothing is half done: call again with the same key."""

    code = "enqueue"


class StoreUnavailable(BillingJobsError):
    """Postgres cannot be reached, or did not answer in time."""

    code = "store-unavailable"


class RecordRefused(BillingJobsError):
    """Postgres refused an effect or a follow-up of a run; nothing was written."""

    code = "record-refused"


class LeaseLost(BillingJobsError):
    """Another worker owns the job now, or the lease could not be renewed; nothing was written."""

    code = "lease-lost"


class IllegalTransition(BillingJobsError):
    """A state change that the state machine does not know."""

    code = "illegal-transition"


class GatewayError(BillingJobsError):
    """What a payment gateway did, classified by what is known about the money."""

    code = "gateway"

    def __init__(
        self,
        message: str = "",
        *,
        raw: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        """Keep the sentence, the redacted raw answer and the pause the gateway asked for."""
        super().__init__(message)
        self.raw = raw
        self.retry_after_seconds = retry_after_seconds

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, self.__dict__)


class GatewayNotSent(GatewayError):
    """Provably nothing was sent: refused, unresolved or never established connection."""

    code = "gateway-not-sent"


class GatewayBusy(GatewayError):
    """Refused before execution (429, or 409 while the same key is in flight)."""

    code = "gateway-busy"


class GatewayOutcomeUnknown(GatewayError):
    """Sent, and no usable answer (time-out, 5xx, cut connection): money may have moved."""

    code = "gateway-outcome-unknown"


class GatewayRefusedRequest(GatewayError):
    """The gateway says that our request is wrong (400, 404); no money moved."""

    code = "gateway-refused-request"


class GatewayAuthentication(GatewayError):
    """Our credentials are refused (401, 403); nothing was executed."""

    code = "gateway-authentication"


class MailError(BillingJobsError):
    """What a mail server did, classified by what is known about the mail."""

    code = "mail"


class MailNotSent(MailError):
    """Provably not accepted: refused connection, or a 4xx before DATA was taken."""

    code = "mail-not-sent"


class MailRefused(MailError):
    """Refused for good (5xx)."""

    code = "mail-refused"


class MailOutcomeUnknown(MailError):
    """The connection was lost after DATA: the mail may have been accepted."""

    code = "mail-outcome-unknown"


class EmbeddedError(BillingJobsError):
    """Servers that `up` runs for a person who has none."""

    code = "embedded"


class ServerNotFound(EmbeddedError):
    """No binary, neither in a wheel nor on the PATH."""

    code = "server-not-found"


class ServerFailed(EmbeddedError):
    """A server did not start, or died."""

    code = "server-failed"


class DataDirUnusable(EmbeddedError):
    """A data directory that is not writable, not ours, or made by another major version."""

    code = "data-dir-unusable"


class AlreadyRunning(EmbeddedError):
    """Another supervisor owns the data directory."""

    code = "already-running"


class PortTaken(EmbeddedError):
    """Somebody else listens on the port."""

    code = "port-taken"
