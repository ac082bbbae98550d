"""The keys that attach to a server which somebody else starts."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.errors import Exit, TidegateError
from tidegate.settings.load import Overrides, load_settings
from tidegate.settings.model import Settings, WorkerSettings


def load(worker: dict[str, Any], flags: dict[str, str] | None = None, *, model: str = "") -> WorkerSettings:
    return load_settings({"worker": worker}, Overrides(flags or {}, model), {}, default_model="demo").worker


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"unit": "llama"}, "unit", "llama.service"),
        ({"unit": "llama@3b.service"}, "unit", "llama@3b.service"),
        ({"unit": "ai.slice"}, "unit", "ai.slice"),
        ({"process": "llama-server"}, "process", "llama-server"),
        ({"process": "rkllm_server_main_thread"}, "process", "rkllm_server_ma"),
        ({"cgroup": "/ai_inference/"}, "cgroup", "/ai_inference"),
        ({"cgroup": "/a", "url": "http://localhost:8081/"}, "url", "http://127.0.0.1:8081"),
        ({"cgroup": "/a", "url": "http://[::1]:8081"}, "url", "http://[::1]:8081"),
        ({"cgroup": "/a", "url": "unix:/run/llama.sock"}, "url", "unix:/run/llama.sock"),
        ({"cgroup": "/a", "restart": "systemctl restart 'my llama'"}, "restart", ("systemctl", "restart", "my llama")),
        ({"cgroup": "/a", "restart": ["sh", "-c", "a; b"]}, "restart", ("sh", "-c", "a; b")),
    ],
)
def test_what_is_right_is_made_plain(given: dict[str, Any], key: str, value: object) -> None:
    worker = load(given)
    assert getattr(worker, key) == value
    assert worker.attached
    assert [profile.name for profile in worker.profiles] == ["attached"]
    settings = Settings(worker=worker)
    assert Settings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"unit": "a.service", "process": "b"},
            "cannot use worker.process = 'b': worker.unit names the server already",
        ),
        (
            {"url": "http://127.0.0.1:1"},
            "cannot use worker.url = 'http://127.0.0.1:1': there is no server to attach to",
        ),
        ({"restart": "true"}, "cannot use worker.restart = 'true': there is no server to attach to"),
        ({"unit": "a b"}, "not the name of a systemd unit"),
        ({"unit": "../../etc"}, "not the name of a systemd unit"),
        ({"unit": "-p"}, "not the name of a systemd unit"),
        ({"process": "/usr/bin/llama-server"}, "not the name of a command"),
        ({"cgroup": "ai"}, "not a path below the cgroup mount"),
        ({"cgroup": "/"}, "not a path below the cgroup mount"),
        ({"cgroup": "/a/../../etc"}, "not a path below the cgroup mount"),
        ({"process": "x", "url": "https://127.0.0.1:1"}, "not http://IP:PORT or unix:PATH"),
        ({"process": "x", "url": "http://127.0.0.1"}, "it has no port"),
        ({"process": "x", "url": "http://127.0.0.1:99999"}, "it has no port"),
        ({"process": "x", "url": "http://127.0.0.1:80/v1"}, "it has no port"),
        ({"process": "x", "url": "http://llama.lan:80"}, "names are not looked up"),
        ({"process": "x", "url": "unix:llama.sock"}, "a socket has an absolute path"),
        ({"process": "x", "restart": "a 'b"}, "cannot use worker.restart"),
        ({"process": "x", "command": ["y"]}, "worker.command has no meaning"),
        ({"process": "x", "profile": [{"name": "a"}]}, "no profiles and no model of ours"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(TidegateError) as caught:
        load(given)
    assert why in caught.value.message
    assert caught.value.exit_code is Exit.CANNOT_START


def test_a_fault_in_a_flag_is_wrong_usage() -> None:
    with pytest.raises(TidegateError) as caught:
        load({}, {"worker.unit": "a/b"})
    assert caught.value.exit_code is Exit.USAGE


def test_a_model_of_ours_is_none_of_its() -> None:
    with pytest.raises(TidegateError, match="no profiles and no model of ours"):
        load({"process": "x"}, model="/m.gguf")
