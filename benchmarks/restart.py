"""From a killed worker to the next token, beside a bare restart of the same engine in the same run.

    scripts/bench restart [--rounds 5] [--engine llama-server] [--model GGUF] [--cold]

Eight requests wait at the gateway when the worker is killed; the peer is the engine alone: started, polled until
healthy, asked. Both use the same model, context and flags; with ``--cold`` the file is dropped from the page cache
before each start.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from e2e.conftest import Door
from e2e.test_worker_killed import CONFIG, bare_restart, drop_cache, kill_under_load
from real_engine import ENGINES, real_engine
from tidegate.cli.demo_model import demo_model_path


def main() -> int:
    """Measure in turn, print each round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0])
    parser.add_argument("--model", default=demo_model_path(os.environ))
    parser.add_argument("--cold", action="store_true")
    arguments = parser.parse_args()
    engine = real_engine(arguments.engine)
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        directory = Path(name)
        # The guarded worker maps its file, which then cannot be dropped: the bare engine has a copy of its own.
        copy = directory / "copy.gguf"
        if arguments.cold:
            copy.write_bytes(Path(arguments.model).read_bytes())
        bare_model = str(copy) if arguments.cold else arguments.model
        config = CONFIG.format(model=arguments.model)
        door = Door(directory, config, "--listen", "127.0.0.1:0", kind="up", env=engine.environment)
        guarded, bare = [], []
        try:
            for number in range(1, arguments.rounds + 1):
                door.wait_ready()
                seconds, answers = kill_under_load(
                    door, after_kill=lambda: drop_cache(arguments.model) if arguments.cold else None
                )
                assert len(answers) == 8
                guarded.append(seconds)
                bare.append(bare_restart(engine, bare_model, directory, cold=arguments.cold))
                print(
                    f"round {number}: kill to next token {guarded[-1]:.2f} s, bare restart {bare[-1]:.2f} s", flush=True
                )
        finally:
            door.stop()
    first, second = statistics.median(guarded), statistics.median(bare)
    what = f"{engine.name}, {os.path.basename(arguments.model)}, {'cold' if arguments.cold else 'warm'}"
    print(f"{what}: median {first:.2f} s against {second:.2f} s, ratio {first / second:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
