"""What a server that somebody else started was told, and what of it is dangerous."""

from __future__ import annotations

import pytest

from tidegate.engines.foreign_flags import DEFAULT_CACHE, Told, findings, read

BOARD = 8 << 30


@pytest.mark.parametrize(
    ("line", "environ", "told"),
    [
        ("llama-server", {}, Told()),
        (
            "llama-server -m a.gguf -c 4096 -np 2 -cram 256 -ctk q8_0 -b 512 -ub 64 --no-mmap",
            {},
            Told("a.gguf", 4096, 2, "q8_0", 256 << 20, 512, 64, extra=("--no-mmap",)),
        ),
        ("llama-server --ctx-size 2048 --cache-ram -1", {}, Told(context=2048, cache=-1)),
        ("llama-server --ctx_size 2048 -m a_b.gguf", {}, Told("a_b.gguf", context=2048)),
        ("llama-server -lm none --swa-full -nr", {}, Told(extra=("-nr", "--swa-full", "--load-mode", "none"))),
        ("llama-server", {"LLAMA_ARG_LOAD_MODE": "dio"}, Told(extra=("--load-mode", "dio"))),
        ("llama-server", {"LLAMA_ARG_CTX_SIZE": "512", "LLAMA_ARG_CACHE_RAM": "0"}, Told(context=512, cache=0)),
        ("llama-server -c 1024", {"LLAMA_ARG_CTX_SIZE": "512"}, Told(context=1024)),
        ("llama-server -c 1024 -c 2048", {}, Told(context=2048)),
        ("llama-server -c", {}, Told()),
        ("llama-server -c many -np -3 -ctk huge -cram 99999999999999", {}, Told()),
    ],
)
def test_what_it_was_told(line: str, environ: dict[str, str], told: Told) -> None:
    assert read(line.split(), environ) == told


def test_a_stock_server_has_three_dangerous_defaults() -> None:
    found = findings(Told(), memory=BOARD)
    assert [sentence.split()[1] for sentence in found] == ["prompt", "context", "slots"]
    assert "--cache-ram is unset" in found[0] and "8.0 GiB" in found[0]
    assert "-c" in found[1] and "-np" in found[2]


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (None, "--cache-ram is unset"),
        (-1, "has no bound (--cache-ram -1)"),
        (3 << 30, "may grow to 3.0 GiB (--cache-ram 3072)"),
        (256 << 20, ""),
        (0, ""),
    ],
)
def test_a_prompt_cache_is_judged_by_the_board(cache: int | None, words: str) -> None:
    found = findings(Told(context=4096, slots=1, cache=cache), memory=BOARD)
    assert len(found) == (1 if words else 0)
    assert words in "".join(found)


def test_the_shape_is_the_one_that_llama_server_makes_of_it() -> None:
    split = Told(context=4096, slots=4).profile("m", trained=8192)
    assert (split.context, split.slots) == (1024, 4)
    shared = Told(context=4096).profile("m", trained=8192)
    assert (shared.context, shared.slots, shared.prompt_cache) == (4096, 1, DEFAULT_CACHE)
    assert Told().profile("m", trained=8192).context == 8192
