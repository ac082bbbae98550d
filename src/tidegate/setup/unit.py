"""The text of tidegate.service. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidegate.settings.attachment import SUPERVISOR
from tidegate.settings.load import parse_listen
from tidegate.settings.model import Settings
from tidegate.setup.quoting import unit_word, unit_words
from tidegate.worker.group import GUARD_LEAF

NAME = "tidegate.service"
#: What the unit keeps from reclaim: guard 16 MiB and gateway 45 MiB are their budgets.
OWN_MEMORY_MIN = 64 << 20
#: The first version with DelegateSubgroup= (systemd.resource-control(5)).
SUBGROUP_SINCE = 254
#: Half of what others have, as the worker's own cpu.weight: a prefill takes every core that it can get.
_WEIGHT = 50
#: PATH of a system service (systemd.exec(5)).
DEFAULT_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_TEMPORARY = ("/tmp/", "/var/tmp/")
_HOST_WIDE = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")


@dataclass(frozen=True)
class Service:
    """``program`` starts tidegate; ``arguments`` are its command and flags; ``environment`` is what the settings came
    from beside them. ``systemd`` is its version, 0 if that is not known."""

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    settings: Settings
    systemd: int

    @property
    def subgroup(self) -> bool:
        """Whether systemd puts the guard into a leaf of the delegated group by itself."""
        return self.systemd >= SUBGROUP_SINCE


def render(service: Service) -> str:
    """The unit file."""
    return "\n".join(
        [
            "# Written by tidegate setup, taken back by tidegate setup --undo.",
            "# For changes of your own: systemctl edit tidegate",
            *_unit(service),
            "",
            "[Service]",
            *_life(service),
            "",
            *_resources(service),
            "",
            *_sandbox(service),
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def _unit(service: Service) -> list[str]:
    settings = service.settings
    where = parse_listen(settings.gateway.listen)
    lines = ["[Unit]", "Description=tidegate, the memory guard of the local LLM"]
    if "up" in service.arguments[:1] and not isinstance(where, str) and where[0] not in _HOST_WIDE:
        lines += ["# It listens on an address that comes with the network.", "Wants=network-online.target"]
        lines += ["After=network-online.target"]
    else:
        lines.append("After=network.target")
    if settings.worker.unit.endswith(".service"):
        lines.append(f"After={settings.worker.unit}")
    mounts = sorted({os.path.dirname(path) for path in _paths(service) if path.startswith("/")})
    if mounts:
        lines.append(f"RequiresMountsFor={' '.join(unit_word(path) for path in mounts)}")
    return [*lines, "# A guard that stays down protects nobody.", "StartLimitIntervalSec=0"]


def _life(service: Service) -> list[str]:
    return [
        "Type=notify",
        *(f"Environment={unit_word(f'{name}={value}')}" for name, value in service.environment),
        # Which systemd says by itself since 254.
        *(() if service.subgroup else ("Environment=FDSTORE=2",)),
        f"ExecStart={unit_words((*service.program, *service.arguments))}",
        'ExecReload=/bin/sh -c "kill -HUP ${MAINPID}"',
        *_own_share(service),
        *_reap(service),
        "# Keeps the listening socket for the next guard, so that clients wait and are not refused.",
        "FileDescriptorStoreMax=2",
        "# A guard that was killed leaves its worker at work.",
        "KillMode=process",
        "Restart=always",
        "RestartSec=100ms",
        "# Wrong usage, and what would fail again.",
        "RestartPreventExitStatus=2 3",
        "# It pings every 15 s.",
        "WatchdogSec=30",
        "TimeoutStartSec=60",
        "# In order it takes 8 s: 5 for requests in flight, 1 for the gateway, 2 for the worker.",
        "TimeoutStopSec=20",
        "RuntimeDirectory=tidegate",
        "RuntimeDirectoryMode=0700",
        "RuntimeDirectoryPreserve=restart",
        "StateDirectory=tidegate",
    ]


def _own_share(service: Service) -> list[str]:
    """The worker is in the unit too, and would get the unit's memory.min by its size (memory_recursiveprot)."""
    if service.settings.worker.attached:
        return []
    path = f"/sys/fs/cgroup/system.slice/{NAME}/{GUARD_LEAF}/memory.min"
    script = f"[ ! -e {path} ] || echo {OWN_MEMORY_MIN} >{path}"
    return [
        "# MemoryMin= is for guard and gateway alone, once they have a group of their own.",
        f"ExecStartPost=-{unit_words(('/bin/sh', '-c', script))}",
    ]


def _reap(service: Service) -> list[str]:
    reap = ("reap", "--unit", NAME)
    why = "# Ends what is left of worker and gateway after a stop; after a crash the next guard takes them over."
    if not service.subgroup:
        # Without DelegateSubgroup= systemd starts the next guard in the unit's own group, which has to be a leaf again.
        words = unit_words((*service.program, *reap, "--release-controllers"))
        return [why, "# Then it makes the unit's cgroup one that a process can be put into.", f"ExecStopPost=-{words}"]
    # Only a shell after a crash, 20 ms where Python takes 300 and more: nobody guards meanwhile.
    script = (
        "case $SERVICE_RESULT in signal|core-dump|watchdog|oom-kill) "
        f'[ "$(systemctl show --property=Job --value {NAME})" ] || exit 0 ;; esac; exec "$0" "$@"'
    )
    return [why, f"ExecStopPost=-{unit_words(('/bin/sh', '-c', script, *service.program, *reap))}"]


