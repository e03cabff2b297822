"""A real worker: its settings, its sockets, its answers, and what it refuses to start."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app.defaults import NAMESPACES, flatten
from redis import Redis
from support.cluster import REPOSITORY, Cluster, cluster
from support.processes import children
from support.waiting import until
from support.witness import Witness, witness

from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.registry import QUEUES

#: A deployment that changes one value and keeps the rest.
DEPLOYMENT = "from billing_jobs.worker.settings import *\nworker_max_tasks_per_child = 77\n"

#: What lies on the path of some other service.
FOREIGN = "broker_url = 'redis://127.0.0.1:1/0'\ntask_acks_late = True\n"

#: What Celery needs to be started with a pool whose library is not installed here.
STAND_IN = {
    "gevent/__init__.py": "",
    "gevent/monkey.py": "patch_all = print\nis_module_patched = lambda name: False\n",
    "gevent/signal.py": "",
}

#: Where the worker is that does not survive its test.
DOOMED_QUEUE = "maintenance"

#: What must be in force in a running worker. The stop's deadline is taken over and set to zero, and
#: the deployment has its own value for the number of tasks of a child.
IN_FORCE: Mapping[str, object] = {
    "accept_content": ["json"],
    "beat_enable_remote_control": True,
    "beat_max_loop_interval": 1,
    "beat_scheduler": "billing_jobs.worker.beat:Scheduler",
    "broker_connection_max_retries": None,
    "broker_connection_retry_on_startup": True,
    "broker_transport_options": {
        "health_check_interval": 15,
        "socket_connect_timeout": 2,
        "socket_keepalive": True,
        "socket_timeout": 5,
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "visibility_timeout": 120,
    },
    "enable_utc": True,
    "event_serializer": "json",
    "result_backend": "billing_jobs.worker.results:JobsBackend",
    "result_serializer": "json",
    "task_acks_late": False,
    "task_create_missing_queues": False,
    "task_default_queue": "default",
    "task_ignore_result": True,
    "task_queues": set(QUEUES),
    "task_reject_on_worker_lost": False,
    "task_retry_on_worker_lost": False,
    "task_serializer": "json",
    "timezone": "UTC",
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_concurrency": 2,
    "worker_disable_prefetch": True,
    "worker_enable_remote_control": True,
    "worker_enable_soft_shutdown_on_idle": False,
    "worker_eta_task_limit": 100,
    "worker_hijack_root_logger": False,
    "worker_max_tasks_per_child": 77,
    "worker_prefetch_multiplier": 1,
    "worker_redirect_stdouts": False,
    "worker_soft_shutdown_timeout": 0,
}


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[tuple[Cluster, Witness]]:
    """
    A cluster whose deployment has settings of its own, with a foreign file on its path.

    Its worker and its beat reach Postgres through a witness.
    """
    directory = tmp_path_factory.mktemp("worker")
    settings = {"celery_config": "our_deployment"}
    with ExitStack() as stack:
        made = stack.enter_context(cluster(directory, postgres_server, settings=settings))
        (made.directory / "our_deployment.py").write_text(DEPLOYMENT)
        (made.directory / "celeryconfig.py").write_text(FOREIGN)
        sockets = tmp_path_factory.mktemp("witness")
        connecting = stack.enter_context(witness(sockets, made.database_url))
        made.processes.settings = {**made.processes.settings, "database_url": connecting.url}
        # All queues but one, in which a message is going to end another worker.
        made.start("-Q", ",".join(queue for queue in QUEUES if queue != DOOMED_QUEUE))
        yield made, connecting
        # The processes end before the witness does, or their last words would be lost.
        made.processes.__exit__()


@pytest.fixture
def made(seen: tuple[Cluster, Witness]) -> Cluster:
    """The cluster alone."""
    return seen[0]


@pytest.fixture(scope="module")
def remote(seen: tuple[Cluster, Witness]) -> Iterator[Celery]:
    """An application that knows the broker and nothing else."""
    app = Celery("operator", broker=seen[0].broker.url, set_as_current=False)
    yield app
    app.close()


def test_ping_reaches_the_worker_and_beat(remote: Celery) -> None:
    """Operators and probes ask in Celery's own way; a beat that is silent means no retries."""

    def answers() -> dict[str, Any] | None:
        found: dict[str, Any] = remote.control.inspect(timeout=2.0).ping() or {}
        return found if len(found) == 2 else None

    nodes = until(answers, "two nodes that answer")

    assert {name.partition("@")[0] for name in nodes} == {"worker0", "celerybeat"}
    assert all(answer == {"ok": "pong"} for answer in nodes.values())


