"""A network namespace of one's own: TensorFlow servers in it are reachable from inside only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_PR_SET_PDEATHSIG = 1


def enter_network_namespace() -> str | None:
    """Move this process (which must have one thread) to a new network namespace with loopback only.

    As root this needs no more; otherwise an unprivileged user namespace is used, in which the
    process keeps its own user id.

    Returns:
        None on success, otherwise why the kernel does not allow it. The process may then be in a namespace
        without any running device; see `why_no_network_namespace`.
    """
    if not sys.platform.startswith("linux"):
        return f"network namespaces exist on Linux only, this is {sys.platform}"
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if uid != 0 or libc.unshare(_CLONE_NEWNET) != 0:
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            return f"the kernel allows no network namespace here ({os.strerror(ctypes.get_errno())})"
        try:
            with contextlib.suppress(FileNotFoundError):
                _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{uid} {uid} 1")
            _write("/proc/self/gid_map", f"{gid} {gid} 1")
        except OSError as error:
            return f"the kernel allows no user namespace here ({error})"
    try:
        _bring_up("lo")
    except OSError as error:
        return f"the loopback device of the new namespace cannot be started ({error})"
    return None


def why_no_network_namespace() -> str | None:
    """The value that `enter_network_namespace` would return, tried in a child process, so that this one stays.

    There is no way back out of a namespace that was entered but could not be made ready.
    """
    if not sys.platform.startswith("linux"):
        return enter_network_namespace()
    answer, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(tell, (enter_network_namespace() or "").encode())
        finally:
            os._exit(0)
    os.close(tell)
    with open(answer) as file:
        reason = file.read()
    os.waitpid(child, 0)
    return reason or None


def network_namespace(path: str) -> tuple[int, int] | None:
    """The identity (device, inode) of a network namespace; None if there is none at the path."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def join_network_namespace(path: str) -> None:
    """Move this thread to an existing network namespace.

    Args:
        path: path of the namespace, such as ``/proc/PID/ns/net``.

    Raises:
        OSError: it does not exist, or that is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path) as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _bring_up(interface: str) -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", interface.encode(), 0).ljust(40, b"\0")
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, request)
        flags = struct.unpack_from("16sh", answer)[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", interface.encode(), flags | _IFF_UP).ljust(40, b"\0"))


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
