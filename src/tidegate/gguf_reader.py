"""The bounded parser behind :mod:`tidegate.gguf`: header, wanted metadata values, tensor sizes.

A model file comes from the Internet and is read by a process that must not grow: nothing is mapped, every length is
checked against the file's size and against a constant, arrays are walked and not kept. Format: docs/gguf.md of ggml.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    Value = int | str | tuple[int, ...]

# Real files: at most 60 keys, 2,000 tensors, 777,050 strings (Gemma 4: 262,144 tokens and 514,906 merges) and 16 MB.
_MOST_KEYS = 2048
_MOST_TENSORS = 8192
_MOST_STRINGS = 780_000
_MOST_HEADER = 64 << 20
_MOST_NAME = 1024  # bytes of a key or tensor name; ggml has 64 for tensors
_MOST_TEXT = 1024  # bytes of a string value that is kept
_MOST_ENTRIES = 1024  # of a per-layer array; llama.cpp has 512 layers (LLAMA_MAX_LAYERS)
_WINDOW = 256 << 10

_STRING, _ARRAY = 8, 9
# Value types 0-12: u8 i8 u16 i16 u32 i32 f32 bool string array u64 i64 f64, as struct codes.
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_SIZES = {kind: struct.calcsize("<" + code) for kind, code in _CODES.items()}
_FLOATS = (6, 12)
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")

# enum ggml_type (ggml.h) -> name, elements a block, bytes a block (ggml-common.h).
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}


class GgufError(Exception):
    """Why a file cannot be read; :mod:`tidegate.gguf` adds which."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: ``rows`` is its second dimension (1 if it has none), ``size`` bytes; unknown types have size 0."""

    name: str
    type_name: str
    dimensions: int
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """What was asked for: wanted values by full key, the lengths of all arrays, the tensors, the file's size."""

    values: dict[str, Value]
    lengths: dict[str, int]
    tensors: list[Tensor]
    file_size: int


def read_header(path: str, wanted: Container[str]) -> Header:
    """The header of the GGUF file ``path``. ``wanted``: keys to keep, the part after the first dot.

    Kept are integers, booleans, strings of up to 1 KiB and integer arrays of up to 1,024 entries.

    Raises:
        GgufError: not a regular file, not GGUF v2 or v3 (little endian), damaged, truncated or beyond a bound.
        OSError: it cannot be opened or read.
    """
    if "\0" in path:
        raise GgufError("its name has a NUL byte")
    # O_NONBLOCK: opening a FIFO without a writer must not wait.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise GgufError("it is a directory")
        if not stat.S_ISREG(status.st_mode):
            raise GgufError("it is not a regular file")
        return _Parser(fd, status.st_size).parse(wanted)
    finally:
        os.close(fd)


