"""What the connections of the fake engine share: slots, memory, counts, and the faults that they bring on."""

import json
import mmap
import os
import signal
import threading
import time

from engines.fake_llama.options import Options

START = time.monotonic()
#: Memory that grows by the second does so this often.
GROW_S = 0.05


class Slot:
    """One slot; what /slots shows of it is of the last task, as with llama-server."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.busy = False
        self.task = -1
        self.prompt = 0
        self.limit = 0
        self.decoded = 0
        # With --slot-save-path: what the slot has read, and how much of it the task found there.
        self.words: list[str] = []
        self.cached = 0

    def read(self, words: list[str]) -> None:
        pairs = zip(self.words, words, strict=False)
        self.cached = next((at for at, (old, new) in enumerate(pairs) if old != new), min(len(self.words), len(words)))
        self.words = words

    def begin(self, task: int, prompt: int, limit: int) -> None:
        self.task, self.prompt, self.limit, self.decoded = task, prompt, limit, 0


class Faults:
    """Which fault a generation brings on. The count and what has happened outlive the process in ``--fake-state``."""

    def __init__(self, options: Options) -> None:
        self._at = {
            "crash": options.crash_at,
            "hang": options.hang_at,
            "wedge": options.wedge_at,
            "wrong_json": options.wrong_json_at,
            "fail": options.fail_from,
        }
        self._path = options.state
        self._generations = 0
        self._seen: set[str] = set()
        if self._path and os.path.exists(self._path):
            with open(self._path) as file:
                document = json.load(file)
            self._generations, self._seen = document["generations"], set(document["seen"])
        #: Faults of former processes; with ``--fake-once`` they are over.
        self._over = frozenset(self._seen) if options.once else frozenset()

    def next(self, *, poisoned: bool) -> tuple[int, set[str]]:
        """The number of a new generation and its faults. Not for two threads at once."""
        self._generations += 1
        found = {name for name, at in self._at.items() if self._comes(name, at)}
        if poisoned:
            found.add("crash_word")
        found -= self._over
        self._seen |= found
        if self._path:
            # Before the fault itself: a crash leaves no time for it.
            with open(f"{self._path}.new", "w") as file:
                json.dump({"generations": self._generations, "seen": sorted(self._seen)}, file)
            os.replace(f"{self._path}.new", self._path)
        return self._generations, found

    def _comes(self, name: str, at: int) -> bool:
        # A crash is of one generation, everything else stays.
        return self._generations == at if name == "crash" else 0 < at <= self._generations


class Engine:
    """Counters, slots, ballast and the log."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.slots = [Slot(number) for number in range(options.slots)]
        self._free = threading.Semaphore(options.slots)
        self.lock = threading.Lock()
        self.faults = Faults(options)
        self.stats = {"requests": 0, "generations": 0, "generating": 0, "completed": 0, "cancelled": 0, "tokens": 0}
        self.hung = False
        self.wedged = False
        self.ballast: list[bytearray | mmap.mmap] = []
        self._weights: mmap.mmap | None = None
        if options.read_model:
            with open(options.model, "rb") as file:
                self._weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.log_fd = -1
        if options.log:
            self.log_fd = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def loaded(self) -> bool:
        return (time.monotonic() - START) * 1000 >= self.options.load_ms

    def count(self, name: str, change: int = 1) -> int:
        with self.lock:
            self.stats[name] += change
            return self.stats[name]

    def log(self, event: str, **more: object) -> None:
        if self.log_fd >= 0:
            line = json.dumps({"event": event, "time": time.time(), "pid": os.getpid(), **more})
            os.write(self.log_fd, line.encode() + b"\n")

    # -- slots ----------------------------------------------------------------------------------------------------

    def take_slot(self) -> Slot:
        """Waits for a free one, without end and without an order, as llama-server's queue has no limit either."""
        self._free.acquire()
        with self.lock:
            slot = next(slot for slot in self.slots if not slot.busy)
            slot.busy = True
            self.stats["generating"] += 1
            return slot

    def slot_action(self, slot: Slot, action: str, name: str) -> dict[str, object]:
        """Save, restore or erase. A file that is cut ends the process, as with llama-server (b11434)."""
        path = os.path.join(self.options.slot_path, name)
        told: dict[str, object] = {"id_slot": slot.number, "filename": name}
        self.log(action, name=name)
        if action == "erase":
            count, slot.words = len(slot.words), []
            return {"id_slot": slot.number, "n_erased": count}
        if action == "save":
            with open(path, "w") as file:
                json.dump(slot.words, file)
            return {**told, "n_saved": len(slot.words), "n_written": os.path.getsize(path)}
        slot.words = []
        if self.options.restore_crash:
            self.crash()
        with open(path) as file:
            try:
                words = json.load(file)
            except ValueError:
                self.crash()
        if len(words) > self.options.slot_context:
            raise ValueError("Unable to restore slot: No available space in KV cache or invalid slot save file")
        slot.words = [] if self.options.forget else words
        return {**told, "n_restored": len(words), "n_read": os.path.getsize(path)}

    def free_slot(self, slot: Slot) -> None:
        with self.lock:
            slot.busy = False
            self.stats["generating"] -= 1
        self._free.release()

    # -- faults ---------------------------------------------------------------------------------------------------

    def next_generation(self, prompt: str) -> tuple[int, set[str]]:
        """The number of a new generation, and its faults."""
        self.count("generations")
        word = self.options.crash_word
        with self.lock:
            number, faults = self.faults.next(poisoned=bool(word) and word in prompt.split())
        if faults:
            self.log("fault", number=number, faults=sorted(faults))
        return number, faults

    def crash(self) -> None:
        self.log("crash")
        os.kill(os.getpid(), self.options.crash_signal)
        time.sleep(10)

    def hang(self) -> None:
        """From now on no thread says anything any more."""
        self.hung = True
        self.stay_silent()

    def stay_silent(self) -> None:
        threading.Event().wait()

    def wedge(self) -> None:
        """This thread produces nothing any more; with ``--fake-wedge-spin`` at full speed."""
        self.wedged = True
        while self.options.wedge_spin:
            pass
        self.stay_silent()

    def read_weights(self) -> None:
        """What a token costs: a pass over the mapped weights."""
        if self._weights is not None:
            _ = self._weights[::4096]

    # -- memory ---------------------------------------------------------------------------------------------------

    def touch(self, size: int, *, shared: bool = False) -> None:
        """Make ``size`` more bytes resident, anonymous (RssAnon) or shared (RssShmem)."""
        block = mmap.mmap(-1, size) if shared else bytearray(size)
        for offset in range(0, size, 4096):
            block[offset] = 1
        with self.lock:
            self.ballast.append(block)

    def grow(self, mib_per_s: float, *, shared: bool, after: float) -> None:
        """Grow for ever, from ``after`` seconds after the model is loaded."""
        while not self.loaded():
            time.sleep(GROW_S)
        time.sleep(after)
        began, grown = time.monotonic(), 0
        while True:
            time.sleep(GROW_S)
            # In whole pages, by the clock: a late turn catches up.
            size = int((time.monotonic() - began) * mib_per_s * (1 << 20)) - grown & ~4095
            if size > 0:
                self.touch(size, shared=shared)
                grown += size


def start_growth(engine: Engine) -> None:
    """The threads for what the options say of memory that nobody asks for."""
    options = engine.options
    if options.anon_mib:
        threading.Thread(target=engine.touch, args=(options.anon_mib << 20,), daemon=True).start()
    for rate, shared in ((options.grow_mib_s, False), (options.shmem_grow_mib_s, True)):
        if rate > 0:
            arguments = {"shared": shared, "after": options.grow_after_s}
            threading.Thread(target=engine.grow, args=(rate,), kwargs=arguments, daemon=True).start()


def handle_term(options: Options) -> None:
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
