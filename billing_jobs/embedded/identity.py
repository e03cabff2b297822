"""
As whom a server runs: PostgreSQL refuses to run as root, and initdb wants a name for its user.

It decides and describes; `leash` does it. Nothing of the machine is changed: no user is made, no
mode of a directory that is not ours. The ways, in the order tried for root:

1. a user namespace of one process, in which root's own uid is called `nobody`. Files stay root's.
2. `nobody` itself, keeping the one capability that lets it through root's private directories.
   The usual container forbids root the first and allows this. The cluster then is `nobody`'s.

A uid without a name (a container started with a bare number) has only the first way.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from billing_jobs.domain.errors import ServerFailed

#: By convention `nobody` on Linux; any other name but root's would do.
_NOBODY_UID = 65534
#: A trial is one start of an interpreter; this is for a machine that is very busy.
_TRIAL_SECONDS = 30.0

_LEASH = Path(__file__).with_name("leash.py")


class Way(StrEnum):
    """How a child comes to its user."""

    #: As we are.
    SAME = "same"
    #: Still us, under another name, in a namespace of its own.
    NAMESPACE = "namespace"
    #: Another user, with the right to pass any directory.
    OTHER_USER = "other-user"


@dataclass(frozen=True)
class Identity:
    """A way, and the user it leads to; for the way `SAME` the numbers mean nothing."""

    way: Way
    uid: int = -1
    gid: int = -1

    @property
    def owner(self) -> int:
        """The uid that owns the files such a child makes, as seen by us."""
        return self.uid if self.way is Way.OTHER_USER else os.geteuid()


SAME = Identity(Way.SAME)


def leash_argv(*, identity: Identity, death_signal: int, argv: Sequence[str]) -> list[str]:
    """Return the command that starts a program on the leash of the calling process."""
    # Isolated and without site: no environment variable, no .pth file, and a start of 17 ms.
    start = [sys.executable, "-I", "-S", os.fspath(_LEASH), str(os.getpid()), str(death_signal)]
    return [*start, identity.way.value, str(identity.uid), str(identity.gid), *argv]


def try_way(identity: Identity) -> str | None:
    """Return why this way is closed here, or None when it is open. Starts one short process."""
    argv = leash_argv(identity=identity, death_signal=0, argv=())
    trial = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TRIAL_SECONDS,
        check=False,
    )
    return None if trial.returncode == 0 else trial.stderr.strip() or f"status {trial.returncode}"


def postgres_identity(
    *,
    euid: int,
    named: Callable[[int], bool] | None = None,
    refusal: Callable[[Identity], str | None] = try_way,
) -> Identity:
    """
    Return as whom PostgreSQL can run when we are `euid`.

    Raises:
        ServerFailed: no way is open; the message has the reasons and what to do.
    """
    if euid != 0 and (named or _has_name)(euid):
        return SAME
    uid, gid = _nobody()
    ways = (Way.NAMESPACE, Way.OTHER_USER) if euid == 0 else (Way.NAMESPACE,)
    reasons = []
    for way in ways:
        identity = Identity(way, uid, gid)
        reason = refusal(identity)
        if reason is None:
            return identity
        reasons.append(f"{way.value}: {reason}")
    who = "as root" if euid == 0 else f"as uid {euid}, which has no name in /etc/passwd"
    raise ServerFailed(
        f"PostgreSQL does not run {who}, and this machine allows no other way "
        f"({'; '.join(reasons)}). Run this command as an ordinary user, or set "
        "BILLING_JOBS_DATABASE_URL to a server that already runs."
    )


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _nobody() -> tuple[int, int]:
    """Return uid and gid of a user that has a name and is not root."""
    known = [user for user in pwd.getpwall() if user.pw_uid != 0]
    # Sorted so that `nobody` comes first where it exists.
    known.sort(key=lambda user: user.pw_uid != _NOBODY_UID)
    if not known:
        return _NOBODY_UID, _NOBODY_UID
    return known[0].pw_uid, known[0].pw_gid
