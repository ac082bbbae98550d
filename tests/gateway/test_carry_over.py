"""The beginning of prompts over a worker's restart, with the fake engine: what is asked of it, and what is not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.harness import Reply, Scene, scene, until
from tidegate.settings.model import Profile, WorkerSettings

RULES = " ".join(f"rule{number}" for number in range(100))
SYSTEM: Any = {"role": "system", "content": RULES}
Begin = Callable[..., Scene]


@pytest.fixture(name="folder")
def folder_fixture() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        (Path(name) / "slots").mkdir()
        (Path(name) / "m.gguf").touch()
        yield Path(name)


@pytest.fixture(name="stage")
def stage_fixture(folder: Path) -> Iterator[Scene]:
    profiles = tuple(Profile(name, f"{folder}/m.gguf", context=4096) for name in ("full", "small"))
    with scene(worker=WorkerSettings(carry_over=f"{folder}/slots", profiles=profiles)) as stage:
        yield stage


def start(stage: Scene, folder: Path, generation: int, *options: str, **worker: Any) -> None:
    """A new worker: the old one is gone, and this one was announced as starting."""
    stage.tell(gate="hold", worker={"state": "starting", "generation": generation, "url": ""})
    flags = ("-np", "1", "-c", "4096", "-m", f"{folder}/m.gguf", "--slot-save-path", f"{folder}/slots")
    stage.start(generation, *flags, *options, **{"slots": 1, "context": 4096, **worker})


def ask(stage: Scene, text: str = "hi", system: Any = SYSTEM, **more: Any) -> Reply:
    reply = stage.post(
        "/v1/chat/completions", {"messages": [system, {"role": "user", "content": text}], "max_tokens": 2, **more}
    )
    assert reply.status == 200
    return reply


def cached(reply: Reply) -> int:
    return int(reply.json["timings"]["cache_n"])


def carried(stage: Scene, event: str) -> float:
    return stage.metric("tidegate_carry_over_total", event=event)


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "slots"))


def saved_one(stage: Scene, folder: Path) -> None:
    start(stage, folder, 1)
    ask(stage, "one")
    assert files(folder) == []
    ask(stage, "two")
    assert carried(stage, "saved") == 1
    assert len(files(folder)) == 1


def test_the_second_conversation_has_it_saved_and_the_next_worker_gets_it(stage: Scene, folder: Path) -> None:
    saved_one(stage, folder)
    start(stage, folder, 2)
    until(lambda: carried(stage, "restored") == 1)
    assert cached(ask(stage, "three")) == 100
    assert carried(stage, "reused") == 1
    assert carried(stage, "failed") == 0
    # It is there: nothing is saved again.
    ask(stage, "four")
    assert carried(stage, "saved") == 1
    assert [entry["name"] for entry in stage.engines[2].events("restore")] == files(folder)


def test_requests_that_were_held_wait_for_it(stage: Scene, folder: Path) -> None:
    saved_one(stage, folder)
    stage.tell(gate="hold", worker={"state": "starting", "generation": 2, "url": ""})
    stream = stage.stream(body={"messages": [SYSTEM, {"role": "user", "content": "x"}], "stream": True})
    start(stage, folder, 2)
    stream.rest()
    assert carried(stage, "reused") == 1
    told = [entry["target"].partition("?")[0] for entry in stage.engines[2].events("request")]
    assert told.index("/slots/0") < told.index("/v1/chat/completions")


def test_a_worker_that_was_there_before_the_gateway_keeps_its_slots(stage: Scene, folder: Path) -> None:
    saved_one(stage, folder)
    stage.guard.die()
    stage.guard.listen()
    until(lambda: stage.guard.connections == 2)
    ask(stage, "three")
    assert stage.engines[1].events("restore") == []


@pytest.mark.parametrize("harm", [b"", b'["rule0", "ru'])
def test_a_file_that_was_cut_never_comes_to_the_worker(harm: bytes, stage: Scene, folder: Path) -> None:
    saved_one(stage, folder)
    (folder / "slots" / files(folder)[0]).write_bytes(harm)
    start(stage, folder, 2)
    assert cached(ask(stage, "three")) == 0
    assert stage.engines[2].events("restore") == []
    assert stage.engines[2].process.poll() is None


def test_a_slot_that_does_not_fit_is_not_tried(stage: Scene, folder: Path) -> None:
    saved_one(stage, folder)
    start(stage, folder, 2, context=100)
    ask(stage, "three", system={"role": "system", "content": "short"})
    assert stage.engines[2].events("restore") == []
    # For another model's file neither.
    (folder / "m.gguf").write_text("another")
    start(stage, folder, 3)
    assert cached(ask(stage, "four")) == 0
    assert stage.engines[3].events("restore") == []


def test_a_worker_of_another_model_gets_nothing(stage: Scene, folder: Path) -> None:
    saved_one(stage, folder)
    start(stage, folder, 2, "-m", "/other.gguf")
    assert cached(ask(stage, "three")) == 0
    assert stage.engines[2].events("restore") == []


def test_a_worker_that_dies_of_a_restore_does_so_once(stage: Scene, folder: Path) -> None:
    saved_one(stage, folder)
    start(stage, folder, 2, "--fake-restore-crash")
    until(lambda: carried(stage, "failed") == 1)
    assert files(folder) == []
    start(stage, folder, 3, "--fake-restore-crash")
    assert cached(ask(stage, "three")) == 0


def test_a_slot_that_saves_no_work_is_not_restored_again(stage: Scene, folder: Path) -> None:
    saved_one(stage, folder)
    start(stage, folder, 2, "--fake-forget")
    until(lambda: carried(stage, "restored") == 1)
    ask(stage, "three")
    assert carried(stage, "failed") == 1
    assert carried(stage, "reused") == 0
    assert files(folder) == []


def test_another_prompt_first_is_no_failure(stage: Scene, folder: Path) -> None:
    saved_one(stage, folder)
    start(stage, folder, 2)
    until(lambda: carried(stage, "restored") == 1)
    ask(stage, "three", system={"role": "system", "content": "something else"})
    ask(stage, "four")
    assert carried(stage, "failed") == 0
    assert len(files(folder)) == 1


def test_an_engine_that_saves_no_slots_is_asked_once(stage: Scene, folder: Path) -> None:
    stage.tell(gate="hold", worker={"state": "starting", "generation": 1, "url": ""})
    stage.start(1, "-np", "1", "-m", f"{folder}/m.gguf", slots=1)
    for text in ("one", "two", "three", "four"):
        ask(stage, text)
    asked = [entry for entry in stage.engines[1].events("request") if entry["target"].startswith("/slots/")]
    assert len(asked) == 1
    assert carried(stage, "failed") == 1


def test_nothing_is_written_above_normal(stage: Scene, folder: Path) -> None:
    start(stage, folder, 1)
    stage.tell(level="warn")
    for text in ("one", "two", "three"):
        ask(stage, text)
    assert files(folder) == []


@pytest.mark.parametrize("action", ["save", "restore", "%73ave", "erase&action=save", ""])
def test_clients_neither_save_nor_restore(action: str, stage: Scene, folder: Path) -> None:
    start(stage, folder, 1)
    reply = stage.post(f"/slots/0?action={action}", {"filename": "x"})
    assert (reply.status, reply.error["message"]) == (501, "cannot save or restore slots: the gateway does so itself")
    assert stage.post("/slots/0?action=erase", {}).status == 200


def test_a_form_is_no_way_to_save(stage: Scene, folder: Path) -> None:
    # llama-server's HTTP library takes a form's fields for parameters of the query.
    start(stage, folder, 1)
    form = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    for target, status in (("/slots/0", 501), ("/slots/0?action=erase", 200)):
        reply = stage.request("POST", target, b'{"filename":"x","a":"&action=save&"}', form)
        assert reply.status == status
    told = [entry for entry in stage.engines[1].events("request") if entry["target"].startswith("/slots/")]
    assert [entry["headers"]["content-type"] for entry in told] == ["application/json"]


def test_without_a_directory_nothing_is_asked(folder: Path) -> None:
    with scene() as stage:
        start(stage, folder, 1)
        for text in ("one", "two", "three"):
            ask(stage, text)
        assert {entry["target"] for entry in stage.engines[1].events("request")} == {"/v1/chat/completions"}
