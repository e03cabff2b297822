"""
Ask the gateway about a charge whose outcome is unknown, on a ladder of growing pauses.

Owns the ladder. Only reads: nothing is sent again here, and nothing is guessed.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from billing_jobs.domain.errors import GatewayError
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.ledger import ChargeAnswered, ChargeAttempt
from billing_jobs.domain.outcome import Completed, Defer, FollowUp, Outcome
from billing_jobs.domain.payment import AttemptState, GatewayObject
from billing_jobs.executors import look_up
from billing_jobs.ports import Ports
from billing_jobs.registry import Arguments, OnExpiredLease, argument_id, job

#: Two look-ups in a row must show that no confirm was executed before that is believed: the first
#: may have come while the call was still on its way. The first one leaves this reason. A call that
#: arrives even later finds the same object, which takes money at most once.
NOT_EXECUTED = "the gateway shows no executed confirm so far"


class ReconcileArguments(Arguments):
    """Which charge attempt is in doubt."""

    attempt_id: UUID


@job(
    "reconcile_charge",
    arguments=ReconcileArguments,
    queue="charges",
    on_expired_lease=OnExpiredLease.RETRY,
    cancellable=False,
)
def execute_reconcile(job: ClaimedJob, ports: Ports) -> Outcome:
    """
    Look one unknown outcome up and record what is known now.

    Crash safety: reads from the gateway until the recording transaction; run twice, the second
    finds the attempt known, or an older token than its own and is refused.
    """
    attempt = ports.ledger.attempt_in_doubt(job, argument_id(job, "attempt_id"))
    if attempt is None:
        return Completed({"outcome": "known already"})
    try:
        return _concluded(job, ports, attempt, look_up.find_object(ports, attempt))
    except GatewayError as error:
        return _look_again(ports, attempt, error.message)


def _concluded(
    job: ClaimedJob, ports: Ports, attempt: ChargeAttempt, found: GatewayObject | None
) -> Outcome:
    if found is not None and attempt.object_reference is None:
        ports.ledger.keep_object(job, attempt, found.reference)
    known = None if found is None else look_up.settled(attempt, found)
    if known is None and attempt.state is AttemptState.UNKNOWN and attempt.reason == NOT_EXECUTED:
        return _not_sent(attempt, found)
    if known is None:
        return _look_again(ports, attempt, NOT_EXECUTED)
    answer = known.effects[0]
    assert isinstance(answer, ChargeAnswered), "Bug: an answered charge without its answer"
    if answer.state in look_up.LATER_STATES:
        return _look_again(ports, replace(attempt, state=answer.state), answer.reason)
    return known


def _not_sent(attempt: ChargeAttempt, found: GatewayObject | None) -> Completed:
    """No confirm was executed: the debt is free again, and a new try follows under a new key."""
    effect = ChargeAnswered(
        attempt.id,
        AttemptState.FAILED_NOT_SENT,
        "the gateway shows no executed confirm",
        answer=found,
    )
    return Completed(
        {"outcome": "failed_not_sent", "attempt_id": str(attempt.id)},
        effects=(effect,),
        then=(
            FollowUp(
                "charge", {"invoice_id": str(attempt.invoice_id)}, key=str(attempt.number + 1)
            ),
        ),
    )


def _look_again(ports: Ports, attempt: ChargeAttempt, reason: str) -> Defer:
    ladder = ports.policy.reconcile_ladder_seconds
    step = attempt.probe_count + 1
    pause = ladder[min(step, len(ladder) - 1)]
    effect = ChargeAnswered(
        attempt.id,
        attempt.state,
        reason,
        probe_after_seconds=pause,
        needs_person=step >= len(ladder),
    )
    return Defer(reason, after_seconds=pause, effects=(effect,))
