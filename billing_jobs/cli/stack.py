"""
The processes of `billing-jobs up`: which there are, how they are started and found.

Owns the member list and their environment. Starting, watching and stopping is `embedded`; what is
run on them is `up.py`.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from billing_jobs.config import Settings, child_environment
from billing_jobs.embedded.binaries import find_postgres, find_valkey
from billing_jobs.embedded.data_dir import DataDir
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.embedded.processes import ProcessSet, ProcessSpec
from billing_jobs.embedded.supervised import Supervised
from billing_jobs.embedded.tcp_ports import free_port, is_answered, require_free_port
from billing_jobs.embedded.valkey import EmbeddedValkey

#: A worker that waits for its jobs gets this much longer than their deadline.
STOP_SLACK_SECONDS = 5.0

#: Members without which a run goes on.
OPTIONAL = frozenset({"flower"})

#: Members that start once the book is billed.
LATER = frozenset({"beat", "mail"})

#: Events for Flower; without mingle and gossip a worker is ready in 0.7 s instead of 3 s.
WORKER_OPTIONS = ("worker", "-E", "--without-mingle", "--without-gossip", "--loglevel=INFO")

#: Who signs in to Flower.
FLOWER_USER = "ops"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where everything listens; handed to the children and shown to the user."""

    database_url: str
    broker_url: str
    sandbox_url: str
    smtp_url: str
    flower_url: str
    flower_password: str

    def settings(self) -> dict[str, str]:
        """Return the settings that lead a process to these addresses."""
        return {
            "database_url": self.database_url,
            "broker_url": self.broker_url,
            "sandbox_url": self.sandbox_url,
            "smtp_url": self.smtp_url,
        }


@dataclass(frozen=True, slots=True)
class Stack:
    """The members, in the order of their start, and where they listen."""

    members: ProcessSet
    #: What the first jobs do without, so that they need not share the processor with its start.
    later: ProcessSet
    addresses: Addresses
    #: None without the extra `flower`.
    flower_port: int | None


def assemble(
    settings: Settings,
    data_dir: DataDir,
    *,
    overrides: Mapping[str, str],
    flower_port_given: bool,
    on_event: Callable[[str, str], None],
) -> Stack:
    """
    Put the members together; nothing is started.

    Workers and Flower start while Postgres still initialises: they wait for it by themselves.
    """
    sockets = data_dir.sockets()
    logs = data_dir.directory("logs")
    servers, urls = _servers(settings, data_dir, sockets, logs)
    ports = {"sandbox": free_port(), "mail": free_port()}
    flower_port = _flower_port(settings, given=flower_port_given)
    addresses = Addresses(
        database_url=urls["database_url"],
        broker_url=urls["broker_url"],
        sandbox_url=f"http://127.0.0.1:{ports['sandbox']}",
        smtp_url=f"smtp://127.0.0.1:{ports['mail']}",
        flower_url=f"http://{settings.flower_address}:{flower_port}/",
        flower_password=_flower_password(data_dir),
    )
    environment = child_environment({**overrides, **addresses.settings()})
    has_flower = find_spec("flower") is not None
    processes = _processes(settings, data_dir, ports=ports, environment=environment, logs=logs)
    members: list[Supervised | ProcessSpec] = [
        *(server for server in servers if server.name == "valkey"),
        *([_flower(data_dir, addresses, environment, logs / "flower.log")] if has_flower else []),
        *(spec for spec in processes if spec.name not in LATER),
        *(server for server in servers if server.name == "postgres"),
    ]
    later = [spec for spec in processes if spec.name in LATER]
    return Stack(
        members=ProcessSet(members, on_event=on_event, stop_order=_stop_order(members)),
        later=ProcessSet(later, on_event=on_event),
        addresses=addresses,
        flower_port=flower_port if has_flower else None,
    )


