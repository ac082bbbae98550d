"""The status document and the state that the gateway is told: docs/status.schema.json, docs/guard-socket.md."""

from __future__ import annotations

import os
import resource
import time

from tidegate.host import process as host_process
from tidegate.host.files import read_file
from tidegate.policy.forecast import time_to
from tidegate.worker.lifecycle import Gate, WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tidegate.guard.commands import ContextOverride
    from tidegate.guard.judge import Judge
    from tidegate.guard.loop import Guard

#: What a client is told to wait when nothing better is known: the length of a step with its drain.
_RETRY_S = 5.0


def status_document(guard: Guard) -> dict[str, Any]:
    """Everything that ``tidegate status --json`` prints."""
    judge, life = guard.judge, guard.worker.life
    memory = judge.last.worker
    usage = resource.getrusage(resource.RUSAGE_SELF)
    own = host_process.parse_status(read_file("/proc/self/status") or b"")
    nearest = judge.nearest
    return {
        "level": judge.level.level.label,
        "since": round(judge.level_time, 3),
        "paused": guard.steps.paused_until is not None,
        "observe": guard.plan.observe,
        "diagnosis": judge.diagnosis.value,
        "axes": [axis.to_json() for axis in judge.last.axes],
        "nearest_axis": nearest.name,
        "time_to_critical_s": _time_to_critical(judge),
        "worker": {
            "state": life.state.value,
            "pid": guard.worker.pid,
            "generation": life.generation,
            "profile": life.profile,
            "engine": guard.worker.engine.name,
            "anon_bytes": memory.rss_anon if memory else 0,
            "file_bytes": memory.rss_file if memory else 0,
            "shmem_bytes": memory.rss_shmem if memory else 0,
            "swap_bytes": memory.swap if memory else 0,
            "prompt_cache_bytes": guard.worker.prompt_cache if guard.worker.pid else 0,
            "url": guard.worker.url,
            "message": life.message,
        },
        "gateway": {"in_flight": guard.gateway.in_flight, "queued": guard.gateway.queued},
        "last_actions": guard.steps.proof.actions.to_json(),
        "sensors": guard.sensors.tier(),
        "guard": {
            "rss_bytes": own.rss_anon + own.rss_file + own.rss_shmem,
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "pid": os.getpid(),
            "looks": guard.looks,
        },
        "time": round(time.time(), 3),
    }


def gateway_state(guard: Guard, override: ContextOverride | None) -> dict[str, Any]:
    """The ``state`` message: what the gateway may do now."""
    life, judge = guard.worker.life, guard.judge
    profile = guard.worker.shape or guard.steps.profile(life.profile or "")
    gateway = guard.settings.gateway
    # After a reload the best profile may promise what the running worker, though the best, does not have yet: that is
    # no lack of memory.
    best = profile if guard.steps.index_of(life.profile) == 0 else guard.settings.worker.profiles[0]
    return {
        "level": judge.level.level.label,
        "since": round(judge.level_time, 3),
        "paused": guard.steps.paused_until is not None,
        "gate": life.gate.value,
        "reason": _reason(guard),
        "retry_after_s": _retry_after(guard),
        "worker": {
            "state": life.state.value,
            "generation": life.generation,
            "profile": life.profile or "",
            "url": guard.worker.url if life.gate in (Gate.OPEN, Gate.DRAIN) else "",
            "context": profile.context,
            "slots": profile.slots,
            "message": life.message,
            "deaths": [{"generation": generation, "cause": cause} for generation, cause in guard.worker.deaths],
        },
        "best_context": best.context,
        "warn_context": gateway.warn_context,
        "context_override": None if override is None else override.keep_tokens,
        "critical_prompt": gateway.critical_prompt,
        "nearest_axis": judge.nearest.to_json(),
    }


def _time_to_critical(judge: Judge) -> float | None:
    """Seconds until the nearest axis reaches the critical line at its present rate; None when it does not fill."""
    left = time_to(int(judge.nearest.limit * judge.memory.critical) - judge.nearest.used, judge.rate)
    return None if left == float("inf") else round(left, 2)


def _reason(guard: Guard) -> str:
    match guard.worker.life.state:
        case WorkerState.PARKED:
            near = guard.judge.nearest
            return f"the worker is parked: {near.name} is {near.ratio:.0%} in use and the model does not fit beside it"
        case WorkerState.BACKOFF:
            return f"the worker does not start: {guard.worker.life.message}"
        case _:
            return ""


def _retry_after(guard: Guard) -> float:
    match guard.worker.life.state:
        case WorkerState.PARKED:
            return max(_RETRY_S, guard.steps.state.park_delay)
        case WorkerState.BACKOFF:
            return max(1.0, guard.worker.life.pause)
        case _:
            return max(_RETRY_S, guard.settings.memory.hold)
