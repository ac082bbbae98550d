"""The status document of real guards against docs/status.schema.json, in every state that a person can bring about."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from running import ROOT, Running
from tidegate.engines import create
from tidegate.guard import actions
from tidegate.policy.diagnosis import Diagnosis
from tidegate.policy.level import Level
from tidegate.settings.model import WorkerSettings
from tidegate.worker.lifecycle import WorkerState

Start = Callable[..., Running]

SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "status.schema.json").read_text())


def closed(schema: Any) -> Any:
    """``schema`` with no keys but its own, all of them required: what the published one leaves open to later versions
    must not be open to this one."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema:
        assert sorted(schema["required"]) == sorted(schema["properties"])
        inner["additionalProperties"] = False
    return inner


VALIDATOR = jsonschema.Draft202012Validator(closed(SCHEMA))


def check(document: dict[str, Any]) -> dict[str, Any]:
    VALIDATOR.validate(document)
    assert document["nearest_axis"] in [axis["name"] for axis in document["axes"]]
    assert document["since"] <= document["time"]
    return document


def printed(running: Running) -> dict[str, Any]:
    """What ``tidegate status --json`` prints, checked."""
    done = running.cli("status", "--json")
    assert done.returncode == 0, done.stderr
    return check(json.loads(done.stdout))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (("level",), [level.label for level in Level]),
        (("diagnosis",), [diagnosis.value for diagnosis in Diagnosis]),
        (("worker", "properties", "state"), [state.value for state in WorkerState]),
        (
            ("last_actions", "items", "properties", "result"),
            [actions.PENDING, actions.EFFECTIVE, actions.INEFFECTIVE, actions.FAILED],
        ),
        (
            ("worker", "properties", "engine"),
            [create(WorkerSettings(engine=name), "python", ()).name for name in ("llama-server", "xllamacpp")],
        ),
    ],
    ids=lambda part: part[-1] if isinstance(part, tuple) else "",
)
def test_its_choices_are_those_of_the_code(path: tuple[str, ...], values: list[str]) -> None:
    found = SCHEMA["properties"]
    for name in path:
        found = found[name]
    assert sorted(found["enum"]) == sorted(values)


def test_it_keeps_as_many_actions_as_the_guard() -> None:
    assert SCHEMA["properties"]["last_actions"]["maxItems"] == actions.KEPT


def test_ready_with_a_budget_then_stepped_reset_and_paused(start: Start) -> None:
    running = start(memory='budget = "400M"\n')
    running.wait_ready()
    assert [axis["name"] for axis in printed(running)["axes"]][-1] == "budget"
    assert running.cli("step", "lean").returncode == 0
    assert running.cli("reset").returncode == 0
    assert running.cli("pause", "10m").returncode == 0
    document = printed(running)
    assert len(document["last_actions"]) == 2
    assert document["last_actions"][0]["step"].endswith(" to lean")
    assert document["paused"]
    assert document["worker"]["profile"] == "lean"


def test_loading(start: Start) -> None:
    running = start(extra=("--fake-load-ms", "60000"))
    running.wait_up()
    assert printed(running)["worker"]["state"] == "starting"


def test_a_worker_that_does_not_start(start: Start) -> None:
    running = start("--observe", extra=("--fake-fail", "no such model"))
    running.wait_state("backoff")
    document = printed(running)
    # It may be trying again at that moment.
    assert document["worker"]["state"] in ("backoff", "starting")
    assert document["observe"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document.pop("level"),
        lambda document: document.update(level="high"),
        lambda document: document.update(more=1),
        lambda document: document["worker"].update(pid="12"),
        lambda document: document["axes"][0].update(used_bytes=-1),
        lambda document: document["guard"].pop("looks"),
    ],
)
def test_the_check_can_fail(damage: Callable[[dict[str, Any]], object]) -> None:
    document = {
        "level": "normal", "since": 1.0, "paused": False, "observe": False, "diagnosis": "none",
        "axes": [{"name": "system", "limit_bytes": 2, "used_bytes": 1, "available_bytes": 1, "used_ratio": 0.5}],
        "nearest_axis": "system", "time_to_critical_s": None,
        "worker": {
            "state": "parked", "pid": None, "generation": 0, "profile": None, "engine": "xllamacpp", "anon_bytes": 0,
            "file_bytes": 0, "shmem_bytes": 0, "swap_bytes": 0, "prompt_cache_bytes": 0, "url": "", "message": "",
        },
        "gateway": {"in_flight": 0, "queued": 0}, "last_actions": [], "sensors": ["MemAvailable"],
        "guard": {"rss_bytes": 1, "cpu_s": 0.1, "pid": 1, "looks": 1}, "time": 2.0,
    }  # fmt: skip
    check(document)
    damage(document)
    with pytest.raises(jsonschema.ValidationError):
        check(document)
