"""The flags of a profile: everything that a board must not leave to llama-server is said, and nobody else says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate import engines
from tidegate.engines.help_text import parse_flags
from tidegate.engines.llama_flags import OWNED_FLAGS, llama_flags
from tidegate.frozen import replace
from tidegate.settings.model import Profile, WorkerSettings

PROFILE = Profile("lean", "/models/m.gguf", context=1024, kv_type="q8_0")


def flags(profile: Profile = PROFILE, *, prompt_cache: int = 0, endpoint: str = "unix:/run/w.sock") -> dict[str, str]:
    """Flag -> value; "" for switches."""
    words = llama_flags(profile, frozenset(), prompt_cache=prompt_cache, endpoint=endpoint)
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        if word.startswith("-"):
            assert word not in found
            found[word] = "" if following.startswith("-") else following
    return found


def test_a_profile() -> None:
    given = flags(replace(PROFILE, batch=512, ubatch=64, slots=2, threads=3))
    assert given["-m"] == "/models/m.gguf"
    # llama-server splits -c between its slots; a profile's context is of each.
    assert (given["-c"], given["-np"]) == ("2048", "2")
    assert (given["-b"], given["-ub"], given["-t"]) == ("512", "64", "3")
    assert given["-ctk"] == given["-ctv"] == "q8_0"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("-fa", "on"),
        ("--ctx-checkpoints", "2"),
        ("-fit", "off"),
        ("--offline", ""),
        ("--no-warmup", ""),
        ("-c", "1024"),
    ],
)
def test_what_would_break_a_board_is_never_left_unset(flag: str, value: str) -> None:
    assert flags()[flag] == value


@pytest.mark.parametrize(
    ("prompt_cache", "mebibytes"), [(0, "0"), (1 << 20, "1"), ((1 << 20) - 1, "0"), (64 << 20, "64"), (3 << 30, "3072")]
)
def test_prompt_cache_is_whole_mebibytes_rounded_down(prompt_cache: int, mebibytes: str) -> None:
    assert flags(prompt_cache=prompt_cache)["--cache-ram"] == mebibytes


def test_threads_are_the_engines_choice_unless_set() -> None:
    assert "-t" not in flags()


def test_slots_are_saved_where_that_is_possible(tmp_path: Path) -> None:
    for settings in (WorkerSettings(engine="llama-server"), WorkerSettings(engine="xllamacpp")):
        engine = engines.create(replace(settings, carry_over=str(tmp_path)), "/usr/bin/python3", ())
        argv = engine.argv(PROFILE, prompt_cache=0, endpoint="unix:/w.sock")
        assert argv[argv.index("--slot-save-path") + 1] == f"{tmp_path}/"
        for off in (str(tmp_path / "gone"), "off", "auto"):
            engine = engines.create(replace(settings, carry_over=off), "/usr/bin/python3", ())
            # llama-server ends at once for a directory that is not there.
            assert "--slot-save-path" not in engine.argv(PROFILE, prompt_cache=0, endpoint="unix:/w.sock")


def test_endpoints() -> None:
    assert flags(endpoint="unix:/run/tidegate/worker-1.sock")["--host"] == "/run/tidegate/worker-1.sock"
    assert "--port" not in flags()
    tcp = flags(endpoint="http://127.0.0.1:4711")
    assert (tcp["--host"], tcp["--port"]) == ("127.0.0.1", "4711")


def test_extra_comes_last_so_that_it_wins() -> None:
    words = llama_flags(
        replace(PROFILE, extra=("--timeout", "5")), frozenset(), prompt_cache=0, endpoint="http://127.0.0.1:1"
    )
    assert words[-2:] == ["--timeout", "5"]


def test_every_flag_that_memory_is_planned_by_is_owned() -> None:
    fuller = replace(PROFILE, threads=2)
    by_profile = set(flags(fuller, endpoint="http://127.0.0.1:1")) - {
        "-fa", "--ctx-checkpoints", "--no-warmup", "--metrics", "--no-webui", "--offline", "--timeout", "--cache-ram",
        "--cache-reuse",
    }  # fmt: skip
    assert by_profile <= OWNED_FLAGS
    assert "--cache-ram" in OWNED_FLAGS
    assert OWNED_FLAGS.isdisjoint({"--mlock", "-ngl", "--chat-template", "--embedding"})


def test_the_engine_that_settings_name() -> None:
    llama = engines.create(
        WorkerSettings(engine="llama-server", command=("nice", "llama-server")), "/usr/bin/python3", ()
    )
    argv = llama.argv(PROFILE, prompt_cache=0, endpoint="unix:/w.sock")
    assert argv[:6] == ["nice", "llama-server", "--alias", "m", "-m", "/models/m.gguf"]
    default = engines.create(WorkerSettings(engine="llama-server"), "/usr/bin/python3", ())
    assert default.argv(PROFILE, prompt_cache=0, endpoint="unix:/w.sock")[0] == "llama-server"
    package = engines.create(WorkerSettings(engine="xllamacpp"), "/usr/bin/python3", ())
    argv = package.argv(PROFILE, prompt_cache=0, endpoint="unix:/w.sock")
    assert argv[:2] == ["/usr/bin/python3", "-P"]
    assert argv[2].endswith("/xllamacpp_host.py")
    assert (llama.name, package.name) == ("llama-server", "xllamacpp")


@pytest.mark.parametrize(
    ("flags", "extra", "given"),
    [
        ((), (), ["--alias", "a_b"]),
        (("-m", "-a"), (), ["-a", "a_b"]),
        (("-m",), (), []),
        ((), ("--alias", "mine"), []),
        ((), ("-a=mine",), []),
    ],
)
def test_the_name_that_answers_show_is_the_models(
    flags: tuple[str, ...], extra: tuple[str, ...], given: list[str]
) -> None:
    engine = engines.create(WorkerSettings(engine="llama-server"), "/usr/bin/python3", flags)
    argv = engine.argv(replace(PROFILE, model="/models/a,b.gguf", extra=extra), prompt_cache=0, endpoint="unix:/w.sock")
    assert argv[1 : argv.index("-m")] == given


def test_a_build_gets_only_what_it_knows_by_the_name_it_knows() -> None:
    old = frozenset(("--model", "--ctx-size", "--parallel", "-b", "--no-ui", "--host", "--port", "--flash-attn"))
    words = llama_flags(PROFILE, old, prompt_cache=0, endpoint="http://127.0.0.1:4711")
    assert [word for word in words if word.startswith("-")] == [
        "--model", "--ctx-size", "--parallel", "-b", "--flash-attn", "--no-ui", "--host", "--port",
    ]  # fmt: skip


def test_flags_are_read_from_a_help_text() -> None:
    text = (
        "----- common params -----\n\n"
        "-h,    --help, --usage                  print usage and exit\n"
        "-c,    --ctx-size N                     size (default: 0, --not-this = loaded, -x, --nor-this)\n"
        "                                        (env: LLAMA_ARG_CTX_SIZE) --neither\n"
        "-fa,   --flash-attn [on|off|auto]       set, -y\n"
        "--no-webui, --no-ui                     off\n"
        "-1 is no flag\n-- nor that\n"
    )
    assert parse_flags(text) == {
        "-h", "--help", "--usage", "-c", "--ctx-size", "-fa", "--flash-attn", "--no-webui", "--no-ui",
    }  # fmt: skip
    assert parse_flags("\0\n-\n--\n---x\n-,-,\n") == frozenset()