def test_every_setting_of_the_package_is_in_force_in_the_running_worker(remote: Celery) -> None:
    """
    Celery ignores a name it does not know and an attribute in the wrong place, silently.

    The deployment's value is in force too, and nothing of a `celeryconfig.py` that merely lies on
    the path: another service's broker would be ours.
    """
    answers = until(lambda: remote.control.inspect(["worker0@test"], 5.0).conf(), "an answer")

    conf = answers["worker0@test"]
    in_force: dict[str, Any] = {name: conf.get(name) for name in IN_FORCE}
    in_force["task_queues"] = {queue["name"] for queue in conf["task_queues"]}
    assert in_force["broker_transport_options"].pop("client_name").startswith("billing_jobs-")
    assert in_force == IN_FORCE
    assert "vk.sock" in conf["broker_url"]


def test_the_settings_of_the_package_are_all_known_to_celery_and_all_checked() -> None:
    """A new line in the settings module is worth nothing until it is seen in a worker."""
    source = (REPOSITORY / "billing_jobs" / "worker" / "settings.py").read_text(encoding="utf-8")
    assigned = {
        target.id
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    }

    assert assigned - {"broker_url"} == set(IN_FORCE)
    assert assigned <= set(dict(flatten(NAMESPACES)))


def test_the_main_process_never_connects_to_postgres_and_has_no_thread(
    seen: tuple[Cluster, Witness],
) -> None:
    """A connection that is open when a child is forked gives one customer the rows of another."""
    made, connecting = seen
    job_id = made.gated("sockets")
    until(lambda: made.running_on("sockets"), "a running job")
    main = made.processes.running[0].pid
    (child,) = children(main)
    threads = len(list(Path(f"/proc/{main}/task").iterdir()))
    made.open_gate("sockets")

    assert made.ended(job_id) == "completed"
    assert child in connecting.pids
    assert main not in connecting.pids
    assert threads == 1


def test_a_message_that_nobody_can_read_ends_a_worker_and_loses_no_job(
    made: Cluster, remote: Celery
) -> None:
    """Celery's main process does not survive it: it must end, not stay deaf, after its jobs."""
    # With a child to spare: a worker whose children are all busy fetches nothing.
    doomed = made.processes.worker("-Q", DOOMED_QUEUE, concurrency=2)
    running = made.gated("unreadable", queue=DOOMED_QUEUE)
    made.ring(DOOMED_QUEUE)
    until(lambda: made.running_on("unreadable"), "a running job")
    with Redis(unix_socket_path=str(made.broker.socket)) as client:
        client.lpush(DOOMED_QUEUE, "not json")
    until(lambda: "Unrecoverable" in made.processes.log_of(doomed).read_text(), "the error")
    waiting = made.gated("after the unreadable", queue=DOOMED_QUEUE)
    for name in ("unreadable", "after the unreadable"):
        made.open_gate(name)

    assert doomed.wait(timeout=30) != 0
    assert made.ended(running) == "completed"
    # Another worker takes the queue over and finds the rest.
    remote.control.add_consumer(DOOMED_QUEUE, destination=["worker0@test"])
    assert made.ended(waiting) == "completed"
    remote.control.cancel_consumer(DOOMED_QUEUE, destination=["worker0@test"])
    runs = made.query(
        "SELECT attempt, crash_count FROM jobs WHERE id = ANY(%s)", [running, waiting]
    )
    assert runs == [(1, 0), (1, 0)]


