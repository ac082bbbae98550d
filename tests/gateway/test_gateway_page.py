"""docs/gateway.md says of every refusal what the code says, on every surface."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.gateway import errors
from tidegate.gateway.access import Access
from tidegate.gateway.errors import Refusal, Surface
from tidegate.gateway.sse import DONE

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


def barred() -> Refusal:
    refusal = Access(["0123456789abcdef"]).refusal("/v1/models", {})
    assert refusal is not None
    return refusal


def foreign() -> Refusal:
    refusal = Access().refusal("/v1/models", {"Host": "evil.example"}, loopback=True)
    assert refusal is not None
    return refusal


#: By the first words of the page's rows.
REFUSALS = {
    "too long": errors.too_long(tokens=9, context=5, best=5, retry_s=0),
    "long prompt at critical": errors.pressure(tokens=9, most=5, retry_s=3, language="en"),
    "gate `refuse`": errors.closed(reason="", message="", retry_s=3, language="en"),
    "no worker within": errors.expired(waited_s=1, message="", retry_s=3, language="en"),
    "no turn within": errors.late(waited_s=1, waiting=2, level="warn", retry_s=3, language="en"),
    "line full": errors.full(waiting=2, wait_s=0, retry_s=3, language="en"),
    "stopping": errors.stopping(3, language="en"),
    "the request seems to kill": errors.crashed(times=2, message=""),
    "the same request again": errors.quarantined(profile="full", seconds=600),
    "no valid API key": barred(),
    "a web page of another origin": foreign(),
}


def row(begin: str) -> list[str]:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {begin}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("begin", REFUSALS)
def test_a_refusal_is_what_the_page_says(begin: str) -> None:
    refusal = REFUSALS[begin]
    _, said, reason, headers = row(begin)
    assert said.startswith(f"{refusal.status} `{refusal.code}`")
    if refusal.type in ("server_error", "authentication_error", "permission_error"):
        assert f"type `{refusal.type}`" in said
    assert (f"`{refusal.more['reason']}`" in reason) if "reason" in refusal.more else reason == ""
    assert {name.partition(":")[0].strip("` ") for name in headers.split(",") if name} == set(refusal.all_headers())
    for key in refusal.more:
        assert key in ("reason", "n_prompt_tokens", "n_ctx")
        assert key == "reason" or f"`{key}`" in said


def test_a_cut_answer_is_what_the_page_says() -> None:
    _, said, *_ = row("a begun answer that cannot")
    refusal = errors.cut("")
    assert said == f"event `{refusal.code}`, type `{refusal.type}`"


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=list(REFUSALS))
def test_every_surface_has_its_own_shape(refusal: Refusal) -> None:
    openai = json.loads(refusal.body(Surface.OPENAI))["error"]
    assert openai["message"] == refusal.message
    assert openai["code"] == refusal.code
    assert refusal.event(Surface.OPENAI).endswith(DONE)
    anthropic = json.loads(refusal.body(Surface.ANTHROPIC))
    assert anthropic["type"] == "error"
    assert anthropic["error"]["message"] == refusal.message
    assert refusal.event(Surface.ANTHROPIC).startswith(b"event: error\ndata: ")
    assert refusal.http_status(Surface.ANTHROPIC) == (529 if refusal.status == 503 else refusal.status)
    assert json.loads(refusal.body(Surface.OLLAMA)) == {"error": refusal.message}
    assert json.loads(refusal.event(Surface.OLLAMA)) == {"error": refusal.message}
    assert refusal.event(Surface.OLLAMA).count(b"\n") == 1


@pytest.mark.parametrize(("path", "shape"), [("/v1/messages", "529 for 503"), ("/api/chat", '{"error": "text"}')])
def test_the_surfaces_are_on_the_page(path: str, shape: str) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith("| ") and f"`{path}`" in line and "error" in line]
    assert shape in line
