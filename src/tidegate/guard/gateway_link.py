"""The gateway as the guard sees it: a child that is kept running, told the state, and asked for its ledger."""

from __future__ import annotations

import json
import os

from tidegate.guard import state_file
from tidegate.guard.reactor import READ
from tidegate.host import process as host_process
from tidegate.worker.lifecycle import backoff
from tidegate.worker.process import Child, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tidegate.guard.log import Log
    from tidegate.guard.plan import Plan
    from tidegate.guard.reactor import Reactor
    from tidegate.guard.server import Peer

#: A gateway that lived this long has started well; earlier failures are forgotten.
_PROVED_S = 10.0
#: The gateway is worth more than the worker and less than the guard.
_OOM_SCORE_ADJ = -500
#: Where the inherited descriptors are put in the gateway; any numbers above those in use do.
_FIRST_FD = 100


class GatewayLink:
    """``tied`` makes the gateway die with the guard; ``lower_score`` is whether its oom_score_adj may be lowered."""

    def __init__(
        self,
        plan: Plan,
        *,
        reactor: Reactor,
        log: Log,
        run_directory: str,
        tied: bool,
        lower_score: bool,
        ledger_changed: Callable[[], None],
        fault: Callable[[], None],
    ) -> None:
        self.in_flight = 0
        self.queued = 0
        self.peer: Peer | None = None
        self._plan = plan
        self._reactor = reactor
        self._log = log
        self._socket_path = os.path.join(run_directory, "guard.sock")
        self._record_path = os.path.join(run_directory, state_file.GATEWAY)
        self._tied = tied
        self._score = _OOM_SCORE_ADJ if lower_score else (host_process.read_oom_score_adj() or 0)
        self._ledger_changed = ledger_changed
        self._fault = fault
        self._faults = 0
        self._child: Child | None = None
        self._failures = 0
        self._stopping = False
        self._ended: Callable[[], None] = lambda: None

    @property
    def pid(self) -> int | None:
        """The gateway's process, while it runs."""
        return None if self._child is None else self._child.pid

    @property
    def quiet(self) -> bool:
        """Nothing in flight and nothing waiting."""
        return self.in_flight == 0 and self.queued == 0

    def connected(self, peer: Peer, message: dict[str, Any]) -> None:
        """A gateway said hello on ``peer``. While one of our own runs, another is an earlier guard's on its way out."""
        if self._child is not None and message.get("pid") != self._child.pid:
            peer.close()
            return
        peer.is_gateway = True
        if self.peer is not None and self.peer is not peer:
            self.peer.close()
        self.peer = peer

    def disconnected(self, peer: Peer) -> None:
        """``peer`` closed."""
        if peer is self.peer:
            self.peer = None
            self.in_flight = self.queued = 0
            self._ledger_changed()

    def take_ledger(self, ledger: object) -> None:
        """The gateway's counts; what is no count is ignored. ``engine_faults`` only ever climbs."""
        if not isinstance(ledger, dict):
            return
        for name in ("in_flight", "queued"):
            value = ledger.get(name)
            if isinstance(value, int) and 0 <= value < 1 << 31:
                setattr(self, name, value)
        faults = ledger.get("engine_faults")
        if isinstance(faults, int) and faults != self._faults:
            self._faults, climbed = faults, faults > self._faults
            if climbed:
                self._fault()
        self._ledger_changed()

    def announce(self, state: dict[str, Any]) -> None:
        """Send the state, if a gateway listens."""
        if self.peer is not None:
            self.peer.send({"state": state})

    def ensure(self) -> None:
        """Start the gateway unless one runs."""
        if self._child is not None or self._stopping or not self._plan.gateway:
            return
        plan = self._plan
        settings = os.memfd_create("tidegate-settings", 0)
        try:
            os.write(settings, json.dumps(plan.settings.to_json()).encode())
            os.lseek(settings, 0, os.SEEK_SET)
            inherited = [settings, *plan.listen_fds]
            numbers = [_FIRST_FD + place for place in range(len(inherited))]
            argv = [plan.python, "-P", "-m", "tidegate.gateway", "--settings-fd", str(numbers[0])]
            for number in numbers[1:]:
                argv += ["--listen-fd", str(number)]
            argv += ["--socket", self._socket_path]
            search = os.environ.get("PYTHONPATH")
            self._started(
                start(
                    argv,
                    oom_score_adj=self._score,
                    death_signal=self._tied,
                    environment={**os.environ, "PYTHONPATH": f"{plan.source}:{search}" if search else plan.source},
                    capture=False,
                    inherit=tuple(zip(inherited, numbers, strict=True)),
                )
            )
        except OSError as error:
            self._log.error(f"cannot start the gateway: {error.strerror}")
            self._retry()
        finally:
            os.close(settings)

    def stop(self, seconds: float, ended: Callable[[], None]) -> None:
        """Let the gateway finish what is in flight within ``seconds``; ``ended`` is called when it is gone."""
        self._stopping = True
        self._reactor.cancel("gateway")
        self._ended = ended
        if self._child is None:
            ended()
            return
        if self.peer is not None:
            self.peer.send({"stop": seconds})
        else:
            self._child.terminate()
        self._reactor.after("gateway", seconds + 1.0, self.kill)

    def kill(self) -> None:
        """End the gateway at once."""
        if self._child is not None:
            self._child.kill()

    def _started(self, child: Child) -> None:
        self._child = child
        self._record(host_process.read_process_id(child.pid))
        self._reactor.watch(child.pidfd, READ, lambda _mask: self._exited())
        self._reactor.after("gateway", _PROVED_S, self._proved)

    def _proved(self) -> None:
        self._failures = 0

    def _exited(self) -> None:
        child = self._child
        if child is None or not child.reap():
            return
        self._reactor.unwatch(child.pidfd)
        child.close()
        self._child = None
        self._record(None)
        if self._stopping:
            self._reactor.cancel("gateway")
            self._ended()
            return
        self._log.error(f"gateway {child.pid} ended with status {child.status}")
        self._retry()

    def _record(self, gateway: host_process.ProcessId | None) -> None:
        if not self._tied:
            trouble = state_file.save(self._record_path, gateway)
            if trouble:
                self._log.warning(trouble)

    def _retry(self) -> None:
        self._failures += 1
        self._reactor.after("gateway", backoff(self._failures), self.ensure)
