"""The command line's edges: help, version, output that cannot be written, an interrupt, reading settings again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
from complaints import check_lines
from tidegate.cli.main import build_parser, run
from tidegate.cli.parser import parse
from tidegate.cli.settings_flags import flags_again, settings_from
from tidegate.guard.plan import ProfileBytes, profiles_from_json
from tidegate.settings.model import Settings
from tidegate.settings.paths import model_directory, run_directory, slot_directory


def tidegate_process(*argv: str, stdout: int) -> subprocess.CompletedProcess[bytes]:
    # With a buffer, as it is outside of containers: what is in it fails once more at the interpreter's end.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "tidegate", *argv]
    return subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=30, check=False)


@pytest.mark.parametrize("argv", [["--version"], ["--help"], *[[name, "--help"] for name in build_parser()[1]]])
def test_help_and_version_of_everything(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(argv)
    assert caught.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == f"tidegate {tidegate.__version__}\n" if argv == ["--version"] else "usage: tidegate" in out


def test_every_command_has_json_but_those_that_become_the_guard() -> None:
    without = {name for name, parser in build_parser()[1].items() if "--json" not in parser.flags()}
    assert without == {"up", "guard"}


def test_a_reader_that_left_is_no_fault(place: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = tidegate_process("check-config", "--model", str(place / "model.gguf"), stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_output_that_cannot_be_written_is_a_fault(place: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = tidegate_process("check-config", "--model", str(place / "model.gguf"), stdout=full.fileno())
    assert done.returncode == 3
    check_lines(done.stderr.decode(), "cannot go on: No space left on device", "")


def test_an_interrupt_is_what_shells_expect(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidegate.cli.check_config.settings_from", interrupted)
    assert run(["check-config"]) == 130


def test_a_path_that_is_no_text(place: Path) -> None:
    model = os.fsencode(place) + b"/\xff\n.gguf"
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"tidegate", b"check-config", b"--model", model],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 3
    check_lines(done.stderr.decode(), "cannot read the model of profile 'full', ", "")


# -- check-config ----------------------------------------------------------------------------------------------------


def test_check_config_says_what_each_profile_needs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check-config", "--model", str(place / "model.gguf"), "--budget", "1G"]) == 0
    first, full, lean = capsys.readouterr().out.splitlines()
    assert first == "settings are fine; budget 1.0 GiB"
    assert full.split()[:6] == ["full", "context", "4096", "x", "1,", "KV"]
    assert lean.split()[:3] == ["lean", "context", "1024"]
    assert " MiB, maps " in full


def test_check_config_json_is_what_a_reload_reads(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["check-config", "--model", str(place / "model.gguf"), "--warn", "0.7"]
    assert run([*argv, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert Settings.from_json(document["settings"]) == settings_from(parse(*build_parser(), argv))
    profiles = profiles_from_json(document["profiles"])
    assert list(profiles) == ["full", "lean"]
    assert isinstance(profiles["full"], ProfileBytes)
    assert profiles["full"].known > profiles["lean"].known > 0


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--warn", "0.5", "--critical=0.6", "--budget", "4.5G"],
        ["--listen", "unix:/tmp/x.sock", "--log-level", "debug", "--engine", "llama-server"],
        ["--interval", "500ms", "--log-format", "json"],
    ],
)
def test_flags_for_a_reload_make_the_same_settings_from_anywhere(
    place: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.chdir(place)
    (place / "mine.toml").write_text("[gateway]\nwarn_context = 777\n")
    arguments = parse(*build_parser(), ["guard", "--config", "mine.toml", "--model", str(place / "model.gguf"), *flags])
    before = settings_from(arguments)
    again = ["check-config", "--json", *flags_again(arguments)]
    monkeypatch.chdir("/")
    assert settings_from(parse(*build_parser(), again)) == before
    assert before.gateway.warn_context == 777


def test_auto_is_resolved(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(*flags: str) -> str:
        return settings_from(parse(*build_parser(), ["guard", "--model", "m", *flags])).worker.engine

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert engine() == "xllamacpp"
    monkeypatch.setenv("TIDEGATE_WORKER_COMMAND", "llama-server")
    assert engine() == "llama-server"
    monkeypatch.delenv("TIDEGATE_WORKER_COMMAND")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert engine() == "llama-server"
    assert engine("--engine", "xllamacpp") == "xllamacpp"


# -- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "uid", "path"),
    [
        ({"RUNTIME_DIRECTORY": "/run/a:/run/b"}, 0, "/run/a"),
        ({}, 0, "/run/tidegate"),
        ({"XDG_RUNTIME_DIR": "/run/user/1000"}, 0, "/run/tidegate"),
        ({"XDG_RUNTIME_DIR": "/run/user/1000"}, 1000, "/run/user/1000/tidegate"),
        ({}, 1000, "/tmp/tidegate-1000"),
    ],
)
def test_run_directory(environ: dict[str, str], uid: int, path: str) -> None:
    assert run_directory(environ, uid=uid) == path


@pytest.mark.parametrize(
    ("environ", "uid", "path"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, 0, "/var/lib/a/slots"),
        ({"HOME": "/root"}, 0, "/var/lib/tidegate/slots"),
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, 1000, "/s/tidegate/slots"),
        ({"HOME": "/h"}, 1000, "/h/.local/state/tidegate/slots"),
    ],
)
def test_slot_directory(environ: dict[str, str], uid: int, path: str) -> None:
    assert slot_directory(environ, uid=uid) == path


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/tidegate"),
        ({"HOME": "/h"}, "/h/.cache/tidegate"),
        ({"HOME": ""}, "/root/.cache/tidegate"),
    ],
)
def test_model_directory(environ: dict[str, str], path: str) -> None:
    assert model_directory(environ) == path
