"""The one table of settings: TOML keys, flags, environment names, checks and documentation are all read from it.

Defaults are not repeated here; they are those of :mod:`tidegate.settings.model`. A test holds the two together.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum

from tidegate.units import format_size, parse_duration, parse_size

#: KV cache types of llama.cpp (``-ctk``/``-ctv``); all but the float types need a head size divisible by 32.
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


class Kind(StrEnum):
    """What a value looks like."""

    RATIO = "a ratio between 0 and 1, such as 0.82"
    SIZE = "a size such as 450M or 4.5G"
    DURATION = "a duration such as 10s or 500ms"
    INTEGER = "a whole number"
    TEXT = "a text"
    WORDS = "a list of texts"
    SWITCH = "true or false"


@dataclass(frozen=True)
class Setting:
    """One setting. ``low`` and ``high`` bound numbers, inclusive, in base units (bytes, seconds); ``choices`` texts."""

    section: str
    key: str
    kind: Kind
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    flag: str = ""

    @property
    def name(self) -> str:
        """The dotted TOML name, ``memory.warn``."""
        return f"{self.section}.{self.key}"

    @property
    def env(self) -> str:
        """The environment name, ``TIDEGATE_MEMORY_WARN``."""
        return f"TIDEGATE_{self.section}_{self.key}".upper()

    def parse(self, value: object) -> object:
        """The value in base units.

        Raises:
            ValueError: wrong type, unit, range or choice; the message says what is right.
        """
        match self.kind:
            case Kind.SIZE if isinstance(value, (str, int)):
                parsed: object = parse_size(value)
            case Kind.DURATION if isinstance(value, (str, int, float)):
                parsed = parse_duration(value)
            case Kind.RATIO if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                parsed = _number(value, float, self.kind)
            case Kind.INTEGER if isinstance(value, (str, int)) and not isinstance(value, bool):
                parsed = _number(value, int, self.kind)
            case Kind.TEXT if isinstance(value, str):
                _check_text(value)
                parsed = value
            case Kind.WORDS if isinstance(value, list) and all(isinstance(word, str) for word in value):
                for word in value:
                    _check_text(word)
                parsed = tuple(value)
            case Kind.WORDS if isinstance(value, str):
                parsed = tuple(shlex.split(value))
            case Kind.SWITCH if isinstance(value, bool):
                parsed = value
            case Kind.SWITCH if value in ("true", "false"):
                parsed = value == "true"
            case _:
                raise ValueError(f"not {self.kind.value}")
        self._check_bounds(parsed)
        return parsed

    def _check_bounds(self, value: object) -> None:
        if self.choices and value not in self.choices:
            raise ValueError(f"not one of {', '.join(self.choices)}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.low is not None and value < self.low:
                raise ValueError(f"below the lowest possible value, {self.show(self.low)}")
            if self.high is not None and value > self.high:
                raise ValueError(f"above the highest possible value, {self.show(self.high)}")

    def show(self, number: float) -> str:
        """``number``, in base units, as a person reads a value of this setting."""
        match self.kind:
            case Kind.SIZE:
                return format_size(number)
            case Kind.DURATION:
                return f"{number:g} s"
            case Kind.INTEGER:
                return str(int(number))
            case _:
                return f"{number:g}"


def _check_text(text: str) -> None:
    if not text or "\0" in text:
        raise ValueError("an empty text" if not text else "a text with a NUL byte")


def _number(value: str | float, kind: type[int] | type[float], what: Kind) -> int | float:
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        raise ValueError(f"not {what.value}") from None
    if number != number:
        raise ValueError(f"not {what.value}")
    return number


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "memory",
        "warn",
        Kind.RATIO,
        "share of the nearest limit in use at which ground is given",
        0.05,
        0.98,
        flag="--warn",
    ),
    Setting(
        "memory",
        "critical",
        Kind.RATIO,
        "share at which the worker is reset and expensive prompts are refused",
        0.1,
        0.99,
        flag="--critical",
    ),
    Setting("memory", "release", Kind.RATIO, "how far below its line use must be before a level is left", 0.0, 0.5),
    Setting("memory", "hold", Kind.DURATION, "how long use must stay below before a level is left", 0, 3600),
    Setting(
        "memory", "lead", Kind.DURATION, "critical also when the fill rate reaches the limit within this time", 0, 60
    ),
    Setting("memory", "interval", Kind.DURATION, "time between two looks at rest", 0.1, 60, flag="--interval"),
    Setting(
        "memory",
        "budget",
        Kind.SIZE,
        "most bytes (anonymous, shared, swapped) the worker may use",
        16 << 20,
        flag="--budget",
    ),
    Setting(
        "worker",
        "engine",
        Kind.TEXT,
        "the inference engine",
        choices=("auto", "xllamacpp", "llama-server"),
        flag="--engine",
    ),
    Setting("worker", "command", Kind.WORDS, "program and first arguments of the llama-server engine"),
    Setting(
        "worker", "oom_score_adj", Kind.INTEGER, "how readily the kernel's OOM killer takes the worker", -999, 1000
    ),
    Setting("worker", "step_up_after", Kind.DURATION, "quiet time before a better profile is tried", 1, 86400),
    Setting("worker", "load_timeout", Kind.DURATION, "how long a worker may take to load its model", 1, 3600),
    Setting(
        "worker",
        "carry_over",
        Kind.TEXT,
        "where the common beginning of prompts is kept over a restart: a directory, off, or auto",
    ),
    Setting("worker", "unit", Kind.TEXT, "systemd unit of a server that somebody else starts", flag="--unit"),
    Setting("worker", "process", Kind.TEXT, "command name of such a server, its first 15 bytes", flag="--process"),
    Setting("worker", "cgroup", Kind.TEXT, "cgroup of such a server, such as /ai_inference", flag="--cgroup"),
    Setting("worker", "url", Kind.TEXT, "where such a server listens, http://IP:PORT or unix:PATH", flag="--url"),
    Setting(
        "worker",
        "restart",
        Kind.WORDS,
        "command that starts such a server again, or the word supervisor: somebody else does",
        flag="--restart",
    ),
    Setting("fence", "high", Kind.SIZE, "memory.high of the worker's cgroup, at or above the critical line", 16 << 20),
    Setting(
        "fence",
        "max",
        Kind.SIZE,
        "memory.max of the worker's cgroup, the kernel's last line; alone it gives a budget a sixteenth below",
        16 << 20,
    ),
    Setting("fence", "swap_max", Kind.SIZE, "memory.swap.max of the worker's cgroup", 0),
    Setting("fence", "oom_group", Kind.SWITCH, "memory.oom.group: an OOM kill in the cgroup takes all of it"),
    Setting("fence", "cpu_weight", Kind.INTEGER, "cpu.weight of the worker's cgroup; others have 100", 1, 10000),
    Setting("protect", "processes", Kind.WORDS, "command names, first 15 bytes, that the OOM killer is to spare"),
    Setting("protect", "units", Kind.WORDS, "systemd services that the OOM killer is to spare"),
    Setting("protect", "memory_min", Kind.SIZE, "memory.min of these units: bytes that nobody reclaims from them", 0),
    Setting(
        "protect", "memory_low", Kind.SIZE, "memory.low of these units: bytes that are reclaimed from others first", 0
    ),
    Setting("gateway", "listen", Kind.TEXT, "address of the front door, HOST:PORT or unix:PATH", flag="--listen"),
    Setting("gateway", "warn_context", Kind.INTEGER, "tokens of history kept at warn", 64, 1 << 20),
    Setting("gateway", "critical_prompt", Kind.INTEGER, "longest prompt in tokens still taken at critical", 1, 1 << 20),
    Setting("gateway", "hold", Kind.DURATION, "how long a request may wait for a worker", 1, 600),
    Setting("gateway", "deadline", Kind.DURATION, "how long a request may wait for its turn behind others", 1, 3600),
    Setting("gateway", "language", Kind.TEXT, "language of the degraded hint", choices=("en", "zh")),
    Setting(
        "gateway",
        "on_pressure",
        Kind.TEXT,
        "what a client gets that is refused for lack of memory or time: an error, or an answer that says so",
        choices=("error", "answer"),
    ),
    Setting("gateway", "keys", Kind.TEXT, "file of API keys, mode 0600, one a line; clients need one then"),
    Setting(
        "gateway", "control_keys", Kind.TEXT, "the same for status, events, metrics and orders; they open everything"
    ),
    Setting("gateway", "without_keys", Kind.SWITCH, "listen beyond this machine although no key is asked for"),
    Setting("gateway", "log_prompts", Kind.SWITCH, "log the first 2000 characters of every request for the model"),
    Setting(
        "log",
        "level",
        Kind.TEXT,
        "least level that is logged",
        choices=("debug", "info", "warning", "error"),
        flag="--log-level",
    ),
    Setting("log", "format", Kind.TEXT, "how log lines look", choices=("text", "json"), flag="--log-format"),
)

#: Keys of one ``[[worker.profile]]``. A key left out is inherited from the profile above it.
PROFILE_SETTINGS: tuple[Setting, ...] = (
    Setting("worker.profile", "name", Kind.TEXT, "name of the profile, used in commands and headers"),
    Setting("worker.profile", "model", Kind.TEXT, "path of the GGUF file", flag="--model"),
    Setting("worker.profile", "context", Kind.INTEGER, "context in tokens, for each slot", 128, 1 << 21),
    Setting("worker.profile", "slots", Kind.INTEGER, "requests answered at the same time", 1, 64),
    Setting("worker.profile", "kv_type", Kind.TEXT, "type of the KV cache", choices=KV_TYPES),
    Setting(
        "worker.profile", "prompt_cache", Kind.SIZE, "most bytes of prompts kept in host memory, 0 for none", 0, 1 << 40
    ),
    Setting("worker.profile", "batch", Kind.INTEGER, "tokens per prefill step; cancelling waits for one step", 1, 8192),
    Setting("worker.profile", "ubatch", Kind.INTEGER, "tokens per compute buffer", 1, 8192),
    Setting("worker.profile", "threads", Kind.INTEGER, "threads of the engine, 0 for its own choice", 0, 1024),
    Setting("worker.profile", "extra", Kind.WORDS, "further flags of the engine"),
)
