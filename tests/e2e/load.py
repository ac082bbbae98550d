"""Load for the real engine: conversations of a known size, and a sampler of the worker's memory."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from running import Running, memory_of

#: 262 words of the form word+number below 97 are 798-801 tokens of SmolLM2.
WORDS_OF_800_TOKENS = 262


def conversation(number: int, words: int = WORDS_OF_800_TOKENS) -> list[dict[str, str]]:
    """One user message that shares no prefix with that of another ``number``."""
    text = " ".join(f"word{(number * 7919 + place * 31) % 97}" for place in range(words))
    return [{"role": "user", "content": f"{number}: {text}. Answer shortly."}]


def post(url: str, body: dict[str, Any], *, timeout: float = 120.0) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, JSON body and headers of a plain request."""
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), dict(error.headers)


@dataclass
class Sampler:
    """Samples the worker's RssAnon + RssShmem + VmSwap every 100 ms, whichever process the worker is."""

    running: Running
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def most(self) -> int:
        """The highest sample in bytes."""
        return max(counted for _, _, counted in self.samples)

    def before(self, when: float, pid: int) -> int:
        """The last sample of ``pid`` before ``when`` (Unix seconds)."""
        return [counted for time_, of, counted in self.samples if of == pid and time_ <= when][-1]

    def _run(self) -> None:
        while not self._end.wait(0.1):
            for pid in worker_pids(self.running.process.pid):
                memory = memory_of(pid)
                self.samples.append((time.time(), pid, memory["RssAnon"] + memory["RssShmem"] + memory["VmSwap"]))


def worker_pids(guard: int) -> list[int]:
    """The guard's children that are engines."""
    try:
        with open(f"/proc/{guard}/task/{guard}/children") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return []
    found = []
    for child in children:
        try:
            with open(f"/proc/{child}/cmdline", "rb") as file:
                command = file.read()
            if b"xllamacpp_host" in command or b"/llama-server\0" in command:
                found.append(child)
        except OSError:
            pass
    return found
