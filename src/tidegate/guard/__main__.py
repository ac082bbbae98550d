"""The guard's process: plan in, descriptors inherited, everything imported and rehearsed, then memory locked.

Run by the launcher as ``python -I -S .../guard/__main__.py PLAN_FD``, so that nothing but the standard library and
tidegate itself can be imported.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tidegate.guard.commands import Commands
from tidegate.guard.fencing import prepare_groups
from tidegate.guard.helper import Helper
from tidegate.guard.log import Log
from tidegate.guard.loop import Guard
from tidegate.guard.notify import Notifier
from tidegate.guard.plan import Plan
from tidegate.guard.reactor import Reactor
from tidegate.guard.rehearsal import rehearse
from tidegate.guard.reload import Reloader
from tidegate.guard.sensors import Sensors
from tidegate.guard.server import Server
from tidegate.host import capabilities, cgroup, syscalls
from tidegate.host import process as host_process

#: Below the board's own jobs (-1000), above everything else.
_OOM_SCORE_ADJ = -900
#: What a leaving gateway has in flight may take 5 s to end.
_LEAVE_MOST_S = 10.0
#: What would suspend or end a guard without anybody meaning its worker. Ctrl-Z reaches the guard alone, as its children
#: are in sessions of their own: they would go on unguarded.
_REFUSED_SIGNALS = (
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)


def close_others(kept: frozenset[int]) -> None:
    """Close what a shell or supervisor left open: a resident process must not pin its files and pipes, nor pass them on
    to the worker."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                # The descriptor of the listing itself.
                pass


def end_gateway(pidfd: int) -> None:
    """End an earlier guard's gateway that has not left by itself."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        pass
    os.close(pidfd)


def main(plan_fd: int) -> int:
    """Guard until told to stop; the exit code."""
    with os.fdopen(plan_fd, "rb") as file:
        plan = Plan.from_json(json.load(file))
    close_others(frozenset((plan.lock_fd, plan.leaving_fd, *plan.listen_fds)))
    # They came through our exec; the worker must not keep the lock or the port when we are gone.
    for fd in (plan.lock_fd, *plan.listen_fds):
        os.set_inheritable(fd, False)
    notifier = Notifier(os.environ)
    settings = plan.settings
    log = Log(level=settings.log.level, format=settings.log.format, journal=notifier.active)
    reactor = Reactor()
    if plan.leaving_fd >= 0:
        os.set_inheritable(plan.leaving_fd, False)
        reactor.after("leaving", _LEAVE_MOST_S, lambda: end_gateway(plan.leaving_fd))
    helper = Helper(reactor.wake)
    reactor.on_wake(helper.deliver)
    helper.start()
    can = capabilities.probe()
    groups, no_fence = "", ""
    if plan.attachment is None:
        groups, no_fence = prepare_groups(cgroup.find_hierarchy(), can)
    # After that, which may have moved this process into another group.
    sensors = Sensors(capabilities=can, budget=settings.memory.budget, attached=plan.attachment is not None)
    if sensors.capabilities.lower_oom_score_adj:
        host_process.write_oom_score_adj(_OOM_SCORE_ADJ)
    guard = Guard(
        plan,
        reactor=reactor,
        sensors=sensors,
        helper=helper,
        log=log,
        notifier=notifier,
        groups=groups,
        no_fence=no_fence,
    )
    commands = Commands(guard)
    server = Server(reactor, os.path.join(plan.run_directory, "guard.sock"), commands.on_message, commands.on_close)
    reloader = Reloader(guard, reactor=reactor, log=log, notifier=notifier)
    reactor.on_signal(signal.SIGTERM, guard.stop)
    reactor.on_signal(signal.SIGINT, guard.stop)
    reactor.on_signal(signal.SIGHUP, reloader.begin)
    for number in _REFUSED_SIGNALS:
        # A handler and not SIG_IGN, which the worker would inherit.
        reactor.on_signal(number, partial(log.warning, f"ignored {number.name}: the worker would go on unguarded"))

    log.info(f"guarding with {', '.join(sensors.tier())}")
    if plan.attachment is not None:
        log.info(f"attached to {plan.attachment.label}: {plan.attachment.supervision}")
    rehearse(guard, log)
    if sensors.capabilities.mlock:
        syscalls.lock_memory()
    notifier.keep(plan.listen_fds)
    notifier.ready()
    if notifier.watchdog:

        def ping() -> None:
            notifier.alive()
            reactor.after("watchdog", notifier.watchdog, ping)

        ping()
    try:
        return guard.run()
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