def _servers(
    settings: Settings, data_dir: DataDir, sockets: Path, logs: Path
) -> tuple[list[Supervised], dict[str, str]]:
    """Use the configured servers, and embed those that are not configured."""
    servers: list[Supervised] = []
    if settings.database_url is None:
        binaries = find_postgres()
        postgres = EmbeddedPostgres(
            data_dir.directory("postgres"),
            socket_dir=sockets,
            binaries=binaries,
            log=logs / "postgres.log",
        )
        servers.append(postgres)
        database_url = postgres.url
    else:
        database_url = settings.database_url.get_secret_value()
    if settings.broker_url is None:
        valkey = EmbeddedValkey(
            data_dir.directory("valkey"),
            socket_dir=sockets,
            binary=find_valkey(),
            log=logs / "valkey.log",
        )
        servers.append(valkey)
        broker_url = valkey.url
    else:
        broker_url = settings.broker_url.get_secret_value()
    return servers, {"database_url": database_url, "broker_url": broker_url}


def _processes(
    settings: Settings,
    data_dir: DataDir,
    *,
    ports: Mapping[str, int],
    environment: Mapping[str, str],
    logs: Path,
) -> list[ProcessSpec]:
    def spec(name: str, *arguments: str, stop_seconds: float = 10.0) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=(sys.executable, "-m", *arguments),
            env=environment,
            log=logs / f"{name}.log",
            stop_deadline_seconds=stop_seconds,
            # A worker that is asked to stop while its broker dies beside it waits for the broker.
            death_signal=signal.SIGKILL,
        )

    celery = ("celery", "-A", "billing_jobs")
    journal, mailbox = data_dir.directory("gateway"), data_dir.directory("mailbox")
    return [
        spec(
            "worker",
            *celery,
            *WORKER_OPTIONS,
            stop_seconds=settings.stop_deadline_seconds + STOP_SLACK_SECONDS,
        ),
        spec(
            "sandbox",
            "billing_jobs.sandbox",
            f"--port={ports['sandbox']}",
            f"--journal={journal / 'journal'}",
        ),
        spec("beat", *celery, "beat", "--loglevel=INFO"),
        spec(
            "mail", "billing_jobs.sandbox.mail", f"--port={ports['mail']}", f"--mailbox={mailbox}"
        ),
    ]


def _flower(
    data_dir: DataDir, addresses: Addresses, environment: Mapping[str, str], log: Path
) -> ProcessSpec:
    """Flower as a window: loopback, password, read only, bounded, kept over a restart."""
    host, _, port = addresses.flower_url.removeprefix("http://").strip("/").rpartition(":")
    options = {
        "FLOWER_BASIC_AUTH": f"{FLOWER_USER}:{addresses.flower_password}",
        "FLOWER_COOKIE_SECRET": secrets.token_urlsafe(32),
        "FLOWER_READ_ONLY": "true",
        "FLOWER_PERSISTENT": "true",
        "FLOWER_DB": str(data_dir.directory("flower") / "state"),
        "FLOWER_STATE_SAVE_INTERVAL": "5000",
        "FLOWER_MAX_TASKS": "10000",
        "FLOWER_PURGE_OFFLINE_WORKERS": "300",
        "FLOWER_TASKS_COLUMNS": "name,uuid,state,kwargs,received,started,worker",
    }
    celery = (sys.executable, "-m", "celery", "-A", "billing_jobs")
    return ProcessSpec(
        name="flower",
        argv=(*celery, "flower", f"--address={host}", f"--port={port}"),
        env={**environment, **options},
        log=log,
    )


def _flower_port(settings: Settings, *, given: bool) -> int:
    if given:
        require_free_port(settings.flower_port, "Flower", option="--flower-port")
        return settings.flower_port
    return free_port() if is_answered(settings.flower_port) else settings.flower_port


def _flower_password(data_dir: DataDir) -> str:
    """Return the password of this data directory, made at the first start."""
    state = data_dir.read_state()
    password = state.get("flower_password")
    if not isinstance(password, str):
        password = secrets.token_urlsafe(12)
        data_dir.write_state({**state, "flower_password": password})
    return password


def _stop_order(members: list[Supervised | ProcessSpec]) -> tuple[str, ...]:
    """Workers drain first, servers go last."""
    order = ("worker", "flower", "sandbox", "valkey", "postgres")
    names = {member.name for member in members}
    return tuple(name for name in order if name in names)
