"""tidegate.service for different settings."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidegate.settings.load import Overrides, load_settings
from tidegate.settings.model import Settings
from tidegate.setup.quoting import unit_word, unit_words
from tidegate.setup.unit import Service, render

MODEL = {"name": "full", "model": "/models/a.gguf"}
ATTACHED = {"unit": "llama.service", "url": "http://127.0.0.1:8081"}


def settings(**sections: Any) -> Settings:
    document = {"worker": {"profile": [MODEL]}, **sections}
    return load_settings(document, Overrides({}), {})


def unit(*, systemd: int = 257, arguments: tuple[str, ...] = ("up",), **sections: Any) -> str:
    return render(Service(("/opt/tidegate/bin/tidegate",), arguments, (), settings(**sections), systemd))


def values(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def test_a_stop_and_a_crash_are_told_apart() -> None:
    text = unit()
    for line in ("Type=notify", "KillMode=process", "Restart=always", "RestartPreventExitStatus=2 3"):
        assert line in text.splitlines()
    assert values(text, "StartLimitIntervalSec") == ["0"]
    assert values(text, "RuntimeDirectoryPreserve") == ["restart"]
    (reap,) = values(text, "ExecStopPost")
    assert reap.startswith('-/bin/sh -c "case $$SERVICE_RESULT in signal|core-dump|watchdog|oom-kill) ')
    assert reap.endswith('" /opt/tidegate/bin/tidegate reap --unit tidegate.service')


def test_a_pitfall_for_the_guard_is_no_part_of_it() -> None:
    keys = {line.partition("=")[0] for line in unit().splitlines() if not line.startswith("#")}
    assert keys & {"ProtectControlGroups", "PrivateDevices", "ProtectClock", "MemoryDenyWriteExecute", "User"} == set()
    calls = values(unit(), "SystemCallFilter")
    assert calls == ["@system-service process_mrelease"]
    assert values(unit(), "SystemCallErrorNumber") == ["EPERM"]
    assert values(unit(), "OOMPolicy") == ["continue"]


@pytest.mark.parametrize(("systemd", "subgroup"), [(0, False), (252, False), (253, False), (254, True), (257, True)])
def test_older_systemd_puts_the_guard_into_the_units_own_group(systemd: int, subgroup: bool) -> None:
    text = unit(systemd=systemd)
    assert values(text, "Delegate") == ["yes"]
    assert values(text, "DelegateSubgroup") == (["guard"] if subgroup else [])
    assert text.count("reap --unit tidegate.service --release-controllers") == (0 if subgroup else 1)


@pytest.mark.parametrize(
    ("result", "job", "asked"),
    [
        ("signal", "", False),
        ("signal", "12", True),
        ("watchdog", "", False),
        ("success", "", True),
        ("timeout", "", True),
        ("exit-code", "", True),
    ],
)
def test_after_a_crash_a_shell_is_enough(tmp_path: Path, result: str, job: str, asked: bool) -> None:
    for name, line in {"systemctl": f"echo {job}", "tidegate": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    service = Service((str(tmp_path / "tidegate"),), ("up",), (), settings(), 257)
    (line,) = values(render(service), "ExecStopPost")
    # What systemd makes of it (systemd.service(5), "Command lines").
    words = shlex.split(line.removeprefix("-").replace("$$", "$"))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SERVICE_RESULT": result}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("reap --unit tidegate.service\n" if asked else "")


def test_every_capability_says_what_it_is_for() -> None:
    lines = unit(worker=ATTACHED, gateway={"listen": "127.0.0.1:80"}).splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith("CapabilityBoundingSet=")]
    assert [lines[place].partition("=")[2] for place in places] == [
        "CAP_SYS_RESOURCE", "CAP_KILL", "CAP_IPC_LOCK", "CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE", "CAP_NET_BIND_SERVICE",
    ]  # fmt: skip
    assert all(lines[place - 1].startswith("# ") for place in places)
    assert values(unit(), "CapabilityBoundingSet") == values("\n".join(lines), "CapabilityBoundingSet")[:4]


def test_a_worker_of_ours_weighs_less_than_the_boards_jobs() -> None:
    assert values(unit(), "CPUWeight") == values(unit(), "IOWeight") == ["50"]
    assert values(unit(fence={"cpu_weight": 20}), "CPUWeight") == ["20"]
    # Attached there is only the guard in it.
    assert values(unit(worker=ATTACHED), "CPUWeight") == []


def test_the_worker_gets_nothing_of_the_guards_memory() -> None:
    (post,) = values(unit(), "ExecStartPost")
    assert post.endswith('echo 67108864 >/sys/fs/cgroup/system.slice/tidegate.service/guard/memory.min"')
    assert values(unit(), "MemoryMin") == ["64M"]
    assert values(unit(worker=ATTACHED), "ExecStartPost") == []


def test_what_has_to_be_mounted() -> None:
    text = unit(
        arguments=("up", "--config", "/mnt/card/tidegate.toml"),
        worker={"profile": [{"name": "a", "model": "/mnt/my models/a.gguf"}]},
    )
    assert values(text, "RequiresMountsFor") == ['/mnt/card "/mnt/my models" /opt/tidegate/bin']


@pytest.mark.parametrize(
    ("listen", "online"),
    [
        ("127.0.0.1:8080", False),
        ("0.0.0.0:8080", False),
        ("[::1]:1", False),
        ("unix:/run/x", False),
        ("10.0.0.2:80", True),
    ],
)
def test_an_address_of_the_network_is_waited_for(listen: str, online: bool) -> None:
    text = unit(gateway={"listen": listen})
    assert values(text, "Wants") == (["network-online.target"] if online else [])
    # The patrol does not listen.
    assert values(unit(arguments=("guard",), gateway={"listen": listen}), "Wants") == []


@pytest.mark.parametrize(
    ("sections", "private"),
    [
        ({}, ["yes"]),
        ({"worker": {"profile": [{"name": "a", "model": "/tmp/a.gguf"}]}}, []),
        ({"gateway": {"listen": "unix:/tmp/x.sock"}}, []),
        ({"worker": ATTACHED}, []),
    ],
)
def test_tmp_is_private_unless_something_is_there(sections: dict[str, Any], private: list[str]) -> None:
    assert values(unit(**sections), "PrivateTmp") == private


def test_a_socket_can_be_made_where_it_is_to_be() -> None:
    assert values(unit(), "ReadWritePaths") == []
    assert values(unit(gateway={"listen": "unix:/run/tidegate/x.sock"}), "ReadWritePaths") == []
    assert values(unit(gateway={"listen": "unix:/srv/a b/x.sock"}), "ReadWritePaths") == ['"-/srv/a b"']


@pytest.mark.parametrize(
    ("restart", "free"),
    [(["systemctl", "restart", "llama"], False), (["supervisor"], False), (["docker", "restart", "llama"], True)],
)
def test_a_restart_command_may_need_anything(restart: list[str], free: bool) -> None:
    text = unit(worker={**ATTACHED, "restart": restart})
    assert values(text, "ProtectSystem") == ["full" if free else "strict"]
    assert bool(values(text, "SystemCallFilter")) is not free
    assert bool(values(text, "CapabilityBoundingSet")) is not free


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("/opt/tidegate", "/opt/tidegate"),
        ("a b", '"a b"'),
        ('say "$HOME" 5%', r'"say \"$$HOME\" 5%%"'),
        ("back\\slash", r'"back\\slash"'),
        ("two\nlines", r'"two\x0alines"'),
        ("\udcff", r'"\xff"'),
        ("", '""'),
        ("5%", '"5%%"'),
        ("模型", '"模型"'),
    ],
)
def test_words_of_a_command(word: str, shown: str) -> None:
    assert unit_word(word, command=True) == shown
    assert unit_words((word, "x")) == f"{shown} x"


def test_only_commands_have_variables() -> None:
    assert unit_word("a=$b") == '"a=$b"'


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
@pytest.mark.parametrize("sections", [{}, {"worker": ATTACHED}, {"gateway": {"listen": "unix:/srv/a b/$x%.sock"}}])
def test_systemd_finds_no_fault(tmp_path: Path, sections: dict[str, Any]) -> None:
    # Of a version below that of the newest keys, so without those; /bin/true is what is surely there.
    service = Service(("/bin/true",), ("up", "--model", "/a $b %c.gguf"), (("A", "b c"),), settings(**sections), 0)
    path = tmp_path / "tidegate.service"
    path.write_text(render(service))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=50, check=False
    )
    assert "tidegate.service" not in done.stderr.replace("llama.service", ""), done.stderr
