"""What a worker's end would cost the next one: the common beginning of prompts is saved from a slot and restored.

A new worker gets the beginning that was asked for last before it gets anything else; the engine's own figure of reused
tokens (``cache_n``) then says whether it was worth it. See :mod:`~.prefix` for when one is saved.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
from dataclasses import dataclass

import aiohttp

from tidegate.gateway import tokens
from tidegate.gateway.assemble import Json, Object
from tidegate.gateway.openai import encode
from tidegate.gateway.prefix import Prefix, Shelf, shape_key
from tidegate.gateway.slot_files import SlotFile, SlotFiles
from tidegate.gateway.state import GuardState, Worker
from tidegate.gateway.upstream import Upstream
from tidegate.policy.level import Level
from tidegate.record.metrics import Counters, Family
from tidegate.settings.model import WorkerSettings

log = logging.getLogger(__name__)

#: Seconds in which everybody waits for a new worker's slot: 60 MB from an SD card are read in 1.
RESTORE_S = 3.0
SAVE_S = 10.0
#: Of the saved tokens, what the engine must have reused: the last ones may be read otherwise before another text.
_WORTH = 0.9
#: Fewer are prefilled as fast as they are restored.
_LEAST_TOKENS = 32

CARRIED = Family("tidegate_carry_over_total", "counter", "Slots saved and restored, and what came of it.")
EVENTS = ("saved", "restored", "reused", "failed")

_LOST = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


@dataclass
class Restored:
    """A slot that a generation got, until its first request is answered."""

    generation: int
    file: SlotFile
    slots: int


class CarryOver:
    """``settings`` name the directory; without one every method does nothing."""

    def __init__(self, settings: WorkerSettings, counters: Counters) -> None:
        self._files = SlotFiles(settings.carry_over) if settings.carry_over.startswith("/") else None
        self._profiles = {profile.name: profile for profile in settings.profiles}
        self._xllamacpp = settings.engine == "xllamacpp"
        self._counters = counters
        self._counters.start(CARRIED, "event", EVENTS)
        self._shelf = Shelf()
        self._kept: set[tuple[str, str]] = set()
        self._restoring: asyncio.Task[None] | None = None
        self._for: Upstream | None = None
        self._restored: Restored | None = None

    @property
    def enabled(self) -> bool:
        """There is a directory to keep slots in."""
        return self._files is not None

    def begin(self, upstream: Upstream, worker: Worker) -> None:
        """A worker that has just started: give it what it needs first."""
        if self._files is None:
            return
        self.stop()
        self._for, self._restored = upstream, None
        self._restoring = asyncio.get_running_loop().create_task(self._restore(self._files, upstream, worker))

    def stop(self) -> None:
        """Restore nothing more."""
        if self._restoring is not None:
            self._restoring.cancel()

    async def before(self, upstream: Upstream, state: GuardState, prefix: Prefix | None) -> Restored | None:
        """Called for each request in the moment before it is sent: wait for the restored slot, and save the beginning
        if that is due. Returns what :meth:`verify` is to be called with after the answer.

        Raises:
            aiohttp.ClientError, OSError, TimeoutError: the worker was lost meanwhile.
        """
        if self._files is None:
            return None
        if self._restoring is not None and self._for is upstream and not self._restoring.done():
            await asyncio.wait({self._restoring})
        first, self._restored = self._restored, None
        if prefix is None:
            return None
        due = self._shelf.asked(prefix, upstream.generation, asyncio.get_running_loop().time())
        if due and state.board.level is Level.NORMAL:
            await self._keep(self._files, upstream, state.worker, prefix)
        if first is None or (first.generation, first.file.prefix) != (upstream.generation, prefix.name):
            return None
        return first

    def verify(self, restored: Restored, cached: int | None) -> None:
        """The first request after a restore reused ``cached`` tokens, by the engine's own figure."""
        if cached is not None and cached >= restored.file.tokens * _WORTH:
            self._counters.add(CARRIED, event="reused")
        elif cached is not None and restored.slots == 1:
            # With several slots it may have come to another one.
            log.warning("a restored slot of %d tokens saved the worker %d", restored.file.tokens, cached)
            self._failed(restored.file)

    # -- restoring ----------------------------------------------------------------------------------------------

    async def _restore(self, files: SlotFiles, upstream: Upstream, worker: Worker) -> None:
        file = None
        try:
            async with asyncio.timeout(RESTORE_S):
                key = await self._key(upstream, worker)
                if key is None or not self._shelf.useful(key):
                    return
                file = await asyncio.to_thread(files.find, key, self._shelf.last, most_tokens=worker.context - 1)
                if file is None:
                    return
                answer = await _ask(upstream, "/slots/0?action=restore", {"filename": file.name})
        except _LOST as error:
            answer = {"error": str(error) or "no answer in time"}
        if file is None:
            return
        if answer.get("n_restored") == file.tokens:
            self._counters.add(CARRIED, event="restored")
            self._kept.add((file.key, file.prefix))
            self._restored = Restored(upstream.generation, file, worker.slots)
        else:
            # Also where it died of it: the next one is not to die of the same file.
            log.warning("cannot restore a slot: %s", answer.get("error", "the worker restored something else"))
            self._failed(file)

    def _failed(self, file: SlotFile) -> None:
        self._counters.add(CARRIED, event="failed")
        self._shelf.failed(file.key)
        self._kept.discard((file.key, file.prefix))
        if self._files is not None:
            self._files.remove(file)

    async def _key(self, upstream: Upstream, worker: Worker) -> str | None:
        """What a slot of this worker fits, None if that cannot be told."""
        profile = self._profiles.get(worker.profile)
        async with await upstream.request("GET", "/props", {}, b"") as reply:
            told = _object(await reply.read()) if reply.status == 200 else {}
        build = told.get("build_info")
        if profile is None or told.get("model_path") != profile.model or not isinstance(build, str):
            # After a reload its profile may be another one than ours.
            return None
        try:
            seen = os.stat(profile.model)
            if self._xllamacpp:
                # It names no build of its own.
                found = importlib.util.find_spec("xllamacpp")
                build += str(os.stat(found.origin).st_mtime_ns) if found is not None and found.origin else ""
        except OSError:
            return None
        return shape_key(profile, size=seen.st_size, mtime_ns=seen.st_mtime_ns, build=build)

    # -- saving -------------------------------------------------------------------------------------------------

    async def _keep(self, files: SlotFiles, upstream: Upstream, worker: Worker, prefix: Prefix) -> None:
        """Have the worker read the beginning alone, and save its slot; what it has read serves the request too."""
        if len(upstream.exchanges) > 1:
            # Another request could take the slot between the two.
            return
        key = await self._key(upstream, worker)
        if key is None or not self._shelf.useful(key) or (key, prefix.name) in self._kept:
            return
        if await asyncio.to_thread(files.has, key, prefix.name) or not await asyncio.to_thread(files.has_room):
            self._kept.add((key, prefix.name))
            return
        self._shelf.saved(asyncio.get_running_loop().time())
        begins = await _tokens(upstream, prefix)
        if not _LEAST_TOKENS <= len(begins) < worker.context:
            return
        read = await _ask(upstream, "/completion", {"prompt": [*begins], "n_predict": 0, "cache_prompt": True})
        answer: Object = {}
        if isinstance(slot := read.get("id_slot"), int):
            try:
                async with asyncio.timeout(SAVE_S):
                    answer = await _ask(upstream, f"/slots/{slot}?action=save", {"filename": files.fresh_name})
            except TimeoutError:
                pass
        saved = None
        if answer.get("n_saved") == len(begins):
            saved = await asyncio.to_thread(files.adopt, key, prefix.name, len(begins))
        if saved is None:
            log.warning("cannot save a slot: %s", answer.get("error") or read.get("error") or "no file came of it")
            files.discard_fresh()
            self._counters.add(CARRIED, event="failed")
            self._shelf.failed(key, for_good="error" in answer)
            return
        log.info("saved the first %d tokens of a prompt, %d bytes", saved.tokens, saved.size)
        self._counters.add(CARRIED, event="saved")
        self._kept.add((key, prefix.name))


async def _tokens(upstream: Upstream, prefix: Prefix) -> list[int]:
    """The beginning as the engine reads it: what the prompts of two users have in common. Empty if it cannot say."""
    found = []
    for text in ("a", "b"):
        rendered = await tokens.render(upstream, prefix.with_user(text), {})
        listed = None if rendered is None else await tokens.listed(upstream, rendered, {})
        if listed is None:
            return []
        found.append(listed)
    one, two = found
    same = next((place for place, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), 0)
    return one[:same]


async def _ask(upstream: Upstream, target: str, body: Object) -> Object:
    """The engine's JSON object; with "error" if it says one."""
    headers = {"Content-Type": "application/json"}
    async with await upstream.request("POST", target, headers, encode(body)) as reply:
        answer = _object(await reply.read())
        if reply.status != 200:
            answer.setdefault("error", f"status {reply.status}")
    return answer


def _object(data: bytes) -> Object:
    """The JSON object in ``data``, empty if there is none."""
    try:
        value: Json = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
