"""A process that asks for more than its cgroup's memory.max; another cgroup looks on."""

from __future__ import annotations

from board.scenarios import scene

bystander = scene.Cgroup("bystander", memory_max="256M")
witness = bystander.start(*scene.hog(16))
small = scene.Cgroup("small", memory_max="64M", memory_swap_max="0")
code = small.start(*scene.hog(256)).wait(60)
scene.leave(
    "memory_max",
    {
        "code": code,
        "events": small.numbers("memory.events"),
        "peak": int(small.read("memory.peak")),
        "bystander": {"events": bystander.numbers("memory.events"), "alive": witness.poll() is None},
    },
)
witness.kill()
