"""Who is let in, and that no key goes to the engine."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import openai as openai_client
import pytest

from gateway.harness import Reply, Scene, chat, scene
from tidegate.gateway.access import Access

KEY, CONTROL = "client-0123456789", "control-0123456789"
CONTROLS = ["/", "/metrics", "/tidegate/status", "/slots", "/slots/0", "/props"]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# -- the decision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_whether_it_lives_is_no_secret(path: str) -> None:
    assert Access([KEY], [CONTROL]).refusal(path, {}) is None


@pytest.mark.parametrize("path", ["/v1/models", *CONTROLS])
def test_without_keys_nobody_is_asked(path: str) -> None:
    assert Access().refusal(path, {}) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer(KEY[:-1]),
        bearer(KEY + "x"),
        bearer("ключ"),
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"x-api-key": "other"},
    ],
)
def test_who_has_no_valid_key_stays_out(headers: dict[str, str]) -> None:
    refusal = Access([KEY]).refusal("/v1/chat/completions", headers)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (401, "invalid_api_key")
    assert refusal.all_headers()["WWW-Authenticate"] == "Bearer"


def basic(key: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"me:{key}".encode()).decode()}


@pytest.mark.parametrize("path", CONTROLS)
def test_a_browser_looks_with_a_key_as_the_password(path: str) -> None:
    access = Access([KEY], [CONTROL])
    asked = access.refusal(path, {}, "GET")
    assert asked is not None
    assert asked.all_headers()["WWW-Authenticate"].startswith("Basic ")
    assert access.refusal(path, basic(CONTROL), "GET") is None
    assert access.refusal(path, basic(KEY), "GET") is not None
    for wrong in ("", "Basic", "Basic !", "Basic =", "Basic " + base64.b64encode(CONTROL.encode()).decode()):
        assert access.refusal(path, {"Authorization": wrong}, "GET") is not None


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/slots/action"), ("POST", "/v1/messages"), ("GET", "/v1/models")]
)
def test_a_password_that_browsers_send_by_themselves_steers_nothing(method: str, path: str) -> None:
    refusal = Access([KEY], [CONTROL]).refusal(path, basic(CONTROL), method)
    assert refusal is not None
    assert refusal.all_headers()["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("headers", [bearer(KEY), {"authorization": ""} | bearer(KEY), {"x-api-key": KEY}])
def test_a_key_lets_in(headers: dict[str, str]) -> None:
    assert Access(["another-0123456789", KEY]).refusal("/v1/chat/completions", headers) is None


@pytest.mark.parametrize("path", CONTROLS)
def test_control_has_keys_of_its_own(path: str) -> None:
    access = Access([KEY], [CONTROL])
    assert access.refusal(path, bearer(KEY)) is not None
    assert access.refusal(path, bearer(CONTROL)) is None
    assert access.refusal("/v1/models", bearer(CONTROL)) is None
    assert Access([KEY]).refusal(path, bearer(KEY)) is None
    assert Access([KEY]).refusal(path, {}) is not None
    assert Access([], [CONTROL]).refusal(path, {}) is not None
    assert Access([], [CONTROL]).refusal("/v1/models", {}) is None


# -- at the gateway ---------------------------------------------------------------------------------------------------


@pytest.fixture(name="guarded")
def guarded_fixture() -> Iterator[Scene]:
    """A gateway with keys."""
    with tempfile.TemporaryDirectory() as directory:
        paths: dict[str, Any] = {}
        for name, key in (("keys", KEY), ("control_keys", CONTROL)):
            paths[name] = os.path.join(directory, name)
            with open(os.open(paths[name], os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(key + "\n")
        with scene(**paths) as stage:
            stage.key = CONTROL
            yield stage


def ask(stage: Scene, headers: dict[str, str]) -> Reply:
    return stage.post("/v1/chat/completions", chat(), headers)


def test_requests_need_the_key_and_the_engine_never_sees_it(guarded: Scene) -> None:
    engine = guarded.start()
    assert ask(guarded, bearer("wrong-0123456789")).status == 401
    assert ask(guarded, bearer(KEY)).status == 200
    assert ask(guarded, {"Authorization": "", "x-api-key": KEY}).status == 200
    assert guarded.get("/v1/models").status == 200
    assert guarded.post("/echo", {}, {**bearer(KEY), "X-Other": "goes"}).status == 200
    seen = engine.events("request")
    assert seen[-1]["headers"]["x-other"] == "goes"
    assert not any({"authorization", "x-api-key"} & set(entry["headers"]) for entry in seen)
    assert guarded.metric("tidegate_requests_total", outcome="refused_key") == 1


def test_the_package_calls_it_an_authentication_error(guarded: Scene) -> None:
    guarded.start()
    url = f"http://127.0.0.1:{guarded.port}/v1"
    with (
        openai_client.OpenAI(base_url=url, api_key="wrong-0123456789") as client,
        pytest.raises(openai_client.AuthenticationError, match="not valid"),
    ):
        client.models.list()
    with openai_client.OpenAI(base_url=url, api_key=KEY) as client:
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert answer.choices[0].message.content


def test_an_anthropic_client_hears_it_in_its_own_words(guarded: Scene) -> None:
    reply = guarded.post("/v1/messages", chat(), {"x-api-key": "wrong-0123456789", "Authorization": ""})
    assert reply.status == 401
    assert reply.json["type"] == "error"
    assert reply.json["error"]["type"] == "authentication_error"
