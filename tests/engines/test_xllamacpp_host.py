"""llama-server's flags as xllamacpp's parameters: each lands where it belongs, and each slip is named."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

import pytest

from tidegate.engines.help_text import parse_flags
from tidegate.engines.llama_flags import llama_flags
from tidegate.engines.xllamacpp import Xllamacpp
from tidegate.settings.model import Profile
from tidegate.settings.table import KV_TYPES

xllamacpp = pytest.importorskip("xllamacpp")

from tidegate.engines.xllamacpp_host import SWITCHES, VALUES, parameters  # noqa: E402


def test_a_profile() -> None:
    profile = Profile("lean", "/models/tiny.gguf", context=1024, slots=2, kv_type="q8_0", threads=3)
    found = parameters(llama_flags(profile, frozenset(), prompt_cache=64 << 20, endpoint="unix:/run/w.sock"))
    assert (found.model.path, found.model_alias) == ("/models/tiny.gguf", {"tiny"})
    assert (found.n_ctx, found.n_parallel) == (2048, 2)
    assert (found.n_batch, found.n_ubatch) == (256, 128)
    assert found.cache_type_k == found.cache_type_v == xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert found.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert found.cache_ram_mib == 64
    assert found.n_ctx_checkpoints == 2
    assert found.hostnames == ["/run/w.sock"]
    assert found.cpuparams.n_threads == 3
    assert (found.timeout_read, found.timeout_write) == (3600, 3600)
    assert (found.fit_params, found.warmup, found.ui) == (False, False, False)
    assert (found.offline, found.endpoint_metrics) == (True, True)


def test_a_port() -> None:
    flags = llama_flags(Profile("a", "m"), frozenset(), prompt_cache=0, endpoint="http://127.0.0.1:4711")
    found = parameters(flags)
    assert (found.hostnames, found.port, found.cache_ram_mib) == (["127.0.0.1"], 4711, 0)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_every_kv_type_of_the_settings(kv_type: str) -> None:
    found = parameters(["-ctk", kv_type])
    assert found.cache_type_k == getattr(xllamacpp.ggml_type, f"GGML_TYPE_{kv_type.upper()}")


def shown(params: Any) -> dict[str, str]:
    """Every plain value of ``params`` that can be read, as text."""
    found = {}
    for name, _ in inspect.getmembers(type(params), inspect.isgetsetdescriptor):
        try:
            found[name] = str(getattr(params, name))
        except Exception:  # some of llama.cpp's types have no Python side
            continue
    return found


@pytest.mark.parametrize("flag", SWITCHES)
def test_every_switch_is_taken(flag: str) -> None:
    parameters([flag])


def test_a_switch_changes_one_value() -> None:
    before, after = shown(parameters([])), shown(parameters(["--no-webui"]))
    changed = {name for name in before if before[name] != after[name] and " object at " not in before[name]}
    assert changed == {"ui"}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--nope"], "cannot use flag --nope: the xllamacpp engine knows --cache-ram "),
        (["-c"], "cannot use flag -c None: it has no value"),
        (["-c", "many"], "cannot use flag -c many: invalid literal"),
        (["-ctk", "q9"], "cannot use flag -ctk q9: "),
        (["-fa", "maybe"], "cannot use flag -fa maybe: "),
        (["-fit", "yes"], "cannot use flag -fit yes: "),
        (["-m", "x", "stray"], "cannot use flag stray: "),
        (["--ctx-size=5"], "cannot use flag --ctx-size=5: "),
    ],
)
def test_slips_are_named(flags: list[str], why: str) -> None:
    with pytest.raises(ValueError) as caught:
        parameters(flags)
    assert str(caught.value).startswith(why)


def test_a_number_that_no_parameter_holds() -> None:
    with pytest.raises(ValueError, match="cannot use flag -c"):
        parameters(["-c", str(1 << 40)])


def test_values_and_switches_are_apart() -> None:
    assert VALUES.keys().isdisjoint(SWITCHES)


def test_help_names_every_flag_and_is_read_back() -> None:
    # Buffered, as on a machine where nobody set it: the host leaves by os._exit, which flushes nothing.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [*Xllamacpp(sys.executable).command(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
        env=environment,
    )
    assert parse_flags(done.stdout) == frozenset([*VALUES, *SWITCHES])