def _resources(service: Service) -> list[str]:
    lines = ["# The worker gets a cgroup of its own in here.", "Delegate=yes"]
    if service.subgroup:
        lines.append(f"DelegateSubgroup={GUARD_LEAF}")
    lines += [
        "# The kernel's killing of the worker must not stop the guard.",
        "OOMPolicy=continue",
        "OOMScoreAdjust=-900",
        f"MemoryMin={OWN_MEMORY_MIN >> 20}M",
    ]
    if not service.settings.worker.attached:
        weight = service.settings.fence.cpu_weight
        lines += [f"CPUWeight={_WEIGHT if weight is None else weight}"]
        lines += [f"IOWeight={_WEIGHT if weight is None else weight}"]
    return [
        *lines,
        "TasksMax=1024",
        "# mlockall of the guard, --mlock of an engine.",
        "LimitMEMLOCK=infinity",
        "# Two descriptors a client that is held.",
        "LimitNOFILE=16384",
        "# A worker's core is as large as its memory.",
        "LimitCORE=0",
    ]


def _sandbox(service: Service) -> list[str]:
    worker = service.settings.worker
    # It may be any program, which has to work in here: a script, a container's client.
    free = bool(worker.restart) and worker.restart != (SUPERVISOR,) and _base(worker.restart[0]) != "systemctl"
    lines = [
        "# Not ProtectControlGroups, as limits are written; not PrivateDevices and ProtectClock, which close GPUs and",
        "# NPUs; not MemoryDenyWriteExecute, as engines compile kernels.",
        f"ProtectSystem={'full' if free else 'strict'}",
        "ProtectHome=read-only",
    ]
    writable = _socket_directories(service)
    if writable and not free:
        # "-": a directory that is not there is no reason to stay down, but for listen to say so.
        lines.append(f"ReadWritePaths={' '.join(unit_word(f'-{path}') for path in writable)}")
    # The model and socket of a server that somebody else starts may be in /tmp, and are not known yet.
    if not worker.attached and not any(path.startswith(_TEMPORARY) for path in _paths(service)):
        lines.append("PrivateTmp=yes")
    lines += [
        "ProtectKernelTunables=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelLogs=yes",
        "ProtectHostname=yes",
        "PrivateMounts=yes",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "RestrictNamespaces=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "LockPersonality=yes",
        "SystemCallArchitectures=native",
    ]
    if free:
        return [*lines, f"# No limits on capabilities and calls: {unit_word(worker.restart[0])} may need any."]
    return [
        *lines,
        "NoNewPrivileges=yes",
        "# pidfd_* are in @system-service, process_mrelease (Linux 5.15) is not.",
        "SystemCallFilter=@system-service process_mrelease",
        "# Without it a call that is not in the list ends the guard, in the middle of an emergency.",
        "SystemCallErrorNumber=EPERM",
        *_capabilities(service),
    ]


def _capabilities(service: Service) -> list[str]:
    """``CapabilityBoundingSet=``, one a line, each with what it is for."""
    found = [
        ("CAP_SYS_RESOURCE", "oom_score_adj below 0, and PSI windows of less than 2 s"),
        ("CAP_KILL", "ends workers of other users"),
        ("CAP_IPC_LOCK", "memory locked without a limit: --mlock of an engine"),
        ("CAP_DAC_OVERRIDE", "oom_score_adj, cgroups, models and sockets that belong to other users"),
    ]
    if service.settings.worker.attached:
        found.append(("CAP_SYS_PTRACE", "reads the environment and files of a server that has more rights than this"))
    where = parse_listen(service.settings.gateway.listen)
    if not isinstance(where, str) and 0 < where[1] < 1024:
        found.append(("CAP_NET_BIND_SERVICE", f"listens on port {where[1]}"))
    return [line for name, why in found for line in (f"# {why}", f"CapabilityBoundingSet={name}")]


def _paths(service: Service) -> tuple[str, ...]:
    """Files that have to be there."""
    settings, arguments = service.settings, service.arguments
    config = arguments[arguments.index("--config") + 1] if "--config" in arguments else ""
    command = settings.worker.command[:1]
    models = () if settings.worker.attached else tuple(profile.model for profile in settings.worker.profiles)
    sockets = [where for where in (settings.gateway.listen, settings.worker.url) if where.startswith("unix:")]
    found = (*models, config, *command, service.program[0], *(where.removeprefix("unix:") for where in sockets))
    return tuple(path for path in found if path.startswith("/"))


def _socket_directories(service: Service) -> tuple[str, ...]:
    """Where a socket is made that is not in the run directory."""
    where = parse_listen(service.settings.gateway.listen)
    return (os.path.dirname(where),) if isinstance(where, str) and not where.startswith("/run/tidegate/") else ()


def _base(program: str) -> str:
    return program.rpartition("/")[2]