class _Parser:
    """A position in the file, and a window of it in memory."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._end = min(size, _MOST_HEADER)
        self._window = b""
        self._start = 0  # of the window in the file
        self._at = 0  # position in the file
        self._strings = 0

    def parse(self, wanted: Container[str]) -> Header:
        tensor_count, key_count = self._preamble()
        values: dict[str, Value] = {}
        lengths: dict[str, int] = {}
        for _ in range(key_count):
            key = self._name("key")
            if key in lengths or key in values:
                raise GgufError(f"key {key!r} is there twice")
            kind = self._u32()
            keep = key.partition(".")[2] in wanted
            if kind == _ARRAY:
                lengths[key], entries = self._array(keep)
                if entries is not None:
                    values[key] = entries
            else:
                value = self._scalar(kind)
                if keep and value is not None:
                    values[key] = value
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise GgufError("general.alignment is not a power of two")
        return Header(values, lengths, self._tensors(tensor_count, alignment), self._size)

    def _preamble(self) -> tuple[int, int]:
        if self._size == 0:
            raise GgufError("it is empty")
        magic = self._take(4)
        if magic != b"GGUF":
            raise GgufError("it is no GGUF file")
        version = self._u32()
        if version == 1:
            raise GgufError("it is GGUF version 1, convert it again")
        if version & 0xFFFF == 0 and version:
            raise GgufError("it is a big-endian GGUF file")
        if version not in (2, 3):
            raise GgufError(f"GGUF version {version} is not known")
        tensors, keys = self._u64(), self._u64()
        if tensors > _MOST_TENSORS:
            raise GgufError(f"{tensors} tensors are too many (at most {_MOST_TENSORS})")
        if keys > _MOST_KEYS:
            raise GgufError(f"{keys} keys are too many (at most {_MOST_KEYS})")
        return tensors, keys

    def _tensors(self, count: int, alignment: int) -> list[Tensor]:
        found = []
        furthest, which = 0, ""
        for _ in range(count):
            name = self._name("tensor")
            dimensions = self._u32()
            if not 1 <= dimensions <= 4:
                raise GgufError(f"tensor {name!r} has {dimensions} dimensions")
            *shape, kind, offset = struct.unpack(f"<{dimensions}QIQ", self._take(8 * dimensions + 12))
            type_name, block, block_size = TENSOR_TYPES.get(kind, (f"type {kind}", 1, 0))
            elements = 1
            for extent in shape:
                elements *= extent
            size = elements // block * block_size
            # Python's integers do not overflow; what does not fit into the file is found here.
            if offset + size > furthest:
                furthest, which = offset + size, name
            found.append(Tensor(name, type_name, dimensions, shape[1] if dimensions > 1 else 1, size))
        data = -(-self._at // alignment) * alignment
        if furthest and data + furthest > self._size:
            raise GgufError(f"tensor {which!r} ends beyond the file's end, it is truncated or damaged")
        return found

    def _array(self, keep: bool) -> tuple[int, tuple[int, ...] | None]:
        kind, count = self._u32(), self._u64()
        if kind == _STRING:
            self._skip_strings(count)
            return count, None
        size = _SIZES.get(kind)
        if size is None:
            # llama.cpp refuses arrays in arrays, too.
            raise GgufError("an array within an array" if kind == _ARRAY else f"value type {kind} is not known")
        if keep and count <= _MOST_ENTRIES and kind not in _FLOATS:
            return count, struct.unpack(f"<{count}{_CODES[kind]}", self._take(count * size))
        self._skip(count * size)
        return count, None

    def _scalar(self, kind: int) -> int | str | None:
        if kind == _STRING:
            length = self._u64()
            if length > _MOST_TEXT:
                self._skip(length)
                return None
            return self._take(length).decode("utf-8", "replace")
        code = _CODES.get(kind)
        if code is None:
            raise GgufError(f"value type {kind} is not known")
        data = self._take(_SIZES[kind])
        return None if kind in _FLOATS else int(struct.unpack("<" + code, data)[0])

    def _skip_strings(self, count: int) -> None:
        """Walk ``count`` strings: 60 ns each, so a 150,000-token vocabulary with its merges takes 20 ms.

        Eight to a turn, because the loop itself would be a fifth of the time.
        """
        self._strings += count
        if self._strings > _MOST_STRINGS:
            raise GgufError(f"{self._strings} strings are too many (at most {_MOST_STRINGS})")
        unpack = _U64.unpack_from
        while count:
            window, at = self._window, self._at - self._start
            done = at
            try:
                while count >= 8:
                    at += 8 + unpack(window, at)[0]
                    at += 8 + unpack(window, at)[0]
                    at += 8 + unpack(window, at)[0]
                    at += 8 + unpack(window, at)[0]
                    at += 8 + unpack(window, at)[0]
                    at += 8 + unpack(window, at)[0]
                    at += 8 + unpack(window, at)[0]
                    at += 8 + unpack(window, at)[0]
                    done = at
                    count -= 8
            except (struct.error, OverflowError):
                pass
            # One by one over the end of the window, and for strings of which eight are longer than a window.
            self._at = self._start + done
            for _ in range(min(count, 8)):
                self._skip(self._u64())
                count -= 1

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > self._end:
            raise self._beyond()

    def _name(self, what: str) -> str:
        length = self._u64()
        if length > _MOST_NAME:
            raise GgufError(f"a {what} name of {length} bytes is too long")
        return self._take(length).decode("utf-8", "replace")

    def _u32(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack(self._take(8))[0])

    def _take(self, length: int) -> bytes:
        """The next ``length`` bytes; at most a window, which every caller's bound makes sure of."""
        offset = self._at - self._start
        if offset + length > len(self._window):
            self._fill(length)
            offset = 0
        self._at += length
        return self._window[offset : offset + length]

    def _fill(self, length: int) -> None:
        """Move the window to the position; at least ``length`` bytes must follow there."""
        if self._at + length > self._end:
            raise self._beyond()
        self._window = os.pread(self._fd, min(_WINDOW, self._end - self._at), self._at)
        self._start = self._at
        if len(self._window) < length:
            raise GgufError("it became shorter while it was read")

    def _beyond(self) -> GgufError:
        if self._size > _MOST_HEADER:
            return GgufError(f"its metadata is longer than {_MOST_HEADER >> 20} MiB")
        return GgufError("it is truncated or damaged")
