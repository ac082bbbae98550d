"""The virtual board: a real Linux with systemd, cgroup v2, PSI, an OOM killer of its own, any amount of RAM, no swap.

``Board(...).run(scenario)`` boots it, runs the scenario on it as root under systemd, and brings back what that left in
/out. docs/board.md is the manual. ``scripts/board/build`` makes the parts; this module puts them together.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from tidegate.units import parse_size

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SCENARIOS = HERE / "scenarios"
#: Result.code when the scenario did not end by itself.
TIMED_OUT = 124
WENT_DOWN = 125
MIB = 1 << 20
Kernel = Literal["uml", "qemu"]


class NotBuiltError(Exception):
    """A part of the board cannot be made here; the text is one line for a reader."""


def built(part: str, said: TextIO) -> Path:
    """The directory of ``part``, made first if need be, which takes minutes; ``said`` gets the progress.

    Raises:
        NotBuiltError: with the last line that the recipe said.
    """
    building = subprocess.Popen(
        [str(ROOT / "scripts" / "board" / "build"), part],
        env={**_environment(), "PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert building.stdout is not None
    assert building.stderr is not None
    last = ""
    with building:
        try:
            for line in building.stderr:
                said.write(line)
                said.flush()
                last = line.strip() or last
        except BaseException:
            # An interrupt is for the compiler too, which is in a session of its own so that all of it can be reached.
            os.killpg(building.pid, signal.SIGTERM)
            raise
        directory = building.stdout.read().strip()
    if building.returncode != 0:
        raise NotBuiltError(last.removeprefix("board: ") or f"scripts/board/build ended with {building.returncode}")
    return Path(directory)


def wheel_of_checkout(directory: Path) -> Path:
    """A wheel of this checkout, as ``pip install tidegate`` would get it, below ``directory``."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(directory), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Result:
    """What a run left. ``code`` is the scenario's own, or `TIMED_OUT`, or `WENT_DOWN` (a kernel panic, say)."""

    code: int
    #: What the scenario left in /out.
    out: Path
    #: What it printed.
    console: str
    #: What the kernel printed.
    kernel_log: str
    took_s: float

    def checked(self) -> Result:
        """Itself, when the scenario ended well; fails with all that was said otherwise."""
        ends = {TIMED_OUT: "the time ran out", WENT_DOWN: "the board went down"}
        assert self.code == 0, (
            f"{ends.get(self.code, f'the scenario ended with {self.code}')} after {self.took_s:.0f} s\n"
            f"{self.console}\n-- kernel --\n{self.kernel_log[-4000:]}"
        )
        return self

    def json(self, name: str) -> Any:
        """What the scenario left as ``scene.leave(name, value)``."""
        return json.loads((self.out / f"{name}.json").read_text())


