"""Every fault that a person can make before tidegate runs: one clear line, at most one hint, the right exit code."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from complaints import check_lines
from tidegate.cli.main import run


class Case(NamedTuple):
    """``argv`` and ``config`` may have {model}, {dir} and {config}. ``why`` and ``hint`` begin what is said."""

    argv: str
    config: str | bytes
    code: int
    why: str
    hint: str = ""
    env: dict[str, str] = {}  # noqa: RUF012


CHECK = "check-config --config {config} --model {model}"

CASES = {
    # the file
    "unknown key": Case(
        CHECK, "[memory]\nwran = 0.5", 3, "cannot use memory.wran: no such setting", "did you mean 'warn'?"
    ),
    "unknown section": Case(CHECK, "[gatway]", 3, "cannot use gatway: no such section", "did you mean 'gateway'?"),
    "key without its section": Case(
        CHECK, "budget = '1G'", 3, "cannot use budget: no such section", "it belongs into [memory]"
    ),
    "key in the wrong section": Case(
        CHECK, "[worker]\ncontext = 1", 3, "cannot use worker.context: no such setting", "it belongs into [[worker"
    ),
    "key with a newline in it": Case(CHECK, '[memory]\n"a\\nb" = 1', 3, 'cannot use memory."a\\nb": no', "known"),
    "unknown profile key": Case(
        CHECK, "[[worker.profile]]\nname = 'a'\ncontxt = 512", 3, "cannot use worker.profile[1].contxt: no such",
        "did you mean 'context'?",
    ),
    "section is a value": Case(CHECK, "memory = 3", 3, "cannot use memory = 3: not a table", "write [memory]"),
    "profile is one table": Case(
        CHECK, "[worker.profile]\nname = 'a'", 3, "cannot use worker.profile: not a list", "write [[worker.profile]]"
    ),
    "wrong unit of a size": Case(
        CHECK, "[memory]\nbudget = '4.5 gigs'", 3, 'cannot use memory.budget = "4.5 gigs": not a size such as 450M'
    ),
    "wrong unit of a duration": Case(
        CHECK, "[memory]\nhold = '10 parsecs'", 3, 'cannot use memory.hold = "10 parsecs": not a duration such as 10s'
    ),
    "per cent for a ratio": Case(CHECK, "[memory]\nwarn = '82%'", 3, 'cannot use memory.warn = "82%": not a ratio'),
    "per cent as a number": Case(
        CHECK, "[memory]\nwarn = 82", 3, "cannot use memory.warn = 82: above the highest possible value, 0.98"
    ),
    "list for a number": Case(CHECK, "[memory]\nwarn = [1]", 3, "cannot use memory.warn = [1]: not a ratio"),
    "bool for a number": Case(
        CHECK, "[gateway]\nwarn_context = true", 3, "cannot use gateway.warn_context = true: not a whole number"
    ),
    "bool for a size": Case(CHECK, "[memory]\nbudget = true", 3, "cannot use memory.budget = true: not a size"),
    "number for a text": Case(CHECK, "[log]\nlevel = 3", 3, "cannot use log.level = 3: not a text"),
    "table for a number": Case(CHECK, "[memory.hold]\ns = 3", 3, "cannot use memory.hold = {{'s': 3}}: not a duration"),
    "number in a list of texts": Case(CHECK, "[worker]\ncommand = [1]", 3, "cannot use worker.command = [1]: not a li"),
    "empty word": Case(CHECK, "[worker]\ncommand = ['']", 3, "cannot use worker.command = ['']: an empty text"),
    "date": Case(CHECK, "[memory]\nhold = 2026-01-01", 3, "cannot use memory.hold = 2026-01-01: not a duration"),
    "not a number": Case(CHECK, "[memory]\nwarn = nan", 3, "cannot use memory.warn = nan: not a ratio"),
    "infinity": Case(CHECK, "[memory]\nlead = inf", 3, "cannot use memory.lead = inf: out of range"),
    "negative size": Case(CHECK, "[memory]\nbudget = -1", 3, "cannot use memory.budget = -1: out of range"),
    "negative context": Case(
        CHECK, "[[worker.profile]]\nname = 'a'\ncontext = -1", 3, "cannot use worker.profile[1].context = -1: below the"
    ),
    "fraction of a token": Case(CHECK, "[gateway]\nwarn_context = 1.5", 3, "cannot use gateway.warn_context = 1.5: n"),
    "huge number": Case(CHECK, f"[memory]\nhold = {'9' * 400}", 3, "cannot use memory.hold = 99999"),
    "number of 5000 digits": Case(CHECK, f"[memory]\nhold = {'9' * 5000}", 3, "cannot read settings {config}: "),
    "hexadecimal of 5000 digits": Case(CHECK, f"[memory]\nbudget = 0x{'f' * 5000}", 3, "cannot use memory.budget = .."),
    "long text": Case(CHECK, f"[log]\nlevel = '{'x' * 5000}'", 3, 'cannot use log.level = "xxx'),
    "wrong choice": Case(CHECK, "[log]\nformat = 'xml'", 3, 'cannot use log.format = "xml": not one of text, json'),
    "kv_type typo": Case(
        CHECK, "[[worker.profile]]\nname = 'a'\nkv_type = 'q8'", 3,
        'cannot use worker.profile[1].kv_type = "q8": not one of f32, f16',
    ),
    "warn above critical": Case(
        CHECK, "[memory]\nwarn = 0.95", 3, "cannot use memory.warn = 0.95: it is not below memory.critical = 0.91"
    ),
    "release above warn": Case(CHECK, "[memory]\nwarn = 0.1\nrelease = 0.2", 3, "cannot use memory.release = 0.2: it"),
    "ubatch above batch": Case(
        CHECK, "[[worker.profile]]\nname = 'a'\nbatch = 64", 3,
        "cannot use worker.profile[1].ubatch = 128: it is above its batch = 64",
    ),
    "profile twice": Case(
        CHECK, "[[worker.profile]]\nname = 'a'\n[[worker.profile]]\nname = 'a'", 3,
        'cannot use worker.profile[2].name = "a": a profile above has that name',
    ),
    "profile without name": Case(
        CHECK, "[[worker.profile]]\ncontext = 512", 3, "cannot use worker.profile[1]: it has no name", 'write name = "'
    ),
    "profile name with a space": Case(
        CHECK, "[[worker.profile]]\nname = 'a b'", 3, 'cannot use worker.profile[1].name = "a b": not 1 to 32 letters'
    ),
    "command of the other engine": Case(
        CHECK, "[worker]\nengine = 'xllamacpp'\ncommand = ['x']", 3, "cannot use worker.command: only the llama-server"
    ),
    "not TOML": Case(CHECK, "[memory\nwarn", 3, "cannot read settings {config}: Expected ']'"),
    "key twice": Case(CHECK, "[memory]\nwarn = 1\nwarn = 2", 3, "cannot read settings {config}: Cannot overwrite"),
    "not UTF-8": Case(CHECK, b"[memory]\n# \xff\n", 3, "cannot read settings {config}: not UTF-8 at byte 11"),
    "a model as settings": Case(CHECK, b"GGUF" + b"\0" * (1 << 20), 3, "cannot read settings {config}: larger than 1"),
    "nested too deeply": Case(CHECK, f"x = {'[' * 5000}", 3, "cannot read settings {config}: nested too deeply"),
    "settings are a directory": Case("check-config --config {dir}", "", 3, "cannot read settings {dir}: Is a direc"),
    "settings missing": Case(
        "check-config --config {dir}/none.toml", "", 3, "cannot read settings {dir}/none.toml: No such file"
    ),
    "settings of the environment missing": Case(
        "check-config", "", 3, "cannot read settings {dir}/none.toml: No", env={"TIDEGATE_CONFIG": "{dir}/none.toml"}
    ),
    # the environment
    "environment value": Case(
        CHECK, "", 3, 'cannot use $TIDEGATE_MEMORY_WARN = "x": not a ratio', env={"TIDEGATE_MEMORY_WARN": "x"}
    ),
    "environment empty": Case(
        CHECK, "", 3, 'cannot use $TIDEGATE_LOG_LEVEL = "": an empty text', env={"TIDEGATE_LOG_LEVEL": ""}
    ),
    "environment name": Case(
        CHECK, "", 3, "cannot use $TIDEGATE_MEMORY_BUDGT: no such setting", "did you mean $TIDEGATE_MEMORY_BUDGET?",
        env={"TIDEGATE_MEMORY_BUDGT": "1G"},
    ),
    # the command line
    "mistyped flag": Case(f"{CHECK} --wran 0.5", "", 2, "cannot use --wran: tidegate check-config has no such flag",
                          "did you mean --warn?"),
    "abbreviated flag": Case(f"{CHECK} --log-l debug", "", 2, "cannot use --log-l: tidegate check-config has no such",
                             "did you mean --log-level?"),
    "unknown flag": Case("status --zzzz", "", 2, "cannot use --zzzz: tidegate status has no", "tidegate status --help"),
    "flag before the command": Case(
        "--warn=0.5 up", "", 2, "cannot use --warn: tidegate has no such flag", "it comes after the command"
    ),
    "flag without value": Case("up --config", "", 2, "cannot use --config: expected one argument", "tidegate up"),
    "flag with a value too many": Case("status --json=yes", "", 2, "cannot use --json: it takes no value", "tidegate"),
    "flag value": Case(f"{CHECK} --warn=high", "", 2, 'cannot use --warn = "high": not a ratio'),
    "flag value beyond its range": Case(f"{CHECK} --interval 2h", "", 2, 'cannot use --interval = "2h": above the highe'
                                        "st possible value, 60 s"),
    "flags against each other": Case(f"{CHECK} --warn 0.9 --critical 0.8", "", 2, "cannot use memory.warn = 0.9: it"),
    "flag listen": Case(f"{CHECK} --listen 8080", "", 2, 'cannot use gateway.listen = "8080": not HOST:PORT', "such"),
    "mistyped command": Case("stauts", "", 2, "cannot run tidegate stauts: no such command", "did you mean tidegate"),
    "unknown command": Case("frobnicate", "", 2, "cannot run tidegate frobnicate: no such command", "commands: up"),
    "no command": Case("", "", 2, "cannot run tidegate: COMMAND is missing", "tidegate --help"),
    "argument missing": Case("step", "", 2, "cannot run tidegate step: NAME is missing", "tidegate step --help"),
    "argument too many": Case("reset now", "", 2, "cannot run tidegate reset: now is one argument too", "tidegate"),
    "pause of no duration": Case("pause forever", "", 2, "cannot pause: 'forever' is not a duration such as 10s"),
    "pause too long": Case("pause 10000h", "", 2, "cannot pause: '10000h' is out of range (0 to 30 days)"),
    # the model
    "model missing": Case(
        "check-config --model {dir}/none.gguf", "", 3,
        "cannot read the model of profile 'full', {dir}/none.gguf: No such file",
    ),
    "model is a directory": Case(
        "check-config --model {dir}", "", 3, "cannot read the model of profile 'full', {dir}: it is a directory"
    ),
    "model is a pipe": Case(
        "check-config --model {dir}/pipe", "", 3, "cannot read the model of profile 'full', {dir}/pipe: it is not a"
    ),
    "model is no GGUF": Case(
        "check-config --model {config}", "text", 3, "cannot read the model of profile 'full', {config}: it is no GGUF"
    ),
    "model truncated": Case(
        "check-config --model {dir}/short.gguf", "", 3,
        "cannot read the model of profile 'full', {dir}/short.gguf: it is truncated or damaged",
    ),
    "demo model not there": Case(
        "check-config", "", 3, "cannot read the model of profile 'full', {dir}/tidegate/SmolLM2", "tidegate model gets"
    ),
    "context above the model's": Case(
        CHECK, "[[worker.profile]]\nname = 'a'\ncontext = 16384", 3,
        "cannot use context = 16384 of profile 'a': the model was trained for 8192",
    ),
    "flag that tidegate owns": Case(
        CHECK, "[[worker.profile]]\nname = 'a'\nextra = ['--mlock', '--ctx-size=99']", 3,
        "cannot use extra flag --ctx-size=99 of profile 'a': tidegate sets it itself", "use the profile's own keys",
    ),
    "budget too small": Case(f"{CHECK} --budget 20M", "", 3, "cannot use memory.budget = 20.0 MiB: the smallest pro"),
    # the machine
    "engine not installed": Case(
        "guard --config {config} --model {model}", "[worker]\ncommand = ['llama-sever']", 3,
        "cannot use engine llama-server: no program llama-sever", "set worker.command, or pip install 'tidegate[demo]'",
    ),
    "engine not executable": Case(
        "guard --config {config} --model {model}", "[worker]\ncommand = ['{model}']", 3,
        "cannot use engine llama-server: {model} is not executable", "set worker.command",
    ),
    "no guard": Case("status", "", 3, "cannot show the status: no guard runs here ({dir}/run/guard.sock)", "start one"),
    "no guard to order": Case("step lean", "", 3, "cannot change the profile: no guard runs here", "start one with"),
}  # fmt: skip


def fill(text: str, place: Path) -> str:
    return text.format(dir=place, model=place / "model.gguf", config=place / "tidegate.toml")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_line_and_the_exit_code(
    case: Case, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = case.config.replace("{model}", str(place / "model.gguf")) if isinstance(case.config, str) else case.config
    (place / "tidegate.toml").write_bytes(config.encode() if isinstance(config, str) else config)
    for name, value in case.env.items():
        monkeypatch.setenv(name, fill(value, place))
    assert run([fill(word, place) for word in case.argv.split()]) == case.code
    out, err = capsys.readouterr()
    check_lines(err, fill(case.why, place), case.hint)
    assert out == ""


def test_the_table_is_of_faults_only(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The common command line with an empty file is right: it is what each case adds that is wrong."""
    (place / "tidegate.toml").write_text("")
    assert run([fill(word, place) for word in CHECK.split()]) == 0
    assert capsys.readouterr().err == ""
    assert len(CASES) >= 25