def test_messages_of_strangers_do_not_end_a_worker(made: Cluster) -> None:
    """Unknown tasks, JSON without headers and pickles come from old versions and from mistakes."""
    nonsense, drain = (
        {"task": f"billing.{name}", "id": str(uuid4()), "lang": "py"}
        for name in ("nonsense", "drain")
    )
    with (
        Celery("stranger", broker=made.broker.url, set_as_current=False) as stranger,
        stranger.producer_or_acquire() as producer,
    ):
        producer.publish([[], {}, {}], routing_key="default", headers=nonsense)
        producer.publish({"a": 1}, routing_key="default")
        producer.publish({"a": 1}, routing_key="default", serializer="pickle")
        producer.publish([["nowhere"], {}, {}], routing_key="default", headers=drain)

    job_id = made.gated("after strangers")
    made.open_gate("after strangers")

    assert made.ended(job_id) == "completed"
    assert made.processes.running[0].poll() is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-P", "threads"), "'threads' is refused: it ignores time limits"),
        (("-P", "gevent"), "'gevent' is refused: it ignores time limits"),
        (("-B",), "-B is refused: a beat inside a worker dies and stops with it"),
    ],
)
def test_what_cannot_keep_the_promises_is_refused_at_start_with_the_reason(
    options: tuple[str, ...], reason: str, made: Cluster, tmp_path: Path
) -> None:
    """A pool that cannot end a job that hangs keeps its slot for ever; a silent no helps nobody."""
    for name, text in STAND_IN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    ended = _celery(made, "worker", *options, cwd=tmp_path, PYTHONPATH=_path(made, tmp_path))

    assert ended.returncode == 1
    assert reason in ended.stderr
    assert " ready" not in ended.stdout + ended.stderr


def test_a_deployment_whose_settings_are_not_there_is_told_so(made: Cluster) -> None:
    """Started with our settings instead of its own, it would look fine and be wrong."""
    (made.directory / "incomplete.py").write_text("import not_installed\n")
    with made.calling({**made.environment, "BILLING_JOBS_CELERY_CONFIG": "nowhere"}) as caller:
        asked = "from billing_jobs import app\napp.conf.broker_url"
        answers = {"nowhere": caller.run(asked)}
        caller.value("import os\nos.environ['BILLING_JOBS_CELERY_CONFIG'] = 'incomplete'")
        # As at the start of a process, but without the seconds that takes.
        caller.value("from importlib import reload\nfrom billing_jobs.worker import settings")
        caller.value("reload(settings) and None")
        answers["incomplete"] = caller.run(asked)

    assert answers["nowhere"].error == "SettingsInvalid"
    assert "celery_config = nowhere: no such module in the working" in answers["nowhere"].message
    # A fault inside the deployment's own file keeps its own words.
    assert answers["incomplete"].error == "ModuleNotFoundError"
    assert "not_installed" in answers["incomplete"].message


def test_the_celery_command_finds_a_deployment_in_the_working_directory(
    made: Cluster, tmp_path: Path
) -> None:
    """The command of the installed package does not search there by itself, unlike `python -m`."""
    (tmp_path / "site_settings.py").write_text(DEPLOYMENT)

    ended = _celery(made, "report", cwd=tmp_path, BILLING_JOBS_CELERY_CONFIG="site_settings")

    assert "worker_max_tasks_per_child: 77" in ended.stdout


def _celery(
    made: Cluster, *options: str, cwd: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the installed command to its end."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("celery")), "-A", "billing_jobs", *options],
        env={**made.environment, "BILLING_JOBS_CELERY_CONFIG": "", **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _path(made: Cluster, more: Path) -> str:
    return f"{made.environment['PYTHONPATH']}:{more}"
