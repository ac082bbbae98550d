"""Ollama's routes about models and embeddings, read by its own package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ollama as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_builder
from gateway.harness import Background, Scene, scene, until
from tidegate.gateway import ollama_embed, ollama_models
from tidegate.gateway.openai import InvalidRequestError
from tidegate.settings.model import Profile, WorkerSettings

#: What b11434 says of its model.
META = {"n_ctx": 1024, "n_ctx_train": 8192, "n_embd": 576, "n_params": 134515008, "size": 96576768, "ftype": "Q4_1"}
LISTED = {
    "models": [{"name": "smol", "capabilities": ["completion", "multimodal"]}],
    "object": "list",
    "data": [{"id": "smol", "object": "model", "meta": META}, {"id": "other"}],
}
SMOL = ollama_models.Model("smol", 134515008, "Q4_1", 96576768, 8192, 576, ("completion", "multimodal"))


# -- what is known ----------------------------------------------------------------------------------------------------


def test_what_the_engine_says_of_its_models() -> None:
    assert ollama_models.listed(json.dumps(LISTED).encode()) == [SMOL, ollama_models.Model("other")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
ENTRY = st.fixed_dictionaries(
    {}, optional={"id": st.just("m") | JSON, "name": JSON, "capabilities": JSON}
    | {"meta": st.fixed_dictionaries({}, optional=dict.fromkeys(META, JSON)) | JSON}
)  # fmt: skip


@given(st.fixed_dictionaries({}, optional={"data": st.lists(ENTRY) | JSON, "models": st.lists(ENTRY) | JSON}) | JSON)
def test_whatever_it_says_is_read(value: Any) -> None:
    for model in ollama_models.listed(json.dumps(value).encode()):
        json.dumps(ollama_models.show(model, family="f", template="", modified=0))
        json.dumps([ollama_models.tags([model], modified=0), ollama_models.ps([model], context=1, resident=0)])


@pytest.mark.parametrize("body", [b"", b"\xff", b"[" * 9999])
def test_no_answer_is_no_model(body: bytes) -> None:
    assert ollama_models.listed(body) == []


@pytest.mark.parametrize(
    ("parameters", "text"), [(0, ""), (134515008, "134.52M"), (999_999, "1.00M"), (8_030_261_248, "8.0B")]
)
def test_how_many_parameters(parameters: int, text: str) -> None:
    shown: Any = ollama_models.show(ollama_models.Model("m", parameters), family="", template="", modified=0)
    assert shown["details"]["parameter_size"] == text


def test_a_name_may_have_latest_behind_it() -> None:
    models = [SMOL, ollama_models.Model("other")]
    assert ollama_models.find(models, "smol") == ollama_models.find(models, "smol:latest") == SMOL
    assert ollama_models.find(models, "smol:7b") is ollama_models.find(models, "") is None


# -- embeddings -------------------------------------------------------------------------------------------------------


def embedding(path: str = "/api/embed", **body: Any) -> ollama_embed.Embedding:
    return ollama_embed.parse(path, json.dumps({"model": "m", **body}).encode(), lambda: 1.0)


def test_embeddings_are_asked_for_in_the_engines_words() -> None:
    asked = embedding(input=["a", "b"], truncate=True, options={"num_ctx": 5}, keep_alive="5m", dimensions=2)
    wanted = {"model": "m", "input": ["a", "b"], "encoding_format": "float", "dimensions": 2}
    assert json.loads(asked.body) == wanted
    assert json.loads(embedding(input="a").body)["input"] == ["a"]
    assert json.loads(embedding("/api/embeddings", prompt="a").body)["input"] == ["a"]


@pytest.mark.parametrize("body", [{}, {"input": ""}, {"input": []}])
def test_no_text_asks_nothing(body: Any) -> None:
    asked = embedding(**body)
    assert asked.body == b""
    assert asked.answer(b"", 1.0) == {"model": "m", "embeddings": [], "total_duration": 0, "load_duration": 0} | {
        "prompt_eval_count": 0
    }


@pytest.mark.parametrize("body", [{"input": 1}, {"input": [1]}, {"input": {"a": 1}}, {"input": [["a"]]}])
def test_what_is_no_text_is_said(body: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^cannot take 'input': it is not a string or a list"):
        embedding(**body)


@pytest.mark.parametrize("data", [b"x", b"[]", b"{}", b'{"data":[{}]}', b'{"data":[1]}'])
def test_what_is_no_embedding_is_no_answer(data: bytes) -> None:
    with pytest.raises(ValueError):
        embedding(input="a").answer(data, 1.0)


# -- the gateway ------------------------------------------------------------------------------------------------------


@pytest.fixture(name="client")
def client_fixture(stage: Scene) -> Iterator[package.Client]:
    with package.Client(host=f"http://127.0.0.1:{stage.port}") as made:
        yield made


def test_the_package_sees_what_runs(stage: Scene, client: package.Client) -> None:
    assert [*client.ps().models] == []
    stage.start(context=2048)
    stage.guard.answers["status"] = lambda _: {"worker": {"anon_bytes": 70, "file_bytes": 50, "shmem_bytes": 20}}
    (running,) = client.ps().models
    assert (running.model, running.context_length, running.size, running.size_vram) == ("fake-model", 2048, 140, 0)
    assert running.expires_at is not None and running.expires_at > datetime.now(UTC)
    stage.tell(gate="hold", worker={"state": "starting", "url": ""})
    assert [*client.ps().models] == []


def test_the_package_is_shown_a_model(tmp_path: Path) -> None:
    path = tmp_path / "smol.gguf"
    path.write_bytes(gguf_builder.gguf(gguf_builder.llama()))
    with (
        scene(worker=WorkerSettings(profiles=(Profile("full", str(path)),))) as stage,
        package.Client(host=f"http://127.0.0.1:{stage.port}") as client,
    ):
        # No worker has run yet: the name and the file are known.
        shown = client.show("smol.gguf")
        assert shown.details is not None and (shown.details.format, shown.details.family) == ("gguf", "llama")
        assert shown.capabilities == ["completion"]
        with pytest.raises(package.ResponseError, match="model 'other' not found") as caught:
            client.show("other")
        assert caught.value.status_code == 404
        stage.start(1, "-m", "smol.gguf")
        assert client.show("smol.gguf:latest").modelinfo is not None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model": 1}'])
def test_a_show_of_nothing_is_said(body: bytes, stage: Scene) -> None:
    reply = stage.post("/api/show", body)
    assert reply.status == 400
    assert reply.json["error"].startswith("cannot ")


def test_the_package_gets_embeddings(stage: Scene, client: package.Client) -> None:
    stage.start(1, "--embedding")
    answer = client.embed(model="m", input=["one", "two words"])
    assert [*answer.embeddings] == [[3.0, 1.0], [9.0, 2.0]]
    assert (answer.model, answer.prompt_eval_count) == ("m", 3)
    assert [*client.embeddings(model="m", prompt="one").embedding] == [3.0, 1.0]
    assert [*client.embed(model="m", input=[]).embeddings] == []


def test_a_chat_workers_refusal_is_passed_on_plainly(stage: Scene, client: package.Client) -> None:
    stage.start()
    with pytest.raises(package.ResponseError, match="does not support embeddings") as caught:
        client.embed(model="m", input="x")
    assert caught.value.status_code == 501
    # No fault of the engine's, so nobody asks whether it still works.
    assert all(message["ledger"]["engine_faults"] == 0 for message in stage.guard.received if "ledger" in message)


def test_embeddings_wait_for_a_worker(stage: Scene, client: package.Client) -> None:
    waiting = Background(lambda: client.embed(model="m", input="x"))
    until(lambda: stage.queued() == 1)
    stage.start(1, "--embedding")
    assert [*waiting.result().embeddings] == [[1.0, 1.0]]
