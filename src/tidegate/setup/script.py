"""Operations as one POSIX shell script that a person can read, and run in place of the command. Pure."""

from __future__ import annotations

import shlex

from tidegate.setup.operations import (
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

_HEAD = """#!/bin/sh
# {title}: what it would do, as a script. Run it as root, or the command itself.
set -eu
umask 022
root={root}

# The path has still the content (sha256:HASH), the target (link:TARGET) or nothing, as when this was written.
expect() {{
  if [ -L "$root$1" ]; then now=link:$(readlink "$root$1")
  elif [ -f "$root$1" ]; then now=$(sha256sum <"$root$1"); now=sha256:${{now%% *}}
  else now=; fi
  [ "$now" = "$2" ] || {{ echo "$1 was changed since this script was written" >&2; exit 1; }}
}}
# Standard input becomes the file, whole or not at all.
put() {{
  rm -f "$root$1{suffix}"
  cat >"$root$1{suffix}"
  chmod "$2" "$root$1{suffix}"
  sync
  mv -f "$root$1{suffix}" "$root$1"
}}
link() {{
  rm -f "$root$1{suffix}"
  ln -s "$2" "$root$1{suffix}"
  mv -f "$root$1{suffix}" "$root$1"
}}
# With mode, owner and time.
copy() {{
  rm -f "$root$2{suffix}"
  cp -p "$root$1" "$root$2{suffix}"
  sync
  mv -f "$root$2{suffix}" "$root$2"
}}
memory() {{
  group=$(systemctl show --property=ControlGroup --value -- "$1")
  for pair in MemoryMin=memory.min MemoryLow=memory.low; do
    value=$(systemctl show --property="${{pair%%=*}}" --value -- "$1")
    [ "$value" != infinity ] || value=max
    file=/sys/fs/cgroup$group/${{pair#*=}}
    [ -z "$group" ] || [ -z "$value" ] || [ ! -e "$file" ] || echo "$value" >"$file"
  done
}}
directory() {{
  [ -d "$root$1" ] || {{ mkdir "$root$1"; chmod "$2" "$root$1"; }}
}}
"""


def render(operations: tuple[Operation, ...], *, title: str, root: str = "/", notes: tuple[str, ...] = ()) -> str:
    """The script. ``title`` is the command that it stands for; ``notes`` become comments at its end."""
    lines = [_HEAD.format(title=title, root=shlex.quote(root.rstrip("/")), suffix=SUFFIX)]
    if root == "/":
        lines.append('[ "$(id -u)" = 0 ] || { echo "run this as root" >&2; exit 3; }')
    lines += [_line(operation) for operation in operations]
    if not operations:
        lines.append("# Nothing is to be done.")
    lines += [f"# {line}" for note in notes for line in note.splitlines()]
    return "\n".join([*lines, "sync", ""])


def _line(operation: Operation) -> str:
    match operation:
        case Expect(path, fingerprint):
            return f"expect {_q(path)} {_q(fingerprint)}"
        case MakeDirectory(path, mode):
            return f"directory {_q(path)} {mode:04o}"
        case Keep(path, file):
            return f"copy {_q(path)} {_q(kept(file))}"
        case WriteFile(path, text, mode):
            end = _end_of(text)
            return f"put {_q(path)} {mode:04o} <<'{end}'\n{text}{end}"
        case WriteLink(path, target):
            return f"link {_q(path)} {_q(target)}"
        case Restore(path, file):
            return f"copy {_q(kept(file))} {_q(path)}"
        case Remove(path):
            return f'rm -f "$root"{_q(path)}'
        case RemoveDirectory(path):
            return f'rmdir "$root"{_q(path)} 2>/dev/null || :'
        case RemoveSlots(path):
            there = f'"$root"{_q(path)}'
            return f"rm -f {there}/*.slot {there}/*.tmp; rmdir {there} 2>/dev/null || :"
        case SetSysctl(key, value):
            return f"echo {value} >{operation.path} || echo 'cannot set {key}' >&2"
        case ApplyMemory(unit):
            return f"memory {_q(unit)}"
        case Systemctl(words):
            return f"systemctl {shlex.join(words)}" + ("" if words[0] == "daemon-reload" else " || :")


def _end_of(text: str) -> str:
    """A word that no line of ``text`` is."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    return end


def _q(text: str) -> str:
    return shlex.quote(text)
