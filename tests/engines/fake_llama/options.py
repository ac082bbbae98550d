"""The command line of the fake engine: llama-server's flags that matter to it, and its own."""

import sys

MODEL = "fake-model"
_LLAMA = {
    "--host": "host", "--port": "port", "-m": "model", "--model": "model", "-c": "context", "--ctx-size": "context",
    "-np": "slots", "--parallel": "slots", "--slot-save-path": "slot_path",
    "--embedding": "embedding",
}  # fmt: skip


class Options:
    """What was asked for; llama-server's other flags are ignored."""

    def __init__(self, argv: list[str]) -> None:
        self.host = "127.0.0.1"
        self.port = 8080
        self.model = MODEL
        self.context = 4096
        self.slots = 0
        self.slot_path = ""
        self.embedding = False
        # Ours: --fake-NAME for each, named here as in fake_engine.py's docstring.
        self.load_ms = 0.0
        self.token_ms = 0.0
        self.prefill_ms = 0.0
        self.first_token = 0
        self.head_first = False
        self.ignore_term = False
        self.leader_ends = False
        self.flood = False
        self.crash_at = 0
        self.crash_tokens = -1
        self.crash_word = ""
        self.crash_signal = 9
        self.hang_at = 0
        self.wedge_at = 0
        self.wedge_spin = False
        self.wedge_deaf = False
        self.wrong_json_at = 0
        self.fail_from = 0
        self.state = ""
        self.once = False
        self.fail = ""
        self.fail_code = 1
        self.anon_mib = 0
        self.leak_kib = 0
        self.read_model = False
        self.grow_mib_s = 0.0
        self.grow_after_s = 0.0
        self.shmem_leak_kib = 0
        self.shmem_grow_mib_s = 0.0
        self.api_key = ""
        self.no_slots = False
        self.restore_crash = False
        self.forget = False
        self.log = ""
        self._parse(argv)
        if self.once and not self.state:
            sys.exit("cannot start: --fake-once needs --fake-state")
        # As llama-server: an explicit -np splits -c between its slots; unset is four slots sharing all of it.
        self.slot_context = self.context // self.slots if self.slots > 0 else self.context
        self.slots = self.slots if self.slots > 0 else 4

    def _parse(self, argv: list[str]) -> None:
        own = {f"--fake-{name.replace('_', '-')}": name for name in vars(self) if name not in _LLAMA.values()}
        index = 0
        while index < len(argv):
            flag, _, value = argv[index].partition("=")
            name = _LLAMA.get(flag) or own.get(flag)
            index += 1
            if name is None:
                if flag.startswith("--fake-"):
                    sys.exit(f"cannot start: unknown option {flag}")
                continue
            before = getattr(self, name)
            if isinstance(before, bool):
                setattr(self, name, True)
                continue
            if not value:
                if index >= len(argv):
                    sys.exit(f"cannot start: {flag} needs a value")
                value = argv[index]
                index += 1
            setattr(self, name, type(before)(value))
