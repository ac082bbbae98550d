"""From a command line to the guard's process: everything that can be wrong is found here, before it becomes resident.

The guard is exec'd in place of this process, so the pid that a shell or systemd knows stays the guard's.
"""

from __future__ import annotations

import argparse
import compileall
import errno
import fcntl
import importlib.util
import ipaddress
import json
import os
import socket
import stat
import sys
from collections.abc import Sequence
from typing import Any

import tidegate
from tidegate.cli import handover
from tidegate.cli.attach_check import check_door, fence_unit, find_attachment, unit_groups
from tidegate.cli.engine_check import check_engine
from tidegate.cli.planning import plan_profiles
from tidegate.cli.settings_flags import flags_again, settings_from
from tidegate.errors import TidegateError
from tidegate.guard.notify import LISTENER, Notifier
from tidegate.guard.plan import Plan
from tidegate.settings.keys import read_keys
from tidegate.settings.load import parse_listen
from tidegate.settings.model import GatewaySettings, Settings
from tidegate.settings.paths import run_directory

#: Clients that may wait in the kernel while the gateway is busy or being started again.
_BACKLOG = 512
#: Socket paths have at most 107 bytes (unix(7)); "/worker-1234567.sock" is the longest name in the run directory.
_MOST_DIRECTORY_BYTES = 107 - 20


def launch(arguments: argparse.Namespace, *, gateway: bool) -> int:
    """Become the guard. Returns only by raising.

    Raises:
        TidegateError: it cannot start, and would not the next time either.
    """
    settings = settings_from(arguments)
    if gateway and importlib.util.find_spec("aiohttp") is None:
        raise TidegateError(
            "cannot start the gateway: aiohttp is not installed", hint="pip install 'tidegate[gateway]'"
        )
    attachment = find_attachment(settings.worker, gateway=gateway) if settings.worker.attached else None
    if attachment is not None and gateway:
        check_door(settings.worker.url, settings.gateway.listen)
    profiles = plan_profiles(settings)
    flags = check_engine(settings.worker) if attachment is None else ()
    directory = make_run_directory(run_directory(os.environ, uid=os.getuid()))
    lock = lock_directory(directory)
    make_slot_directory(settings.worker.carry_over)
    if attachment is not None and attachment.kind == "unit" and not arguments.observe:
        trouble = fence_unit(attachment.name, settings.fence)
        if trouble:
            print(f"tidegate: warning: cannot set the fence of {attachment.label}: {trouble}", file=sys.stderr)
    check_access(settings.gateway, gateway=gateway)
    kept = fitting(kept_listeners(), settings.gateway.listen) if gateway else None
    leaving = handover.dismiss_gateway(directory)
    if kept is None:
        # What the manager keeps is for another address, and would stand in the way of ours.
        Notifier(os.environ).keep(())
    listeners = []
    if gateway:
        listeners = [kept or handover.after(leaving, lambda: listen(settings.gateway.listen))]
    leaving_fd = -1 if kept is None or leaving is None else leaving
    source = os.path.dirname(os.path.dirname(os.path.abspath(tidegate.__file__)))
    plan = Plan(
        settings=settings,
        profiles=profiles,
        engine_flags=flags,
        run_directory=directory,
        python=sys.executable,
        source=source,
        listen_fds=tuple(listener.fileno() for listener in listeners),
        lock_fd=lock,
        leaving_fd=leaving_fd,
        reload=(sys.executable, "-P", "-m", "tidegate", "check-config", "--json", *flags_again(arguments)),
        attachment=attachment,
        protected=unit_groups(settings.protect.units),
        gateway=gateway,
        observe=arguments.observe,
        supervised="NOTIFY_SOCKET" in os.environ,
    )
    plan_fd = os.memfd_create("tidegate-plan", 0)
    os.write(plan_fd, json.dumps(plan.to_json()).encode())
    os.lseek(plan_fd, 0, os.SEEK_SET)
    for fd in (plan_fd, lock, leaving_fd, *plan.listen_fds):
        if fd < 0:
            continue
        os.set_inheritable(fd, True)
    if listeners:
        if not settings.gateway.keys and not _is_local(listeners[0]):
            print(
                "tidegate: warning: anybody who reaches this address may use it: no key is asked for", file=sys.stderr
            )
        print(f"tidegate: listening on {_shown(listeners[0], settings.gateway.listen)}", file=sys.stderr, flush=True)
    guard = os.path.join(source, "tidegate", "guard", "__main__.py")
    compile_once(os.path.join(source, "tidegate"))
    os.execv(sys.executable, [sys.executable, "-I", "-S", guard, str(plan_fd)])


def check_access(settings: GatewaySettings, *, gateway: bool) -> None:
    """Read the files of keys once, to see that they can be read.

    Raises:
        TidegateError: one cannot be used, or there is none and the address can be reached from other machines.
    """
    for name, path in (("keys", settings.keys), ("control_keys", settings.control_keys)):
        if path is not None:
            read_keys(path, f"gateway.{name}")
    address = parse_listen(settings.listen)
    if not gateway or isinstance(address, str) or settings.keys or settings.without_keys:
        return
    if not all(ipaddress.ip_address(found.partition("%")[0]).is_loopback for found in _addresses(address[0])):
        raise TidegateError(
            f"cannot listen on {settings.listen} without keys: everybody in its network could use the model",
            hint="set gateway.keys to a file of keys, or gateway.without_keys = true",
        )


