"""The gateway beside nginx and HAProxy as plain reverse proxies and the litellm proxy: same upstream, same run.

    apt-get install nginx-light haproxy
    scripts/bench proxies [LITELLM]

LITELLM is the path of a `litellm` command with its proxy (pip install 'litellm[proxy]'); without it that row is left
out. The upstream is the fake engine, which answers at once. Printed for each: what it adds to the time until the first
chunk of a stream (p50, p99 of 300, one at a time, in turn with the upstream alone), plain requests a second from 16
clients, events a second of 50 streams as fast as they come, and its resident memory (PSS of all its processes) at rest
and with 200 open streams. The plain proxies neither hold, nor trim, nor send again: they show what the way costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from gateway.harness import FAKE_ENGINE, Scene, chat, scene, until

FIRST, PLAIN, CLIENTS, STREAMS, TOKENS, HELD = 300, 600, 16, 50, 400, 200
MIB = 1 << 20
#: No prices from the internet; no keys, neither to it nor behind it.
LITELLM = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "OPENAI_API_KEY": "none",
}
NGINX = """
daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/nginx.log;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  upstream engine {{ server 127.0.0.1:{upstream}; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://engine; proxy_buffering off; proxy_http_version 1.1; proxy_read_timeout 600; }} }}
}}
"""
HAPROXY = """
global
  maxconn 4000
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
frontend door
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  server engine 127.0.0.1:{upstream}
"""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def pss(pid: int) -> int:
    """Bytes of ``pid`` and its children; what they share is counted once."""
    total = 0
    with open(f"/proc/{pid}/smaps_rollup") as file:
        total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            total += sum(pss(int(child)) for child in file.read().split())
    return total


@contextlib.contextmanager
def process(argv: list[str], port: int, directory: str) -> Iterator[int]:
    """The process of a proxy that listens; its pid."""
    with open(f"{directory}/log", "ab") as log:
        started = subprocess.Popen(
            argv,
            stdout=log,
            stderr=log,
            env={**os.environ, **LITELLM},
        )
    try:
        until(lambda: listens(port), 90)
        yield started.pid
    finally:
        started.terminate()
        started.wait()


@contextlib.contextmanager
def proxy(name: str, upstream: int, litellm: str) -> Iterator[tuple[int, int]]:
    """(port, pid) of the proxy ``name`` in front of ``upstream``."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        config = Path(directory) / "config"
        template = {"nginx": NGINX, "haproxy": HAPROXY}.get(name, "")
        config.write_text(template.format(directory=directory, port=port, upstream=upstream))
        argv = {
            "nginx": ["nginx", "-c", str(config)],
            "haproxy": ["haproxy", "-f", str(config)],
            "litellm": [
                litellm,
                "--model",
                "openai/m",
                "--api_base",
                f"http://127.0.0.1:{upstream}/v1",
                "--port",
                str(port),
            ],
        }[name]
        with process(argv, port, directory) as pid:
            yield port, pid


def body(tokens: int, *, stream: bool) -> dict[str, Any]:
    """A request of a short prompt."""
    return {**chat(20, max_tokens=tokens, stream=stream), "model": "m"}


async def first_chunk(session: aiohttp.ClientSession, port: int) -> float:
    """Seconds until the first byte of a stream's body."""
    begun = time.perf_counter()
    async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body(1, stream=True)) as answer:
        await answer.content.readany()
        assert answer.status == 200, await answer.text()
        took = time.perf_counter() - begun
        await answer.read()
    return took


async def requests_a_second(session: aiohttp.ClientSession, port: int) -> float:
    """Plain requests of one token by :data:`CLIENTS` clients."""
    left = iter(range(PLAIN))

    async def one() -> None:
        for _ in left:
            async with session.post(
                f"http://127.0.0.1:{port}/v1/chat/completions", json=body(1, stream=False)
            ) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return PLAIN / (time.perf_counter() - begun)


async def events_a_second(session: aiohttp.ClientSession, port: int) -> float:
    """Events of :data:`STREAMS` streams at once."""

    async def one() -> int:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with session.post(url, json=body(TOKENS, stream=True)) as answer:
            return (await answer.read()).count(b"\n\n")

    begun = time.perf_counter()
    counts = await asyncio.gather(*(one() for _ in range(STREAMS)))
    return sum(counts) / (time.perf_counter() - begun)


async def held(port: int, pid: int) -> int:
    """Bytes with :data:`HELD` streams open; their clients read."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> None:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with session.post(url, json=body(4000, stream=True)) as answer:
                async for _ in answer.content.iter_any():
                    pass

        tasks = [asyncio.create_task(one()) for _ in range(HELD)]
        await asyncio.sleep(4)
        found = pss(pid)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def measure(name: str, port: int, pid: int, alone: int, slow: int) -> None:
    """One row. ``alone`` is the upstream's own port; ``slow`` that of this proxy in front of a slow upstream."""
    rest = pss(pid)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for each in (port, alone) * 10:
            await first_chunk(session, each)
        ours, theirs = [], []
        for _ in range(FIRST):
            ours.append(await first_chunk(session, port))
            theirs.append(await first_chunk(session, alone))
        rate, events = await requests_a_second(session, port), await events_a_second(session, port)
    ours.sort()
    theirs.sort()
    added = [(ours[place] - theirs[place]) * 1000 for place in (FIRST // 2, FIRST * 99 // 100)]
    print(
        f"{name:9} first chunk +{added[0]:5.2f} ms p50, +{added[1]:6.2f} p99; {rate:5.0f} requests/s, "
        f"{events:6.0f} events/s; {rest / MIB:6.1f} MiB at rest, {slow / MIB:6.1f} with {HELD} streams",
        flush=True,
    )


def main(litellm: str) -> int:
    """Measure and print."""
    names = ["nginx", "haproxy", *(["litellm"] if litellm else [])]
    ports: dict[str, int] = {}
    engines: list[subprocess.Popen[bytes]] = []
    for what, *options in (("fast",), ("slow", "--fake-token-ms", "100")):
        ports[what] = free_port()
        argv = [
            sys.executable,
            "-I",
            "-S",
            FAKE_ENGINE,
            "--host",
            "127.0.0.1",
            "--port",
            str(ports[what]),
            "-np",
            "256",
        ]
        engines.append(subprocess.Popen([*argv, "-c", "2000000", *options]))
        until(partial(listens, ports[what]))
    try:
        with scene() as stage:
            slow = asyncio.run(held(announced(stage, ports["slow"]), stage.process.pid))
            fast = announced(stage, ports["fast"])
            asyncio.run(measure("tidegate", fast, stage.process.pid, ports["fast"], slow))
        for name in names:
            with proxy(name, ports["slow"], litellm) as (port, pid):
                slow = asyncio.run(held(port, pid))
            with proxy(name, ports["fast"], litellm) as (port, pid):
                asyncio.run(measure(name, port, pid, ports["fast"], slow))
    finally:
        for engine in engines:
            engine.kill()
            engine.wait()
    return 0


def announced(stage: Scene, upstream: int) -> int:
    """The port of the gateway, once it knows the engine on port ``upstream`` as its worker."""
    generation = stage.state["worker"]["generation"] + 1
    url = f"http://127.0.0.1:{upstream}"
    worker = {"state": "ready", "generation": generation, "url": url, "slots": 256, "context": 7800}
    stage.tell(gate="open", worker=worker)
    return stage.port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
