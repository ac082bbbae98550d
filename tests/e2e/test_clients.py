"""The clients that people use, against the real model; and each across a kill -9 of the worker in the middle."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import ollama
import openai
import pytest

from e2e.conftest import Door, Up
from e2e.load import worker_pids

# Else it asks the internet for prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

CONFIG = """
[[worker.profile]]
name = "full"
model = "{model}"
context = 2048
slots = 2
"""
QUESTION = "Tell me a story about a fox and four geese."
#: About a second of generating: time to be killed in.
TOKENS = 60
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
Progress = Callable[[], None]
#: A client's whole call: takes the gateway's address and calls back at every piece of a stream; gives the text.
Call = Callable[[str, Progress], str]


def openai_chat(url: str, progress: Progress) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        answer = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=TOKENS, temperature=0)
    assert answer.usage is not None and answer.usage.completion_tokens == TOKENS
    return answer.choices[0].message.content or ""


def openai_stream(url: str, progress: Progress) -> str:
    text = ""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=TOKENS, temperature=0, stream=True
        )
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            progress()
    return text


def openai_tools(url: str, progress: Progress) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="m", messages=MESSAGES, tools=[TOOL], max_tokens=TOKENS, temperature=0
        )
    message = answer.choices[0].message
    return f"{message.content}{message.tool_calls}"


def openai_responses(url: str, progress: Progress) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        answer = client.responses.create(model="m", input=QUESTION, max_output_tokens=TOKENS, temperature=0)
    assert answer.usage is not None and answer.usage.output_tokens == TOKENS
    assert answer.incomplete_details is not None and answer.incomplete_details.reason == "max_output_tokens"
    return answer.output_text


def openai_responses_stream(url: str, progress: Progress) -> str:
    text = ""
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
        client.responses.stream(model="m", input=QUESTION, max_output_tokens=TOKENS, temperature=0) as stream,
    ):
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
                progress()
            if event.type == "response.incomplete":
                assert event.response.output_text == text
    return text


def openai_responses_tools(url: str, progress: Progress) -> str:
    tool: Any = {"type": "function", **TOOL["function"]}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        answer = client.responses.create(
            model="m", input=QUESTION, tools=[tool], max_output_tokens=TOKENS, temperature=0
        )
    return f"{answer.output_text}{[item.type for item in answer.output]}"


#: The package has no temperature any more, the API does.
COLD = {"temperature": 0}


def anthropic_messages(url: str, progress: Progress) -> str:
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:
        answer: Any = client.messages.create(model="m", max_tokens=TOKENS, messages=MESSAGES, extra_body=COLD)
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == TOKENS
    return str(answer.content[0].text)


def anthropic_stream(url: str, progress: Progress) -> str:
    text = ""
    with (
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=TOKENS, messages=MESSAGES, extra_body=COLD) as stream,
    ):
        for piece in stream.text_stream:
            text += piece
            progress()
        last: Any = stream.get_final_message()
    assert last.usage.output_tokens == TOKENS
    assert last.content[0].text == text
    return text


OPTIONS = {"num_predict": TOKENS, "temperature": 0}


def ollama_chat(url: str, progress: Progress) -> str:
    answer = ollama.Client(host=url).chat(model="m", messages=MESSAGES, options=OPTIONS)
    assert answer.done_reason == "length"
    assert answer.eval_count == TOKENS
    return answer.message.content or ""


def ollama_stream(url: str, progress: Progress) -> str:
    text = ""
    for part in ollama.Client(host=url).chat(model="m", messages=MESSAGES, options=OPTIONS, stream=True):
        text += part.message.content or ""
        progress()
    assert part.done and part.eval_count == TOKENS
    return text


def ollama_generate(url: str, progress: Progress) -> str:
    text = ""
    for part in ollama.Client(host=url).generate(model="m", prompt=QUESTION, options=OPTIONS, stream=True):
        text += part.response or ""
        progress()
    assert part.done
    return text


def langchain_invoke(url: str, progress: Progress) -> str:
    return str(_langchain(url).invoke(QUESTION).content)


def langchain_stream(url: str, progress: Progress) -> str:
    text = ""
    for chunk in _langchain(url).stream(QUESTION):
        text += str(chunk.content)
        progress()
    return text


def _langchain(url: str) -> Any:
    from langchain_openai import ChatOpenAI

    make: Any = ChatOpenAI
    return make(base_url=f"{url}/v1", api_key="x", model="m", temperature=0, max_tokens=TOKENS, max_retries=0)


def litellm_completion(url: str, progress: Progress) -> str:
    return str(_litellm(url).choices[0].message.content)


def litellm_stream(url: str, progress: Progress) -> str:
    text = ""
    for chunk in _litellm(url, stream=True):
        text += chunk.choices[0].delta.content or ""
        progress()
    return text


def _litellm(url: str, **more: Any) -> Any:
    import litellm

    call: Any = litellm.completion
    return call(
        "openai/m", api_base=f"{url}/v1", api_key="x", messages=MESSAGES, temperature=0, max_tokens=TOKENS,
        num_retries=0, max_retries=0, **more,
    )  # fmt: skip


CALLS: list[Call] = [
    *(openai_responses, openai_responses_stream, openai_responses_tools),
    *(openai_chat, openai_stream, openai_tools, anthropic_messages, anthropic_stream),
    *(ollama_chat, ollama_stream, ollama_generate),
    *(langchain_invoke, langchain_stream, litellm_completion, litellm_stream),
]
STREAMS = {call.__name__ for call in CALLS} & {
    *(
        "openai_responses_stream",
        "openai_stream",
        "anthropic_stream",
        "ollama_stream",
        "ollama_generate",
        "langchain_stream",
        "litellm_stream",
    ),
}


@pytest.fixture(name="door", scope="module")
def door_fixture(model: str, module_up: Up) -> Iterator[Door]:
    """One server for all clients."""
    door = module_up(CONFIG.format(model=model))
    door.wait_ready()
    yield door
    # litellm makes an event loop and leaves it: the next asyncio.run() would drop it unclosed, in somebody else's test.
    asyncio.set_event_loop(None)
    gc.collect()


@pytest.mark.timeout(120)
# The packages' own: litellm leaves its sockets to the collector and warns of its pydantic models.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_call_and_one_across_a_kill(door: Door, call: Call) -> None:
    door.wait_ready()
    expected = call(door.url, lambda: None)
    assert expected.strip()
    killer = Killer(door)
    if call.__name__ not in STREAMS:
        # Its first tokens come after some 0.3 s, its last after 1.5 s.
        threading.Timer(0.7, killer.strike).start()
    assert call(door.url, killer.progress) == expected
    assert killer.struck.wait(5)


class Killer:
    """Kills the worker once, at the fifth piece of a stream at the latest."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._pieces = 0
        self.struck = threading.Event()

    def progress(self) -> None:
        self._pieces += 1
        if self._pieces == 5:
            self.strike()

    def strike(self) -> None:
        (pid,) = worker_pids(self._door.process.pid)
        os.kill(pid, signal.SIGKILL)
        self.struck.set()
