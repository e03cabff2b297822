"""
`billing-jobs jobs`: look at jobs, and decide about dead letters.

Owns the commands; what they do is `lifecycle.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import typer

from billing_jobs import lifecycle
from billing_jobs.bootstrap import Runtime
from billing_jobs.cli import connect, console
from billing_jobs.domain.errors import IllegalTransition, NotFound
from billing_jobs.domain.job import JobState, JobView

app = console.new_app("Look at jobs, cancel them, and decide about dead letters.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[UUID, typer.Argument(help="The job's id.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]
Actor = Annotated[str, typer.Option(help="Who; kept in the audit trail.")]

#: Rows of one page.
PAGE_MAX = 1000


@app.command("list")
def list_jobs(
    *,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only jobs of this kind.")] = None,
    after: Annotated[UUID | None, typer.Option(help="Go on after this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE_MAX, help="Rows at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with connect.runtime() as runtime:
        views = runtime.reports.jobs(state=state, kind=kind, after=after, limit=limit)
    console.print_records(
        [asdict(view) for view in views],
        columns=("id", "kind", "state", "attempt", "run_at", "error"),
        as_json=as_json,
    )


@app.command()
def show(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Show one job with its runs."""
    with connect.runtime() as runtime:
        view = _found(runtime, job_id)
        runs = [asdict(run) for run in runtime.engine.store.attempts(job_id)]
    if as_json:
        console.print_json({**asdict(view), "attempts": runs})
        return
    console.print_table(("field", "value"), list(asdict(view).items()))
    console.print_records(
        runs, columns=("attempt", "started_at", "finished_at", "outcome", "error"), as_json=False
    )


@app.command()
def cancel(job_id: JobId, *, reason: Reason, actor: Actor = "cli") -> None:
    """Call a job off; too late once a call to the outside is declared."""
    with connect.runtime() as runtime:
        _found(runtime, job_id)
        answer = lifecycle.cancel(runtime.engine, job_id, actor=actor, reason=reason)
    if answer == "too_late":
        raise IllegalTransition(
            f"Job {job_id} cannot be cancelled: it is at its end, or a call to the outside was "
            "declared and its outcome will be looked up. See `billing-jobs jobs show`."
        )
    console.say(answer)


@app.command()
def replay(job_id: JobId, *, reason: Reason, actor: Actor = "cli") -> None:
    """Make a dead letter pending again, under the same keys."""
    with connect.runtime() as runtime:
        view = _found(runtime, job_id)
        replayed = lifecycle.replay(runtime.engine, job_id, actor=actor, reason=reason)
    if not replayed:
        raise IllegalTransition(f"Job {job_id} is {view.state}: only a dead letter is replayed.")
    console.say("pending")


@app.command()
def resolve(job_id: JobId, *, reason: Reason, actor: Actor = "cli") -> None:
    """Close a dead letter without running it again."""
    with connect.runtime() as runtime:
        view = _found(runtime, job_id)
        resolved = runtime.engine.store.resolve(job_id, actor=actor, reason=reason)
    if not resolved:
        raise IllegalTransition(
            f"Job {job_id} is {view.state}: only a dead letter is resolved, and only while no call "
            "of it is in doubt. Replay it: the next run looks at the gateway first."
        )
    console.say("cancelled")


def _found(runtime: Runtime, job_id: UUID) -> JobView:
    view = runtime.engine.store.get(job_id)
    if view is None:
        raise NotFound(f"There is no job {job_id}. List jobs with `billing-jobs jobs list`.")
    return view
