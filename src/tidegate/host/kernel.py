"""How the kernel was built and booted, and on what: release, configuration, command line, board model, container."""

from __future__ import annotations

import os
import re
import zlib

from tidegate.host.files import read_file, rooted

_RELEASE = re.compile(rb"Linux version (\S{1,200})")
# A distribution's configuration is 300 kB of text and 70 kB compressed; a hostile one may claim any size.
_MOST_CONFIG = 4 << 20


def parse_command_line(data: bytes) -> tuple[str, ...]:
    """The words of /proc/cmdline; white space within double quotes does not separate them."""
    words: list[str] = []
    word, quoted, inside = "", False, False
    for char in data.decode("utf-8", "replace"):
        if char == '"':
            quoted = not quoted
        elif char in " \t\n\0" and not quoted:
            if inside:
                words.append(word)
            word, inside = "", False
            continue
        word, inside = word + char, True
    return (*words, word) if inside else tuple(words)


def read_command_line(root: str = "/") -> tuple[str, ...]:
    """The words the kernel was started with, those of the firmware first; () where it cannot be read. Never raises."""
    return parse_command_line(read_file(rooted(root, "/proc/cmdline"), 65536) or b"")


def read_release(root: str = "/") -> str:
    """The kernel's release ("6.6.51+rpt-rpi-2712"), or ""."""
    found = _RELEASE.search(read_file(rooted(root, "/proc/version"), 4096) or b"")
    return found[1].decode("ascii", "replace") if found else ""


def version_of(release: str) -> tuple[int, int] | None:
    """(major, minor) of a release, or None if it does not begin with them."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release)
    return (int(found[1]), int(found[2])) if found else None


def read_config(root: str = "/") -> dict[str, str] | None:
    """Kernel options ("CONFIG_PSI" -> "y", "n" where it says that it is not set), from /proc/config.gz or the file in
    /boot; None where neither can be read."""
    packed = read_file(rooted(root, "/proc/config.gz"), 1 << 20)
    data: bytes | None = None
    if packed is not None:
        try:
            data = zlib.decompressobj(wbits=31).decompress(packed, _MOST_CONFIG)
        except zlib.error:
            data = None
    release = read_release(root)
    if data is None and release and "/" not in release:
        data = read_file(rooted(root, f"/boot/config-{release}"), _MOST_CONFIG)
    if data is None:
        return None
    found: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith("CONFIG_"):
            name, _, value = line.partition("=")
            found[name] = value
        elif line.startswith("# CONFIG_") and line.endswith(" is not set"):
            found[line[2:-11]] = "n"
    return found


def read_model(root: str = "/") -> str:
    """What the board calls itself ("Raspberry Pi 5 Model B Rev 1.0"), from the device tree or DMI, or ""."""
    for path in ("/sys/firmware/devicetree/base/model", "/proc/device-tree/model", "/sys/class/dmi/id/product_name"):
        data = read_file(rooted(root, path), 256)
        if data is not None:
            text = data.strip(b"\0\n ").decode("utf-8", "replace")
            return "".join(char for char in text if char.isprintable())
    return ""


def is_container(root: str = "/") -> bool:
    """Whether ``root`` is a container's: its command line and its sysctls are the host's."""
    if any(
        os.path.exists(rooted(root, path)) for path in ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
    ):
        return True
    mounts = read_file(rooted(root, "/proc/mounts"), 1 << 20) or b""
    return any(_is_of_a_container(line) for line in mounts.split(b"\n"))


def _is_of_a_container(mount: bytes) -> bool:
    """lxcfs over files of /proc, or a root of image layers. A host has lxcfs too, at /var/lib/lxcfs, and a board with
    a read-only system may have an overlay for a root."""
    fields = mount.split(b" ")
    if len(fields) < 4:
        return False
    point, kind, options = fields[1:4]
    if kind == b"fuse.lxcfs":
        return point.startswith(b"/proc/")
    return (
        kind == b"overlay"
        and point == b"/"
        and re.search(rb"docker|containers/storage|containerd", options) is not None
    )


def has_path(path: str, root: str = "/") -> bool:
    """Whether there is such a path below ``root``."""
    return os.path.exists(rooted(root, path))
