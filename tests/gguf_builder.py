"""Small GGUF files for tests, written byte by byte so that they can also be wrong."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

U32, BOOL, STRING, ARRAY, U64 = 4, 7, 8, 9, 10
F32_TYPE, Q4_0_TYPE, Q4_K_TYPE, Q8_0_TYPE = 0, 2, 12, 8

Meta = int | str | Sequence[int] | Sequence[bool] | Sequence[str]


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def key_value(key: str, value: Meta) -> bytes:
    """One metadata entry: int as u32, str as string, sequences as arrays of bool, u32 or string."""
    if isinstance(value, int):
        return text(key) + struct.pack("<II", U32, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    head = text(key) + struct.pack("<I", ARRAY)
    if value and isinstance(value[0], bool):
        return head + struct.pack(f"<IQ{len(value)}B", BOOL, len(value), *value)
    if value and isinstance(value[0], str):
        return head + struct.pack("<IQ", STRING, len(value)) + b"".join(text(str(item)) for item in value)
    return head + struct.pack(f"<IQ{len(value)}I", U32, len(value), *value)


def tensor(name: str, shape: Sequence[int], kind: int = F32_TYPE, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def gguf(
    meta: Mapping[str, Meta],
    tensors: Sequence[bytes] = (),
    *,
    data: int = 0,
    version: int = 3,
    raw: Sequence[bytes] = (),
) -> bytes:
    """A whole file with ``data`` bytes of weights; ``raw``: entries after those of ``meta``, as they are."""
    entries = [key_value(key, value) for key, value in meta.items()]
    front = header(version, len(tensors), len(entries) + len(raw)) + b"".join([*entries, *raw, *tensors])
    return front + b"\0" * (-len(front) % 32 + data)


def llama(architecture: str = "llama", /, **changes: Meta) -> dict[str, Meta]:
    """Metadata of SmolLM2-135M under another name; a change "attention__key_length" is key attention.key_length."""
    values: dict[str, Meta] = {
        "block_count": 30,
        "embedding_length": 576,
        "feed_forward_length": 1536,
        "context_length": 8192,
        "vocab_size": 49152,
        "attention.head_count": 9,
        "attention.head_count_kv": 3,
        "rope.dimension_count": 64,
    }
    values.update({key.replace("__", "."): value for key, value in changes.items()})
    return {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in values.items()}}


def gemma3_270m() -> dict[str, Meta]:
    """The metadata of Gemma 3 270M that matters for memory."""
    return llama(
        "gemma3",
        block_count=18,
        embedding_length=640,
        feed_forward_length=2048,
        context_length=32768,
        vocab_size=262144,
        attention__head_count=4,
        attention__head_count_kv=1,
        attention__key_length=256,
        attention__value_length=256,
        attention__sliding_window=512,
    )
