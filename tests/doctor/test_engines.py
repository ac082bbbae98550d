"""Servers that run with defaults too large for the board."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from doctor.trees import process, quiet, report
from tidegate.doctor import engine_commands
from tidegate.doctor.engine_commands import names_engine, read_engines
from tidegate.doctor.finding import Finding, Severity
from tidegate.host.process_table import read_processes


def server(pid: int, name: str, command: str, environment: str = "", *, anon: int = 500000) -> dict[str, str | bytes]:
    return {
        **process(pid, name, anon=anon, adj=800),
        f"/proc/{pid}/cmdline": "\0".join(command.split()) + "\0",
        f"/proc/{pid}/environ": "\0".join(environment.split()) + "\0",
    }


def engine_findings(root: Path) -> list[Finding]:
    return [finding for finding in report(root).findings if finding.id.startswith("engines.")]


def test_a_prompt_cache_larger_than_the_board(tmp_path: Path) -> None:
    root = quiet(tmp_path, server(50, "llama-server", "/usr/bin/llama-server -m /m.gguf -c 4096 -np 1"))
    (finding,) = engine_findings(root)
    assert (finding.id, finding.severity) == ("engines.llama_server", Severity.WARNING)
    assert "8.0 GiB (--cache-ram is unset) of this board's 7.6 GiB" in finding.summary
    assert "--cache-ram 0" in finding.fix


@pytest.mark.parametrize("secret", ["--api-key s3cret", "--api-key=s3cret", "--hf-token s3cret", "-hft s3cret"])
def test_a_key_is_not_shown(tmp_path: Path, secret: str) -> None:
    root = quiet(tmp_path, server(50, "llama-server", f"llama-server {secret} --api-key-file /etc/key -c 4096 -np 1"))
    (finding,) = engine_findings(root)
    assert "s3cret" not in finding.evidence
    assert "*** --api-key-file /etc/key -c 4096" in finding.evidence


def test_a_bounded_server_is_fine(tmp_path: Path) -> None:
    command = "llama-server -m /m.gguf -c 4096 -np 1 --cache-ram 512"
    assert engine_findings(quiet(tmp_path, server(50, "llama-server", command))) == []


def test_the_environment_counts(tmp_path: Path) -> None:
    files = server(50, "llama-server", "llama-server -m /m.gguf -c 4096 -np 1", "LLAMA_ARG_CACHE_RAM=0")
    assert engine_findings(quiet(tmp_path, files)) == []


def test_six_workers_are_added_up(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    for pid in range(60, 66):
        files |= server(pid, "llama-server", "llama-server -m /m.gguf -c 4096 -np 1 --cache-ram 1500")
    (total,) = [finding for finding in engine_findings(quiet(tmp_path / "six", files)) if finding.id == "engines.sum"]
    assert "6 inference servers together may take 11.7 GiB of 7.6 GiB RAM" in total.summary
    fewer = {name: data for name, data in files.items() if name.startswith(("/proc/60", "/proc/61"))}
    assert not any(each.id == "engines.sum" for each in engine_findings(quiet(tmp_path / "two", fewer)))


def test_a_full_cache_is_not_counted_twice(tmp_path: Path) -> None:
    """What a server holds is its cache already."""
    files: dict[str, str | bytes] = {}
    for pid in (60, 61):
        files |= server(pid, "llama-server", "llama-server -m /m -c 1 -np 1 --cache-ram 1900", anon=2900000)
    assert not any(each.id == "engines.sum" for each in engine_findings(quiet(tmp_path, files)))


def test_ollamas_environment(tmp_path: Path) -> None:
    files = server(70, "ollama", "/usr/local/bin/ollama serve", "PATH=/bin OLLAMA_NUM_PARALLEL=4 OLLAMA_KEEP_ALIVE=-1")
    said = " ".join(finding.summary for finding in engine_findings(quiet(tmp_path, files)))
    for name in ("OLLAMA_MAX_LOADED_MODELS", "LLAMA_ARG_CACHE_RAM", "OLLAMA_NUM_PARALLEL", "OLLAMA_KEEP_ALIVE"):
        assert name in said


def test_a_bounded_ollama_is_fine(tmp_path: Path) -> None:
    told = "OLLAMA_MAX_LOADED_MODELS=1 LLAMA_ARG_CACHE_RAM=0 OLLAMA_NUM_PARALLEL=1 OLLAMA_CONTEXT_LENGTH=4096"
    assert engine_findings(quiet(tmp_path, server(70, "ollama", "/usr/bin/ollama serve", told))) == []


def test_an_environment_that_may_not_be_read_accuses_nobody(tmp_path: Path) -> None:
    files = server(70, "ollama", "/usr/local/bin/ollama serve")
    del files["/proc/70/environ"]
    assert engine_findings(quiet(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["/opt/llama/bin/llama-server", "-m"], "llama-server"),
        (["/usr/bin/python3", "-m", "llama_cpp.server"], "llama_cpp.server"),
        (["python3", "app.py"], ""),
        ([], ""),
    ],
)
def test_what_is_an_engine(words: list[str], name: str) -> None:
    assert names_engine(words) == name


def test_a_process_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    release = threading.Event()

    def stuck(*_arguments: object) -> tuple[str, ...]:
        release.wait(20)
        return ()

    monkeypatch.setattr(engine_commands, "read_arguments", stuck)
    root = str(quiet(tmp_path, server(50, "llama-server", "llama-server")))
    began = time.monotonic()
    (engine,) = read_engines(read_processes(root), root)
    took = time.monotonic() - began
    release.set()
    assert (engine.row.pid, engine.arguments) == (50, ())
    assert took < 2
