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
from tidegate.gateway.access import Access, is_private_name

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


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("LOCALHOST.", True),
        ("app.localhost:1", True),
        ("127.0.0.1:8080", True),
        ("192.168.1.5", True),
        ("[::1]:8080", True),
        ("[fe80::1]", True),
        ("board", True),
        ("board.local:8080", True),
        ("host.docker.internal:11434", True),
        ("", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("evillocal.example.", False),
        ("1.2.3", False),
        ("[evil.example]", False),
        ("::evil", False),
    ],
)
def test_names_that_no_stranger_can_point_here(host: str, private: bool) -> None:
    assert is_private_name(host) is private
    refusal = Access().refusal("/v1/models", {"Host": host}, loopback=True)
    assert (refusal is None) is private
    assert Access().refusal("/v1/models", {"Host": host}, loopback=False) is None
    assert Access([KEY]).refusal("/v1/models", {"Host": host, **bearer(KEY)}, loopback=True) is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/slots/action", "/api/tags", *CONTROLS])
@pytest.mark.parametrize(
    ("origin", "ours"),
    [
        ("http://localhost:8080", True),
        ("http://LocalHost:8080", True),
        ("http://localhost:3000", False),
        ("http://localhost", False),
        ("https://evil.example", False),
        ("chrome-extension://abc", False),
        ("null", False),
        ("", False),
    ],
)
def test_a_page_of_another_origin_needs_a_key(path: str, origin: str, ours: bool) -> None:
    headers = {"Host": "localhost:8080", "Origin": origin}
    for loopback in (False, True):
        refusal = Access().refusal(path, headers, "POST", loopback=loopback)
        assert (refusal is None) is ours
        assert refusal is None or (refusal.status, refusal.code) == (403, "foreign_origin")
    assert Access([KEY]).refusal(path, {**headers, **bearer(KEY)}, "POST") is None
    assert Access().refusal("/healthz", headers) is None


def test_a_strangers_name_is_not_repeated_at_length() -> None:
    for headers in ({"Host": "a." * 4000}, {"Host": "a", "Origin": "b" * 8000}):
        refusal = Access().refusal("/v1/models", headers, loopback=True)
        assert refusal is not None and len(refusal.message) < 300


def test_one_key_is_one_client_however_it_is_written() -> None:
    access = Access([KEY], [CONTROL])
    sent = [bearer(KEY), bearer(" " + KEY), {"x-api-key": KEY}, {"x-api-key": KEY, "Authorization": "one of many"}]
    assert len({access.who(headers, "::1") for headers in sent}) == 1
    assert access.who(bearer(CONTROL), "::1") != access.who(bearer(KEY), "::1")


def test_who_has_no_valid_key_is_its_address_where_keys_are_asked_for() -> None:
    assert Access([], [CONTROL]).who(bearer("invented"), "10.0.0.9") == "10.0.0.9"
    assert Access([KEY]).who({}, "10.0.0.9") == "10.0.0.9"


def test_without_keys_any_key_tells_programs_apart() -> None:
    found = {Access().who(headers, "127.0.0.1") for headers in (bearer("a"), bearer("b"), {}, bearer(""))}
    assert len(found) == 3


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


def test_pages_of_others_are_kept_out_where_no_key_is_asked_for() -> None:
    with scene() as stage:
        engine = stage.start()
        rebound = stage.post("/v1/chat/completions", chat(), {"Host": f"evil.example:{stage.port}"})
        simple = stage.post("/v1/messages", chat(), {"Origin": "http://evil.example", "Content-Type": "text/plain"})
        preflight = stage.request("OPTIONS", "/v1/chat/completions", None, {"Origin": "http://evil.example"})
        assert [reply.status for reply in (rebound, simple, preflight)] == [403, 403, 403]
        assert rebound.error["code"] == "foreign_origin"
        assert simple.json["error"]["type"] == "permission_error"
        assert engine.events("request") == []
        assert stage.metric("tidegate_requests_total", outcome="refused_origin") == 3
        assert stage.post("/v1/chat/completions", chat(), {"Host": f"localhost:{stage.port}"}).status == 200
        assert stage.get("/healthz").status == 200
