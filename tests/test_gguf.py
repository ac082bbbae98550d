"""Model files: good ones, odd ones, and those that want to hurt."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gguf_builder as build
from tidegate.errors import TidegateError
from tidegate.gguf import GgufModel, read_gguf
from tidegate.policy.footprint import plan
from tidegate.settings.model import Profile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


def read(folder: Path, data: bytes, name: str = "m.gguf") -> GgufModel:
    path = folder / name
    path.write_bytes(data)
    return read_gguf(str(path))


def refusal(folder: Path, data: bytes, name: str = "m.gguf") -> str:
    """Why the file is refused, without the path."""
    with pytest.raises(TidegateError) as caught:
        read(folder, data, name)
    message = str(caught.value)
    start = f"cannot read model {folder / name}: "
    assert message.startswith(start)
    return message.removeprefix(start)


TENSORS = [
    build.tensor("token_embd.weight", (64, 32), build.Q8_0_TYPE),
    build.tensor("blk.0.attn_q.weight", (64, 64), build.Q4_0_TYPE, 2176),
    build.tensor("output_norm.weight", (64,), build.F32_TYPE, 4480),
]
TENSOR_BYTES = 4480 + 256
TOKENS: dict[str, build.Meta] = {"tokenizer.ggml.tokens": ["a", "", "bc"], "tokenizer.ggml.merges": ["a bc"]}
SMALL = build.gguf({**build.llama(), "general.name": "Small", **TOKENS}, TENSORS, data=TENSOR_BYTES)


@pytest.mark.parametrize("version", [2, 3])
def test_a_plain_model(folder: Path, version: int) -> None:
    meta = {**build.llama(), "general.name": "Small", **TOKENS}
    data = build.gguf(meta, TENSORS, data=TENSOR_BYTES, version=version)
    model = read(folder, data)
    assert (model.architecture, model.name) == ("llama", "Small")
    assert (model.n_layers, model.n_embd, model.n_ff, model.n_head) == (30, 576, 1536, 9)
    assert (model.n_head_kv, model.key_length, model.value_length) == ((3,) * 30, 64, 64)
    assert (model.context_length, model.vocab_size, model.n_merges) == (8192, 3, 1)
    assert (model.sliding_window, any(model.swa_layers), model.kv_lora_rank, model.is_recurrent) == (0, False, 0, False)
    assert (model.file_size, model.tensor_size, model.quant) == (len(data), 2176 + 2304 + 256, "Q4_0")
    # no output matrix: the token embedding is multiplied with, too
    assert model.repackable == (("Q4_0", 2304), ("Q8_0", 2176))


def test_without_a_tokenizer_the_vocabulary_has_its_key(folder: Path) -> None:
    assert read(folder, build.gguf(build.llama())).vocab_size == 49152


def test_head_size_and_heads_have_defaults(folder: Path) -> None:
    meta = build.llama(attention__head_count=12)
    del meta["llama.attention.head_count_kv"]
    model = read(folder, build.gguf(meta))
    assert (model.key_length, model.n_head_kv[0]) == (48, 12)


def test_heads_of_each_layer(folder: Path) -> None:
    heads = [0, 4, 0, 8]
    model = read(folder, build.gguf(build.llama(block_count=4, attention__head_count_kv=heads)))
    assert model.n_head_kv == (0, 4, 0, 8)
    why = refusal(folder, build.gguf(build.llama(block_count=5, attention__head_count_kv=heads)))
    assert why == "attention.head_count_kv has 4 entries for 5 layers"


@pytest.mark.parametrize(
    ("architecture", "changes", "sliding"),
    [
        ("gemma3", {}, "11111011"),
        ("gpt-oss", {}, "10101010"),
        ("cohere2moe", {}, "01110111"),
        ("phi3", {}, "00000000"),
        ("llama", {}, "00000000"),
        ("gemma3", {"attention__sliding_window_pattern": 4}, "11101110"),
        (
            "gemma4",
            {"attention__sliding_window_pattern": [True, True, False, True, True, False, True, True]},
            "11011011",
        ),
        ("muse", {"attention__sliding_window_pattern": [True, False]}, "10101010"),
        ("maple", {"attention__sliding_window_pattern": 0}, "11111111"),
        ("gemma3", {"attention__sliding_window": 0}, "00000000"),
    ],
)
def test_which_layers_slide(folder: Path, architecture: str, changes: dict[str, build.Meta], sliding: str) -> None:
    meta = build.llama(architecture, **{"block_count": 8, "attention__sliding_window": 512, **changes})
    model = read(folder, build.gguf(meta))
    assert "".join(str(int(layer)) for layer in model.swa_layers) == sliding


def test_layers_that_share_keys(folder: Path) -> None:
    model = read(folder, build.gguf(build.llama("gemma4", block_count=4, attention__shared_kv_layers=1)))
    assert model.n_head_kv == (3, 3, 3, 0)
    assert read(folder, build.gguf(build.llama("gemma3n"))).n_head_kv == (3,) * 20 + (0,) * 10


def test_attention_in_every_fourth_layer(folder: Path) -> None:
    changes: dict[str, build.Meta] = {"ssm__conv_kernel": 4, "ssm__inner_size": 512, "ssm__state_size": 128}
    meta = build.llama("qwen3next", block_count=8, full_attention_interval=4, **changes, ssm__group_count=2)
    model = read(folder, build.gguf(meta))
    assert model.n_head_kv == (0, 0, 0, 3, 0, 0, 0, 3)
    assert model.state_size == 6 * (3 * (512 + 2 * 2 * 128) + 128 * 512) * 4


def test_attention_and_state_in_every_layer(folder: Path) -> None:
    """Falcon-H1."""
    changes: dict[str, build.Meta] = {"ssm__conv_kernel": 4, "ssm__inner_size": 512, "ssm__state_size": 128}
    model = read(folder, build.gguf(build.llama("falcon-h1", **changes)))
    assert (model.n_head_kv[0], model.state_size) == (3, 30 * (3 * 512 + 128 * 512) * 4)


def test_an_array_too_long_for_layers_is_passed_over(folder: Path) -> None:
    model = read(folder, build.gguf(build.llama(attention__head_count_kv=[1] * 100_000)))
    assert model.n_head_kv == (9,) * 30


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"wkv__head_size": 64}, 30 * (576 * 64 + 2 * 576) * 4),
        ({"shortconv__l_cache": 3}, 30 * 576 * 2 * 4),
        ({}, 0),
    ],
)
def test_other_recurrent_states(folder: Path, changes: dict[str, build.Meta], state: int) -> None:
    assert read(folder, build.gguf(build.llama("x", attention__head_count_kv=0, **changes))).state_size == state


def test_experts_count_with_those_in_use(folder: Path) -> None:
    meta = build.llama(feed_forward_length=100, expert_feed_forward_length=60, expert_used_count=4)
    assert read(folder, build.gguf(meta)).n_ff == 240


def test_a_split_model_is_all_its_parts(folder: Path) -> None:
    meta: dict[str, build.Meta] = {**build.llama(), "split.count": 2}
    first = build.gguf(meta, TENSORS, data=TENSOR_BYTES)
    (folder / "s-00002-of-00002.gguf").write_bytes(b"x" * len(first))
    model = read(folder, first, "s-00001-of-00002.gguf")
    assert (model.file_size, model.tensor_size) == (2 * len(first), 2 * 4736)
    assert refusal(folder, first, "t-00001-of-00002.gguf") == "part 2 of 2 cannot be found"
    assert refusal(folder, first) == "it is a part of a split model, the first ends in -00001-of-00002.gguf"


def raw(key: str, kind: int, payload: bytes) -> bytes:
    return build.text(key) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


HUGE = 1 << 63
ONE_KEY = build.header(keys=1)
NOT_GGUF = [
    (b"", "it is empty"),
    (b"GGU", "it is truncated or damaged"),
    (b"ggml" + b"\0" * 40, "it is no GGUF file"),
    (build.header(1), "it is GGUF version 1, convert it again"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "it is a big-endian GGUF file"),
    (build.header(4), "GGUF version 4 is not known"),
    (build.header(0), "GGUF version 0 is not known"),
    (build.header(), "it does not say its architecture"),
    (build.header(tensors=HUGE), f"{HUGE} tensors are too many (at most 8192)"),
    (build.header(keys=HUGE), f"{HUGE} keys are too many (at most 2048)"),
    (build.header(tensors=1), "it is truncated or damaged"),
    (ONE_KEY + struct.pack("<Q", HUGE), f"a key name of {HUGE} bytes is too long"),
    (ONE_KEY + raw("k", build.STRING, struct.pack("<Q", HUGE)), "it is truncated or damaged"),
    (ONE_KEY + raw("k", build.ARRAY, array(build.U64, HUGE)), "it is truncated or damaged"),
    (ONE_KEY + raw("k", build.ARRAY, array(build.STRING, HUGE)), f"{HUGE} strings are too many (at most 780000)"),
    (ONE_KEY + raw("k", build.ARRAY, array(build.STRING, 9, struct.pack("<Q", HUGE))), "it is truncated or damaged"),
    (ONE_KEY + raw("k", build.ARRAY, array(build.STRING, 9, b"\xff" * 200)), "it is truncated or damaged"),
    (ONE_KEY + raw("k", build.ARRAY, array(build.ARRAY, 1, array(build.U32, 0))), "an array within an array"),
    (ONE_KEY + raw("k", build.ARRAY, array(77, 1)), "value type 77 is not known"),
    (ONE_KEY + raw("k", 77, b""), "value type 77 is not known"),
    (build.header(tensors=1) + build.text("t") + struct.pack("<I", 5), "tensor 't' has 5 dimensions"),
    (build.header(tensors=1) + struct.pack("<Q", 2000), "a tensor name of 2000 bytes is too long"),
]


@pytest.mark.parametrize(("data", "why"), NOT_GGUF)
def test_hostile_and_broken_headers(folder: Path, data: bytes, why: str) -> None:
    assert refusal(folder, data) == why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"block_count": 0}, "it is no language model (llama without layers)"),
        ({"embedding_length": 0}, "it is no language model (llama without layers)"),
        ({"block_count": 1025}, "block_count is 1025, out of range (0 to 1024)"),
        ({"block_count": "many"}, "block_count is 'many', out of range (0 to 1024)"),
        ({"embedding_length": 1 << 31}, "embedding_length is 2147483648, out of range (0 to 16777216)"),
        ({"attention__head_count_kv": "x"}, "attention.head_count_kv is 'x', out of range (0 to 16777216)"),
    ],
)
def test_facts_out_of_range(folder: Path, changes: dict[str, build.Meta], why: str) -> None:
    assert refusal(folder, build.gguf(build.llama(**changes))) == why


def test_negative_and_repeated_keys(folder: Path) -> None:
    negative = build.text("x.block_count") + struct.pack("<Ii", 5, -1)
    why = refusal(folder, build.gguf({"general.architecture": "x"}, raw=[negative]))
    assert why == "block_count is -1, out of range (0 to 1024)"
    again = build.key_value("llama.block_count", 5)
    assert refusal(folder, build.gguf(build.llama(), raw=[again])) == "key 'llama.block_count' is there twice"
    odd = {**build.llama(), "general.alignment": 33}
    assert refusal(folder, build.gguf(odd)) == "general.alignment is not a power of two"


def test_a_tensor_beyond_the_end_is_a_truncated_download(folder: Path) -> None:
    why = "tensor 'output_norm.weight' ends beyond the file's end, it is truncated or damaged"
    assert refusal(folder, SMALL[:-1]) == why
    for shape, offset in (((HUGE, HUGE, HUGE, 2), HUGE), ((1 << 32, 1 << 32), 0), ((1,), (1 << 64) - 4)):
        overflow = build.tensor("t", shape, build.F32_TYPE, offset)
        assert refusal(folder, build.gguf(build.llama(), [overflow])).startswith("tensor 't' ends beyond")


def test_every_truncation_is_an_error(folder: Path) -> None:
    front = len(SMALL) - TENSOR_BYTES
    for length in range(front):
        with pytest.raises(TidegateError):
            read(folder, SMALL[:length])


def test_things_that_are_no_files(folder: Path) -> None:
    fifo, loop = folder / "fifo", folder / "loop"
    os.mkfifo(fifo)
    loop.symlink_to(loop)
    for path, why in (
        (folder, "it is a directory"),
        (fifo, "it is not a regular file"),  # and does not wait for a writer
        (loop, "Too many levels of symbolic links"),
        (folder / "missing", "No such file or directory"),
        (Path("/dev/null"), "it is not a regular file"),
    ):
        with pytest.raises(TidegateError) as caught:
            read_gguf(str(path))
        assert str(caught.value) == f"cannot read model {path}: {why}"
    with pytest.raises(TidegateError, match="its name has a NUL byte"):
        read_gguf("a\0b")


def test_a_file_that_shrinks_while_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(fd: int, length: int, offset: int) -> bytes:
        return b""

    monkeypatch.setattr(os, "pread", nothing)
    assert refusal(folder, SMALL) == "it became shorter while it was read"


def test_strings_longer_than_the_window_are_walked(folder: Path) -> None:
    tokens = ["x" * length for length in (300_000, 1, 0, 256, 255, 70_000, 300_000, 5, 5, 5, 5, 5, 5, 5, 5, 9)]
    tokens += ["y" * (length % 40) for length in range(50_000)]
    model = read(folder, build.gguf({**build.llama(), "tokenizer.ggml.tokens": tokens}))
    assert (model.vocab_size, model.n_layers) == (len(tokens), 30)


def sparse(folder: Path, front: bytes, size: int) -> str:
    """A file of ``size`` bytes that begins with ``front`` and takes no disk."""
    path = folder / "sparse.gguf"
    path.write_bytes(front)
    os.truncate(path, size)
    return str(path)


COSTLY = [
    # as many empty strings as are let through
    (ONE_KEY + raw("k", build.ARRAY, array(build.STRING, 780_000)), 8 << 20),
    # strings that jump over a window each
    (
        ONE_KEY
        + raw("k", build.ARRAY, array(build.STRING, 780_000))
        + (struct.pack("<Q", 1 << 18) + b"\0" * (1 << 18)) * 9,
        1 << 40,
    ),
    # one array over half a terabyte
    (ONE_KEY + raw("k", build.ARRAY, array(build.U64, 1 << 36)), 1 << 40),
    # as many tensors as are let through
    (build.header(tensors=8192) + build.tensor("t" * 900, (1, 1, 1, 1)) * 8192, 1 << 30),
    # as many keys, each with the longest array that is kept
    (
        build.header(keys=2048)
        + b"".join(raw(f"{n}.attention.head_count_kv", 9, array(10, 1024, b"\0" * 8192)) for n in range(2048)),
        1 << 30,
    ),
]


@pytest.mark.parametrize(("front", "size"), COSTLY)
def test_no_file_costs_much_time_or_memory(folder: Path, front: bytes, size: int) -> None:
    """50 ms on a 2-core VM at worst; the bound leaves room for a slower board."""
    path = sparse(folder, front, size)
    best = 9.0
    for _ in range(3):
        start = time.process_time()
        with pytest.raises(TidegateError):
            read_gguf(path)
        best = min(best, time.process_time() - start)
    assert best < 0.2


def test_metadata_without_end(folder: Path) -> None:
    front = build.header(keys=2) + raw("k", build.ARRAY, array(build.U64, 9 << 20))
    with pytest.raises(TidegateError, match="its metadata is longer than 64 MiB"):
        read_gguf(sparse(folder, front, 1 << 30))


@pytest.mark.parametrize(("front", "size"), COSTLY[1:])
def test_no_file_takes_much_memory(folder: Path, front: bytes, size: int) -> None:
    path = sparse(folder, front, size)
    tracemalloc.start()
    try:
        with pytest.raises(TidegateError):
            read_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20


def test_no_descriptor_is_lost(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(300):
        read(folder, SMALL)
        refusal(folder, SMALL[:100])
    assert len(os.listdir("/proc/self/fd")) == before


def plan_or_refuse(path: Path, data: bytes) -> None:
    """Whatever the bytes: a model that can be planned, or an error that names the file."""
    path.write_bytes(data)
    try:
        model = read_gguf(str(path))
    except TidegateError as error:
        assert str(error).startswith(f"cannot read model {path}: ")
        return
    planned = plan(model, Profile("p", str(path)))
    assert min(planned.anon, planned.weights_file, planned.kv, planned.compute, planned.overhead) >= 0


FRONT = len(SMALL) - TENSOR_BYTES
mutations = st.lists(st.tuples(st.integers(0, FRONT - 1), st.integers(0, 255)), min_size=1, max_size=6)
words = st.lists(
    st.tuples(st.integers(0, FRONT - 8), st.sampled_from([0, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1])),
    min_size=1,
    max_size=3,
)


@settings(max_examples=400, deadline=None)
@given(mutations)
def test_changed_bytes(folder: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for place, value in changes:
        data[place] = value
    plan_or_refuse(folder / "fuzz.gguf", bytes(data))


@settings(max_examples=400, deadline=None)
@given(words)
def test_changed_numbers(folder: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for place, value in changes:
        data[place : place + 8] = struct.pack("<Q", value)
    plan_or_refuse(folder / "fuzz.gguf", bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, FRONT), st.integers(0, FRONT), st.binary(max_size=64))
def test_pieces_cut_out_and_put_in(folder: Path, start: int, length: int, put: bytes) -> None:
    plan_or_refuse(folder / "fuzz.gguf", SMALL[:start] + put + SMALL[start + length :])


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_anything_behind_the_magic(folder: Path, data: bytes) -> None:
    plan_or_refuse(folder / "fuzz.gguf", b"GGUF\x03\0\0\0" + data)
