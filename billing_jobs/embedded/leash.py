"""
The first steps of a child: bind its life to its supervisor, choose its user, become the program.

It is run as a script, by path, with no site packages (``python -I -S leash.py PARENT SIGNAL WAY UID
GID PROGRAM ARGUMENTS...``), so it knows the standard library and nothing of ours. It replaces
`setpriv` and `unshare`, which not every machine has, and which cannot tell that the supervisor died
before they were reached. Why a server needs another user is told in `identity`.

Without a program it only tries whether the way is open, and ends with status 0.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

#: The supervisor died before we were bound to it: nobody is left to tell.
STATUS_ORPHANED = 125
#: Something was refused; the reason is on stderr.
STATUS_REFUSED = 126

# From linux/prctl.h, linux/sched.h and linux/capability.h.
_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CLONE_NEWUSER = 0x10000000
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE = 1

_PROGRAM_AT = 6


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySet(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def main(argv: list[str]) -> int:
    """
    Do the steps and become the program; returns only when that was refused, or for a trial.

    Crash safety: nothing is written. Killed before the signal is set, nothing was started yet; the
    check of the parent afterwards closes the gap.
    """
    parent, death_signal, way = int(argv[1]), int(argv[2]), argv[3]
    uid, gid = int(argv[4]), int(argv[5])
    program = argv[_PROGRAM_AT:]
    try:
        _take_way(way, uid, gid)
        # After the change of user, because that change clears it.
        bind_to_parent(death_signal)
        if os.getppid() != parent:
            return STATUS_ORPHANED
        _forget_inherited_signals()
        if program:
            os.execv(program[0], program)  # noqa: S606 -- no shell is the point
    except OSError as error:
        what = program[0] if program else "this way"
        sys.stderr.write(f"cannot start {what}: {error.strerror}\n")
        return STATUS_REFUSED
    return 0


def bind_to_parent(death_signal: int) -> None:
    """Get the signal when the thread that started us ends. Only Linux knows this; 0 unbinds."""
    if sys.platform == "linux":
        _call("prctl", _PR_SET_PDEATHSIG, death_signal, 0, 0, 0)


def _take_way(way: str, uid: int, gid: int) -> None:
    if way == "namespace":
        _enter_namespace(uid, gid)
    elif way == "other-user":
        _become(uid, gid)


def _enter_namespace(uid: int, gid: int) -> None:
    """Be called `uid` in a namespace of our own; files are still made as the user we are."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWUSER)
    # Without this the kernel takes no group map from a process that lacks CAP_SETGID outside.
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1", encoding="ascii")


def _become(uid: int, gid: int) -> None:
    """Be `uid`, and on Linux keep the right to pass directories that only root may enter."""
    if sys.platform == "linux":
        _call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setregid(gid, gid)
    os.setreuid(uid, uid)
    if sys.platform == "linux":
        header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
        only = 1 << _CAP_DAC_OVERRIDE
        sets = (_CapabilitySet * 2)(_CapabilitySet(only, only, only), _CapabilitySet(0, 0, 0))
        _call("capset", ctypes.byref(header), sets)
        _call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)


def _forget_inherited_signals() -> None:
    # A shell starts background jobs with SIGINT and SIGQUIT ignored, and exec hands that on: a
    # server that only asks for the default would then not hear the signal that stops it.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _call(function: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
