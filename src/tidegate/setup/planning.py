"""From what is wanted and what is there to a list of operations. Pure.

The manifest is written before anything that it tells of is done, and once more at the end, so that a run which was
killed at any point can be done again or undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tidegate.errors import TidegateError
from tidegate.setup import manifest as manifests
from tidegate.setup import tree
from tidegate.setup.manifest import Entry, Manifest, SysctlEntry
from tidegate.setup.operations import (
    SLOTS,
    STATE,
    SUFFIX,
    ApplyMemory,
    Expect,
    Keep,
    MakeDirectory,
    Operation,
    Remove,
    RemoveDirectory,
    RemoveSlots,
    Restore,
    SetSysctl,
    Systemctl,
    WriteFile,
    WriteLink,
    kept,
)
from tidegate.setup.tree import Found, Link, RegularFile
from tidegate.setup.unit import NAME
from tidegate.setup.unit_files import DROP_IN

UNIT = f"/etc/systemd/system/{NAME}"
#: What ``systemctl enable`` makes of WantedBy=multi-user.target.
ENABLED = f"/etc/systemd/system/multi-user.target.wants/{NAME}"


class Change(StrEnum):
    """What happens to a file."""

    CREATED = "created"
    REPLACED = "replaced"
    REMOVED = "removed"
    RESTORED = "restored"
    #: Somebody changed it since: it is left alone.
    KEPT = "kept"


@dataclass(frozen=True)
class Wanted:
    """A file with ``text``, or a link to ``target``."""

    path: str
    text: str = ""
    target: str = ""

    @property
    def print(self) -> str:
        """Its fingerprint."""
        return f"link:{self.target}" if self.target else f"sha256:{tree.sha256(self.text.encode())}"


@dataclass(frozen=True)
class Scene:
    """What is there. ``found``: at each path of interest; ``missing``: directories that are not there, by path;
    ``kept``: hashes of the copies in the state directory that are whole; ``sysctls``: the kernel's values, None where
    they are not to be touched; ``manifest``: None if setup has not been here. ``live``: systemd is to be told."""

    found: Mapping[str, Found]
    missing: Mapping[str, tuple[str, ...]]
    kept: frozenset[str]
    sysctls: Mapping[str, int] | None
    manifest: Manifest | None
    live: bool


@dataclass(frozen=True)
class Plan:
    """``changes`` are for a person; no operations: nothing is to be done."""

    operations: tuple[Operation, ...]
    changes: tuple[tuple[str, Change], ...]
    sysctls: tuple[SysctlEntry, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """The files that somebody changed since setup wrote them."""
        return tuple(path for path, change in self.changes if change is Change.KEPT)


def plan_setup(
    wanted: tuple[Wanted, ...], sysctls: tuple[tuple[str, int], ...], scene: Scene, *, start: bool = False
) -> Plan:
    """How ``wanted`` and ``sysctls`` come to be. ``start``: the service is started, or started anew.

    Raises:
        TidegateError: the unit is masked.
    """
    if scene.found.get(UNIT) == Link("/dev/null"):
        raise TidegateError(f"cannot set up: {NAME} is masked", hint=f"systemctl unmask {NAME}")
    old = scene.manifest or Manifest()
    draft = _Draft(scene, old)
    for item in wanted:
        draft.want(item)
    for entry in old.entries:
        if entry.path not in {item.path for item in wanted}:
            draft.give_up(entry)
    values, setting = _sysctls(sysctls, scene, old)
    directories = tuple(sorted({*_state_directories(scene, old), *draft.needed_directories()}))
    done = Manifest(_sorted(draft.final), directories, values, done=True)
    begun = replace(
        done,
        entries=_sorted(draft.begun),
        directories=tuple(sorted({*directories, *old.directories})),
        sysctls=_merged(values, old.sysctls),
        done=False,
    )
    work = [*draft.work, *setting]
    if scene.live and (draft.touched or not old.done):
        touched = draft.touched if old.done else frozenset(entry.path for entry in (*draft.final, *old.entries))
        work += [Systemctl(("daemon-reload",)), *_memory(touched)]
    if start:
        work.append(Systemctl(("restart" if UNIT in draft.touched else "start", NAME)))
    written = {each.key for each in setting}
    shown = tuple(entry for entry in (*values, *old.sysctls) if entry.key in written)
    if done == old:
        return Plan(tuple(work), tuple(draft.changes), shown)
    operations: list[Operation] = [
        *draft.expected,
        *(MakeDirectory(path) for path in scene.missing.get(manifests.PATH, ()) if path != STATE),
        MakeDirectory(STATE, 0o700),
        WriteFile(manifests.PATH, manifests.to_text(begun), 0o600),
        *draft.keep,
        *work,
        *_remove_copies(old, {kept(entry.before) for entry in draft.final if isinstance(entry.before, RegularFile)}),
        *(RemoveDirectory(path) for path in _deepest_first(old.directories) if path not in directories),
        WriteFile(manifests.PATH, manifests.to_text(done), 0o600),
    ]
    return Plan(tuple(operations), tuple(draft.changes), shown)


class _Draft:
    """A plan in the making: ``begun`` and ``final`` are the entries of the manifest before and after the work."""

    def __init__(self, scene: Scene, old: Manifest) -> None:
        self._scene = scene
        self._old = old
        self._made: list[str] = []
        self.expected: list[Operation] = []
        self.keep: list[Operation] = []
        self.work: list[Operation] = []
        self.begun: list[Entry] = []
        self.final: list[Entry] = []
        self.changes: list[tuple[str, Change]] = []

    @property
    def touched(self) -> frozenset[str]:
        """The paths that are written or removed."""
        return frozenset(path for path, change in self.changes if change is not Change.KEPT)

    def want(self, item: Wanted) -> None:
        """Bring ``item`` about."""
        now, entry = self._scene.found.get(item.path), self._old.entry(item.path)
        if entry is not None and now is not None and now.print not in (*entry.ours, *_prints(entry.before)):
            self._leave(entry)
            return
        origin = now if entry is None else entry.before
        self.final.append(Entry(item.path, (item.print,), origin))
        if tree.print_of(now) == item.print:
            self.begun.append(self.final[-1])
            return
        self.begun.append(Entry(item.path, (*(entry.ours if entry else ()), item.print), origin))
        self.expected.append(Expect(item.path, tree.print_of(now)))
        if isinstance(origin, RegularFile) and now is not None and now.print == origin.print:
            self.keep.append(Keep(item.path, origin))
        missing = [path for path in self._scene.missing.get(item.path, ()) if path not in self._made]
        self._made += missing
        self.work += [MakeDirectory(path) for path in missing]
        self.work.append(WriteLink(item.path, item.target) if item.target else WriteFile(item.path, item.text))
        self.changes.append((item.path, Change.CREATED if now is None else Change.REPLACED))

    def give_up(self, entry: Entry) -> None:
        """Put back what was there before ``entry``, which is wanted no more."""
        operations, change = _put_back(entry, self._scene)
        if change is Change.KEPT:
            self._leave(entry)
            return
        self.begun.append(entry)
        if change is not None:
            self.changes.append((entry.path, change))
            self.expected.append(Expect(entry.path, tree.print_of(self._scene.found.get(entry.path))))
        self.work += operations

    def needed_directories(self) -> tuple[str, ...]:
        """Directories of ours, from now or before, that something is in."""
        paths = [manifests.PATH, *(entry.path for entry in self.final)]
        ours = {*self._made, *self._old.directories}
        return tuple(each for each in ours if any(path.startswith(f"{each}/") for path in paths))

    def _leave(self, entry: Entry) -> None:
        self.begun.append(entry)
        self.final.append(entry)
        self.changes.append((entry.path, Change.KEPT))


def plan_undo(scene: Scene) -> Plan:
    """How everything comes to be as it was. Files that somebody changed since are left alone, and stay in the manifest.

    Raises:
        TidegateError: setup has not been here.
    """
    old = scene.manifest
    if old is None:
        raise TidegateError("cannot undo: tidegate setup has not been run here, or was undone")
    expected: list[Operation] = []
    work: list[Operation] = []
    changes: list[tuple[str, Change]] = []
    stay: list[Entry] = []
    for entry in old.entries:
        operations, change = _put_back(entry, scene)
        # A run that was killed may have left it.
        work.append(Remove(entry.path + SUFFIX))
        if change is None:
            continue
        changes.append((entry.path, change))
        if change is Change.KEPT:
            stay.append(entry)
            continue
        expected.append(Expect(entry.path, tree.print_of(scene.found.get(entry.path))))
        work += operations
    work += [RemoveDirectory(path) for path in _deepest_first(old.directories) if not _holds_state(path)]
    values, setting = _sysctls((), scene, old)
    assert values == ()
    written = {each.key for each in setting}
    shown = tuple(SysctlEntry(each.key, each.after, each.before) for each in old.sysctls if each.key in written)
    operations_all = [*expected, *_around(changes, [*work, *setting], live=scene.live), *_forget(old, stay)]
    return Plan(tuple(operations_all), tuple(changes), shown)


def _around(changes: list[tuple[str, Change]], work: list[Operation], *, live: bool) -> list[Operation]:
    """``work`` with what systemd has to be told before and after."""
    if not live:
        return work
    paths = frozenset(path for path, change in changes if change is not Change.KEPT)
    reload: list[Operation] = [Systemctl(("daemon-reload",)), *_memory(paths)]
    if (UNIT, Change.REMOVED) in changes:
        return [Systemctl(("stop", NAME)), *work, *reload]
    if (UNIT, Change.RESTORED) in changes:
        return [*work, *reload, Systemctl(("try-restart", NAME))]
    return [*work, *reload]


def _memory(paths: frozenset[str]) -> list[Operation]:
    """For the units whose drop-ins are among ``paths``."""
    directories = sorted(path.rpartition("/")[0] for path in paths if path.endswith(f"/{DROP_IN}"))
    return [ApplyMemory(directory.rpartition("/")[2].removesuffix(".d")) for directory in directories]


def _forget(old: Manifest, stay: list[Entry]) -> list[Operation]:
    """Remove the state directory, but for what ``stay`` needs."""
    needed = {kept(entry.before) for entry in stay if isinstance(entry.before, RegularFile)}
    copies = [*_remove_copies(old, needed), RemoveSlots(SLOTS)]
    if stay:
        rest = Manifest(_sorted(stay), old.directories, (), done=True)
        return [*copies, WriteFile(manifests.PATH, manifests.to_text(rest), 0o600)]
    directories = [path for path in _deepest_first((*old.directories, STATE)) if _holds_state(path)]
    return [
        *copies,
        Remove(manifests.PATH + SUFFIX),
        Remove(manifests.PATH),
        *(RemoveDirectory(path) for path in directories),
    ]


def _put_back(entry: Entry, scene: Scene) -> tuple[list[Operation], Change | None]:
    """How what was there before ``entry`` comes back; None: it is there."""
    now = scene.found.get(entry.path)
    if tree.print_of(now) == tree.print_of(entry.before):
        return [], None
    if now is not None and tree.print_of(now) not in entry.ours:
        return [], Change.KEPT
    match entry.before:
        case None:
            return [Remove(entry.path)], Change.REMOVED
        case Link(target):
            return [WriteLink(entry.path, target)], Change.RESTORED
        case RegularFile() as file if file.sha256 in scene.kept:
            return [Restore(entry.path, file)], Change.RESTORED
        case _:
            # Its copy is damaged or gone: what is there is more than nothing.
            return [], Change.KEPT


def _prints(found: Found) -> tuple[str, ...]:
    return () if found is None else (found.print,)


def _sorted(entries: list[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _sysctls(
    wanted: tuple[tuple[str, int], ...], scene: Scene, old: Manifest
) -> tuple[tuple[SysctlEntry, ...], list[SetSysctl]]:
    """What the manifest is to say, and what is to be set. What is wanted no more gets its old value, unless somebody
    gave it another since."""
    if scene.sysctls is None:
        return (), []
    entries, setting = [], []
    for key, value in wanted:
        now, origin = scene.sysctls[key], old.original(key)
        entries.append(SysctlEntry(key, now if origin is None else origin, value))
        if now != value:
            setting.append(SetSysctl(key, value))
    undone = [
        SetSysctl(entry.key, entry.before)
        for entry in reversed(old.sysctls)
        if entry.key not in dict(wanted) and scene.sysctls.get(entry.key) == entry.after != entry.before
    ]
    return tuple(entries), [*undone, *setting]


def _merged(new: tuple[SysctlEntry, ...], old: tuple[SysctlEntry, ...]) -> tuple[SysctlEntry, ...]:
    keys = {entry.key for entry in new}
    return (*new, *(entry for entry in old if entry.key not in keys))


def _state_directories(scene: Scene, old: Manifest) -> tuple[str, ...]:
    return tuple(path for path in scene.missing.get(manifests.PATH, ()) if path not in old.directories)


def _remove_copies(manifest: Manifest, needed: set[str]) -> list[Operation]:
    copies = {kept(entry.before) for entry in manifest.entries if isinstance(entry.before, RegularFile)}
    return [Remove(path) for path in sorted(copies - needed)]


def _holds_state(directory: str) -> bool:
    return f"{STATE}/".startswith(f"{directory}/")


def _deepest_first(directories: tuple[str, ...]) -> list[str]:
    return sorted(directories, key=lambda path: (-path.count("/"), path))


def interesting_paths(wanted: tuple[Wanted, ...], manifest: Manifest | None) -> tuple[str, ...]:
    """Where a :class:`Scene` has to look."""
    paths = [item.path for item in wanted] + [entry.path for entry in (manifest or Manifest()).entries]
    return tuple(dict.fromkeys([*paths, UNIT]))
