"""What a llama-server that somebody else started was told, and which of it is dangerous on a board. Pure.

Names and defaults are those of b11434 (common/arg.cpp, common/common.h); a flag counts before its environment variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.settings.model import ATTACHED, Profile
from tidegate.settings.table import KV_TYPES
from tidegate.units import format_size

#: Host prompt cache when --cache-ram is unset: common_params::cache_ram_mib.
DEFAULT_CACHE = 8192 << 20
#: Slots when -np is unset; they share one context, and each is promised all of it.
_DEFAULT_SLOTS = 4
_DEFAULT_BATCH = 2048
_DEFAULT_UBATCH = 512
#: A prompt cache above this share of the board's memory is no bound.
_CACHE_SHARE = 0.25

_NAMES = {
    "model": (("-m", "--model"), "LLAMA_ARG_MODEL"),
    "context": (("-c", "--ctx-size"), "LLAMA_ARG_CTX_SIZE"),
    "slots": (("-np", "--parallel"), "LLAMA_ARG_N_PARALLEL"),
    "kv_type": (("-ctk", "--cache-type-k"), "LLAMA_ARG_CACHE_TYPE_K"),
    "cache": (("-cram", "--cache-ram"), "LLAMA_ARG_CACHE_RAM"),
    "batch": (("-b", "--batch-size"), "LLAMA_ARG_BATCH"),
    "ubatch": (("-ub", "--ubatch-size"), "LLAMA_ARG_UBATCH"),
    "load_mode": (("-lm", "--load-mode"), "LLAMA_ARG_LOAD_MODE"),
}
_FLAGS = {flag: name for name, (flags, _) in _NAMES.items() for flag in flags}
#: Flags without a value that :func:`tidegate.policy.footprint.plan` knows.
_SWITCHES = ("--no-mmap", "--no-repack", "-nr", "--swa-full")


@dataclass(frozen=True)
class Told:
    """``context`` and ``slots`` are 0 where unset; ``cache`` is bytes, None where unset, -1 for no bound; ``extra`` are
    the other flags that change what it needs."""

    model: str = ""
    context: int = 0
    slots: int = 0
    kv_type: str = "f16"
    cache: int | None = None
    batch: int = _DEFAULT_BATCH
    ubatch: int = _DEFAULT_UBATCH
    extra: tuple[str, ...] = ()

    @property
    def prompt_cache(self) -> int:
        """Most bytes that its prompt cache may take, as far as it was told."""
        return DEFAULT_CACHE if self.cache is None or self.cache < 0 else self.cache

    def profile(self, model: str, *, trained: int) -> Profile:
        """Its shape, for planning its bytes; ``trained`` is the model's own context, which an unset one becomes."""
        context = self.context or trained
        # An explicit -np splits the context between the slots, the default shares it.
        slots = self.slots or 1
        return Profile(
            name=ATTACHED,
            model=model,
            context=max(1, context // slots),
            slots=slots,
            kv_type=self.kv_type,
            prompt_cache=self.prompt_cache,
            batch=self.batch,
            ubatch=self.ubatch,
            extra=self.extra,
        )


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Told:
    """What ``argv`` and ``environ`` tell. Values that are none are left at their defaults, as an engine that runs
    cannot have been given them."""
    given = {name: environ[variable] for name, (_, variable) in _NAMES.items() if environ.get(variable)}
    # llama-server takes --ctx_size for --ctx-size.
    words = [word.replace("_", "-") if word.startswith("--") else word for word in argv[1:]]
    for place, word in enumerate(words):
        name = _FLAGS.get(word)
        if name is not None:
            given[name] = words[place + 1] if place + 1 < len(words) else ""
    cache = _number(given.get("cache", ""))
    extra = [switch for switch in _SWITCHES if switch in words]
    if "LLAMA_ARG_NO_MMAP" in environ and "--no-mmap" not in extra:
        extra.append("--no-mmap")
    if given.get("load_mode"):
        extra += ["--load-mode", given["load_mode"]]
    return Told(
        model=given.get("model", ""),
        context=max(0, _number(given.get("context", "")) or 0),
        slots=max(0, _number(given.get("slots", "")) or 0),
        kv_type=given["kv_type"] if given.get("kv_type") in KV_TYPES else "f16",
        cache=None if cache is None else cache << 20 if cache >= 0 else -1,
        batch=_number(given.get("batch", "")) or _DEFAULT_BATCH,
        ubatch=_number(given.get("ubatch", "")) or _DEFAULT_UBATCH,
        extra=tuple(extra),
    )


def findings(told: Told, *, memory: int) -> list[str]:
    """One sentence for each thing that grows, or was sized, without regard to the board's ``memory`` (bytes)."""
    found = []
    board = format_size(memory)
    if told.cache is None:
        found.append(
            f"its prompt cache may grow to {format_size(DEFAULT_CACHE)} (--cache-ram is unset) of this board's "
            f"{board}, and no call empties it: give it --cache-ram 0, or as many MiB as you can spare"
        )
    elif told.cache < 0:
        found.append(f"its prompt cache has no bound (--cache-ram -1) on a board with {board}: give it --cache-ram 0")
    elif told.cache > memory * _CACHE_SHARE:
        found.append(
            f"its prompt cache may grow to {format_size(told.cache)} (--cache-ram {told.cache >> 20}) of this board's "
            f"{board}: lower --cache-ram"
        )
    if not told.context:
        found.append(
            "its context is unset (-c), so it is sized to the model's or to all memory, not to what is free: set -c"
        )
    if not told.slots:
        found.append(
            f"its slots are unset (-np), so {_DEFAULT_SLOTS} requests share one context that each is promised whole, "
            "and all of them fail when it is full: set -np 1"
        )
    return found


def _number(text: str) -> int | None:
    try:
        value = int(text)
    except ValueError:
        return None
    return value if -1 << 31 < value < 1 << 31 else None
