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
from tidegate.host import process as host_process
from tidegate.host import syscalls

#: Below the board's own jobs (-1000), above everything else.
_OOM_SCORE_ADJ = -900
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


def main(plan_fd: int) -> int:
    """Guard until told to stop; the exit code."""
    with os.fdopen(plan_fd, "rb") as file:
        plan = Plan.from_json(json.load(file))
    close_others(frozenset((plan.lock_fd, *plan.listen_fds)))
    # They came through our exec; the worker must not keep the lock or the port when we are gone.
    for fd in (plan.lock_fd, *plan.listen_fds):
        os.set_inheritable(fd, False)
    notifier = Notifier(os.environ)
    settings = plan.settings
    log = Log(level=settings.log.level, format=settings.log.format, journal=notifier.active)
    reactor = Reactor()
    helper = Helper(reactor.wake)
    reactor.on_wake(helper.deliver)
    helper.start()
    sensors = Sensors(budget=settings.memory.budget)
    if sensors.capabilities.lower_oom_score_adj:
        host_process.write_oom_score_adj(_OOM_SCORE_ADJ)
    guard = Guard(plan, reactor=reactor, sensors=sensors, helper=helper, log=log, notifier=notifier)
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
    rehearse(guard, log)
    if sensors.capabilities.mlock:
        syscalls.lock_memory()
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
