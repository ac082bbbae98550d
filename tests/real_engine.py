"""The real engines that tests run: xllamacpp from the environment, llama-server as scripts/llama-server built it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass

from running import ROOT
from tidegate import engines
from tidegate.settings.model import Profile, WorkerSettings

ENGINES = ("xllamacpp", "llama-server")


class NotBuiltError(Exception):
    """There is no llama-server; the message says what to do."""


@dataclass(frozen=True)
class RealEngine:
    """One of :data:`ENGINES`; ``command`` is the program of a llama-server."""

    name: str
    command: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """What makes tidegate use it."""
        command = {"TIDEGATE_WORKER_COMMAND": shlex.join(self.command)} if self.command else {}
        return {"TIDEGATE_WORKER_ENGINE": self.name, **command}

    def argv(self, profile: Profile, endpoint: str) -> list[str]:
        """The command line that tidegate would start it with, without a prompt cache."""
        settings = WorkerSettings(engine=self.name, command=self.command)
        return engines.create(settings, sys.executable, ()).argv(profile, prompt_cache=0, endpoint=endpoint)


def real_engine(name: str) -> RealEngine:
    """The engine of this name.

    Raises:
        NotBuiltError: it is llama-server, and not built.
    """
    if name == "xllamacpp":
        return RealEngine(name)
    script = [str(ROOT / "scripts" / "llama-server"), "--cached"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuiltError(done.stderr.strip())
    return RealEngine(name, (done.stdout.strip(),))