@dataclass(frozen=True)
class Board:
    """One kind of board. Each run is a fresh one: nothing stays on its disk."""

    #: Directory of the part "image".
    image: Path
    #: Directory of the part "uml", or of "base", which has the kernel for QEMU.
    kernel_directory: Path
    kernel: Kernel = "uml"
    #: Installed before the scenario starts.
    wheel: Path | None = None
    #: Where runs keep their files when they are not told.
    directory: Path | None = None

    def run(
        self,
        scenario: str | Path,
        *arguments: str,
        ram: str = "640M",
        timeout: float = 300.0,
        files: Mapping[str, str | Path] | None = None,
        kernel_arguments: Sequence[str] = (),
        cpus: int = 2,
    ) -> Result:
        """Boot a board with ``ram``, run ``scenario`` on it, and wait until it is off again.

        ``scenario`` is a Python or shell script (a bare name is one of ``scenarios/``), or a directory with ``run.py``
        or ``run.sh``. It gets ``arguments``, and in /payload/files ``files``, each a text or a path on this machine.
        ``timeout`` is for all of it, the boot too. ``cpus`` is for QEMU: User-Mode Linux has one.
        """
        path = SCENARIOS / scenario if isinstance(scenario, str) else scenario
        # A new one each time: what an earlier run left must not be taken for this one's.
        left = Path(tempfile.mkdtemp(prefix=f"{path.stem}-", dir=self.directory))
        # Not in the test's own directory, which is often in memory: the board's writes would take of this machine's.
        with tempfile.TemporaryDirectory(dir=self.image.parent, prefix="work-run-") as name:
            work = Path(name)
            self._make_payload(work, path, arguments, files or {})
            _sparse(work / "out", 256 * MIB)
            limited = ["timeout", "--kill-after=5", f"{timeout:.0f}"]
            command = [*limited, *self._command(work, ram, cpus, kernel_arguments)]
            began = time.monotonic()
            with (left / "kernel.txt").open("wb") as log, _started(command, log, _memory(work, ram)) as running:
                ended = running.wait()
            took = time.monotonic() - began
            subprocess.run(["tar", "-C", str(left), "-xf", str(work / "out")], check=False, capture_output=True)
        code_file, console_file = left / "code", left / "console.txt"
        code = int(code_file.read_text()) if code_file.exists() else WENT_DOWN
        return Result(
            # 137: it did not leave on TERM.
            code=TIMED_OUT if ended in (124, 137) else code,
            out=left,
            console=console_file.read_text(errors="replace") if console_file.exists() else "",
            kernel_log=(left / "kernel.txt").read_text(errors="replace"),
            took_s=took,
        )

    def _make_payload(
        self, work: Path, scenario: Path, arguments: Sequence[str], files: Mapping[str, str | Path]
    ) -> None:
        """The second disk: what runs on the board."""
        tree = work / "payload.d"
        for directory in ("files", "lib/board/scenarios", "wheel"):
            (tree / directory).mkdir(parents=True)
        if scenario.is_dir():
            shutil.copytree(scenario, tree / "scenario")
            (script,) = [name for name in ("run.py", "run.sh") if (scenario / name).exists()]
        else:
            (tree / "scenario").mkdir()
            shutil.copy(scenario, tree / "scenario")
            script = scenario.name
        # As it is imported here, so that mypy and an editor find it too.
        shutil.copy(SCENARIOS / "scene.py", tree / "lib" / "board" / "scenarios")
        shutil.copy(HERE / "start", tree)
        if self.wheel:
            shutil.copy(self.wheel, tree / "wheel")
        for name, content in files.items():
            if isinstance(content, Path):
                shutil.copy(content, tree / "files" / name)
            else:
                (tree / "files" / name).write_text(content)
        interpreter = "python3" if script.endswith(".py") else "sh"
        (tree / "run").write_text(f"exec {interpreter} {shlex.join([f'./{script}', *arguments])}\n")
        size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
        _sparse(work / "payload", size * 5 // 4 + 16 * MIB)
        command = ["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", str(tree), str(work / "payload")]
        subprocess.run(command, check=True, env=_environment())

    def _command(self, work: Path, ram: str, cpus: int, kernel_arguments: Sequence[str]) -> list[str]:
        disk = self.image / "root.ext4"
        quiet = ["systemd.show_status=0", "systemd.log_target=null", *kernel_arguments]
        if self.kernel == "uml":
            # A copy-on-write file in front of the shared disk: no copy of it is made.
            disks = [f"ubd0={work / 'cow'},{disk}", f"ubd1={work / 'payload'}", f"ubd2={work / 'out'}"]
            # On one of this machine's CPUs: a page fault goes from the board's process to its kernel and back, and from
            # core to core that made the load of a model take 2.6 to 3.8 s, in no order, instead of 1.0 to 1.2.
            pinned = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0)))]
            kernel = [*pinned, str(self.kernel_directory / "uml"), f"mem={ram}", "seccomp=on"]
            command = [*kernel, *disks, "root=/dev/ubda", "rw"]
            return [*command, "init=/sbin/init", "con=null", "con0=null,fd:1", "loglevel=4", *quiet]
        # Emulated even where there is KVM: inside a virtual machine the kernel did not get through its own unpacking.
        still = shlex.split("-accel tcg,thread=multi -cpu max -no-reboot -display none -monitor none -serial stdio")
        drives = [f"file={disk},snapshot=on", f"file={work / 'payload'}", f"file={work / 'out'}"]
        disks = [word for drive in drives for word in ("-drive", f"{drive},if=virtio,format=raw")]
        boot = ["-kernel", str(self.kernel_directory / "vmlinuz"), "-initrd", str(self.kernel_directory / "initrd.gz")]
        words = " ".join(["console=ttyS0", "quiet", "panic=-1", *quiet])
        machine = ["-net", "none", "-m", ram, "-smp", str(cpus)]
        return ["qemu-system-x86_64", *still, *machine, *disks, *boot, "-append", words]


@contextmanager
def _started(command: Sequence[str], log: BinaryIO, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The board as a process; it never outlives the block."""
    running = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**_environment(), **more}
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(10)


def _memory(work: Path, ram: str) -> dict[str, str]:
    """Where User-Mode Linux keeps the board's memory: by itself in /dev/shm, which many containers have 64 MB of."""
    shared = Path("/dev/shm")
    fits = shared.is_dir() and shutil.disk_usage(shared).free > parse_size(ram)
    return {} if fits else {"TMPDIR": str(work)}


def _environment() -> dict[str, str]:
    """This process's environment, with the directories where mke2fs and friends are for others than root."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)