def _addresses(host: str) -> list[str]:
    """What ``host`` stands for; nothing if it cannot be told, which binding will say."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def compile_once(package: str) -> None:
    """Compile ``package`` if nobody has: a guard that compiles itself at its start keeps 1.5 MB of that for ever."""
    loop = os.path.join(package, "guard", "loop.py")
    if not os.path.exists(importlib.util.cache_from_source(loop)):
        compileall.compile_dir(package, quiet=2)


def make_run_directory(path: str) -> str:
    """``path``, made if need be, owned by us and closed to others.

    Raises:
        TidegateError: it cannot be made, is no directory, is somebody else's, or its name leaves no room for sockets.
    """
    if len(os.fsencode(path)) > _MOST_DIRECTORY_BYTES:
        raise TidegateError(
            f"cannot use run directory {path}: longer than {_MOST_DIRECTORY_BYTES} bytes, so sockets do not fit in it"
        )
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise TidegateError(f"cannot use run directory {path}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise TidegateError(f"cannot use run directory {path}: it is not a directory of this user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TidegateError(f"cannot use run directory {path}: others can write to it", hint=f"chmod go-w {path}")
    return path


def make_slot_directory(path: str) -> None:
    """The directory of saved slots, closed to others: prompts are in it. Without it nothing is carried over."""
    if not path.startswith("/"):
        return
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        trouble = "" if os.access(path, os.W_OK | os.X_OK) else "it cannot be written to"
        if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            print(f"tidegate: warning: others can read {path}, where prompts are kept", file=sys.stderr)
    except OSError as error:
        trouble = error.strerror or str(error)
    if trouble:
        print(
            f"tidegate: warning: cannot carry prompts over a restart: {path}: {trouble} (worker.carry_over)",
            file=sys.stderr,
        )


def lock_directory(path: str) -> int:
    """A descriptor that holds the run directory's lock for as long as it is open.

    Raises:
        TidegateError: another instance holds it.
    """
    lock = os.path.join(path, "lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise TidegateError(f"cannot open {lock}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise TidegateError(
            f"cannot start: another tidegate (pid {holder}) runs in {path}",
            hint="set $RUNTIME_DIRECTORY for a second instance",
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def kept_listeners() -> list[socket.socket]:
    """The listening sockets that the last guard left with the service manager (sd_listen_fds(3)); [] elsewhere. The
    variables are taken out of the environment, as they are not for the worker."""
    pid, names = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDNAMES", "").split(":")
    count = os.environ.pop("LISTEN_FDS", "")
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    found = []
    for fd, name in zip(range(3, 3 + int(count)), names, strict=False):
        if name == LISTENER:
            os.set_inheritable(fd, False)
            found.append(socket.socket(fileno=fd))
    return found


def fitting(kept: Sequence[socket.socket], address: str) -> socket.socket | None:
    """The one of ``kept`` that listens on ``address``, or None; the others are closed."""
    where = parse_listen(address)
    found = None
    for listener in kept:
        if found is None and _listens(listener, where):
            found = listener
        else:
            listener.close()
    return found


def _listens(listener: socket.socket, where: tuple[str, int] | str) -> bool:
    if isinstance(where, str):
        return listener.family == socket.AF_UNIX and listener.getsockname() == where and os.path.exists(where)
    try:
        family, _, _, _, target = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        # Said when it is to be bound.
        return False
    return listener.family == family and listener.getsockname()[:2] == target[:2]


def listen(address: str) -> socket.socket:
    """A listening socket on ``address``: made here so that a taken port is found before anything starts, and kept by
    the guard so that clients are not refused while the gateway starts again.

    Raises:
        TidegateError: taken, not ours, or no such address.
    """
    where = parse_listen(address)
    try:
        if isinstance(where, str):
            _clear_dead_socket(where)
            return _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), where)
        family, kind, protocol, _, target = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        # A port in TIME_WAIT is free; one that somebody listens on is not, and still gives EADDRINUSE.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _bound(listener, target)
    except UnicodeError:
        raise TidegateError(f"cannot listen on {address}: no such host name") from None
    except OSError as error:
        hint = "choose another address with --listen" if error.errno == errno.EADDRINUSE else ""
        raise TidegateError(f"cannot listen on {address}: {error.strerror or error}", hint=hint) from None


def _bound(listener: socket.socket, target: Any) -> socket.socket:
    try:
        listener.bind(target)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _clear_dead_socket(path: str) -> None:
    """Remove the socket that an instance which did not end in order has left; anything else stays, and is in use."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # A full backlog must not hold us; whoever has one is alive.
            probe.setblocking(False)
            probe.connect(path)
    except ConnectionRefusedError:
        os.unlink(path)
    except OSError:
        pass


def _is_local(listener: socket.socket) -> bool:
    if listener.family == socket.AF_UNIX:
        return True
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _shown(listener: socket.socket, address: str) -> str:
    if listener.family == socket.AF_UNIX:
        return address
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def settings_document(settings: Settings) -> dict[str, object]:
    """What ``check-config --json`` prints and a reload reads."""
    profiles = plan_profiles(settings)
    return {
        "settings": settings.to_json(),
        "profiles": {name: vars(each) for name, each in profiles.items()},
    }
