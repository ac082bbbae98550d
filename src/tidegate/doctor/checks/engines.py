"""Inference servers that run now: defaults that outgrow this board, and the sum of what all may take."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.engine_commands import EngineProcess
from tidegate.doctor.finding import Finding, Severity
from tidegate.engines import foreign_flags
from tidegate.units import format_size

#: envconfig/config.go: unset means three models a GPU, and three where there is only the CPU.
_OLLAMA_MODELS = 3
#: Their values are not shown: a report is pasted into issues.
_SECRET = ("--api-key", "--hf-token", "-hft")


def check(board: Board) -> Iterator[Finding]:
    """Each server's own dangers, then all ceilings together against the RAM."""
    if not board.total:
        return
    for engine in board.engines:
        if engine.kind == "llama-server":
            yield from _llama_server(board, engine)
        elif engine.kind == "ollama":
            yield from _ollama(board, engine)
    yield from _sum(board)


def _llama_server(board: Board, engine: EngineProcess) -> Iterator[Finding]:
    if not engine.arguments:
        return
    told = foreign_flags.read(engine.arguments, engine.environment)
    for number, said in enumerate(foreign_flags.findings(told, memory=board.total)):
        what, _, cure = said.rpartition(": ")
        yield Finding(
            id="engines.llama_server",
            severity=Severity.WARNING if number == 0 and "prompt cache" in said else Severity.INFO,
            summary=f"llama-server (pid {engine.row.pid}): {what}",
            evidence=f"its command line: {_shown(engine.arguments)}; it holds "
            f"{format_size(engine.row.memory.unreclaimable)} in RAM and swap now",
            why="growth up to that size is no leak but a cache at work, and the board has no room for it",
            fix=f"{cure} (LLAMA_ARG_CACHE_RAM, LLAMA_ARG_CTX_SIZE and LLAMA_ARG_N_PARALLEL do the same from a unit's "
            "Environment=)",
        )


def _shown(arguments: tuple[str, ...]) -> str:
    """The command line without its secrets, 300 characters at most."""
    words = []
    for before, word in zip(("", *arguments), arguments, strict=False):
        name, equals, _ = word.partition("=")
        secret = name in _SECRET and equals
        words.append(f"{name}=***" if secret else "***" if before in _SECRET else word)
    return " ".join(words)[:300]


def _ollama(board: Board, engine: EngineProcess) -> Iterator[Finding]:
    if not engine.arguments or "serve" not in engine.arguments or not engine.environment:
        # The environment of another user's process cannot be read: then nothing is known.
        return
    get = engine.environment.get
    dangers: list[tuple[str, str, str]] = []
    models = _number(get("OLLAMA_MAX_LOADED_MODELS", "")) or _OLLAMA_MODELS
    if models > 1:
        said = get("OLLAMA_MAX_LOADED_MODELS", "unset")
        dangers.append(
            (f"OLLAMA_MAX_LOADED_MODELS is {said}: {models} models may be resident", "", "OLLAMA_MAX_LOADED_MODELS=1")
        )
    if "LLAMA_ARG_CACHE_RAM" not in engine.environment:
        cache = format_size(foreign_flags.DEFAULT_CACHE)
        dangers.append(
            (
                f"LLAMA_ARG_CACHE_RAM is unset: each runner's prompt cache may grow to {cache}",
                "ollama starts llama-server without --cache-ram, which inherits the variable",
                "LLAMA_ARG_CACHE_RAM=0",
            )
        )
    if (_number(get("OLLAMA_NUM_PARALLEL", "")) or 1) > 1:
        dangers.append(
            (
                f"OLLAMA_NUM_PARALLEL is {get('OLLAMA_NUM_PARALLEL')}: the KV cache is that many times larger",
                "",
                "OLLAMA_NUM_PARALLEL=1",
            )
        )
    if not get("OLLAMA_CONTEXT_LENGTH"):
        dangers.append(
            ("OLLAMA_CONTEXT_LENGTH is unset: its default goes by the GPU's memory", "", "OLLAMA_CONTEXT_LENGTH=4096")
        )
    if get("OLLAMA_KEEP_ALIVE", "").startswith("-"):
        dangers.append(
            (f"OLLAMA_KEEP_ALIVE is {get('OLLAMA_KEEP_ALIVE')}: a model is never unloaded", "", "OLLAMA_KEEP_ALIVE=5m")
        )
    for what, more, cure in dangers:
        serious = "models" in what or "CACHE_RAM" in what
        yield Finding(
            id="engines.ollama",
            severity=Severity.WARNING if serious else Severity.INFO,
            summary=f"ollama (pid {engine.row.pid}): {what}",
            evidence=f"/proc/{engine.row.pid}/environ; {more or 'the board has ' + format_size(board.total)}",
            why="ollama looks at free memory before a load on GPUs only; on this board the kernel's OOM killer decides",
            fix=f"systemctl edit ollama: [Service] Environment={cure}",
        )


def _ceiling(engine: EngineProcess) -> int:
    """The most that the server may come to: what it holds, and the prompt cache that is still to be filled."""
    holds = engine.row.memory.unreclaimable
    if engine.kind != "llama-server" or not engine.arguments:
        return holds
    # What it holds may be the cache already: then it does not come on top.
    return max(holds, foreign_flags.read(engine.arguments, engine.environment).prompt_cache + min(holds, 1 << 30))


def _sum(board: Board) -> Iterator[Finding]:
    workers = [engine for engine in board.engines if engine.row.memory.unreclaimable or engine.arguments]
    total = sum(map(_ceiling, workers))
    if len(workers) < 2 or total <= board.total:
        return
    each = "; ".join(
        f"{engine.row.name} (pid {engine.row.pid}) {format_size(_ceiling(engine))}" for engine in workers[:8]
    )
    yield Finding(
        id="engines.sum",
        severity=Severity.WARNING,
        summary=f"{len(workers)} inference servers together may take {format_size(total)} of "
        f"{format_size(board.total)} RAM",
        evidence=f"ceilings of prompt cache and what is held now: {each}",
        why="every single limit looks fine; the sum of the ceilings does not fit",
        fix="--cache-ram (or LLAMA_ARG_CACHE_RAM) for each: the RAM that is to spare, divided by the number of servers",
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
