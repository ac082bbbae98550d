"""Plans against the sizes that llama.cpp prints and that running engines were measured at."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_builder as build
from tidegate.errors import TidegateError
from tidegate.gguf import GgufModel, read_gguf
from tidegate.policy.footprint import (
    KV_TYPES,
    Footprint,
    compute_bytes,
    hot_file,
    kv_bytes,
    kv_bytes_per_token,
    plan,
    repacked_bytes,
)
from tidegate.settings.model import Profile

MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def model(folder: Path, meta: dict[str, build.Meta], *tensors: bytes, data: int = 0) -> GgufModel:
    path = folder / f"{len(list(folder.iterdir()))}.gguf"
    path.write_bytes(build.gguf(meta, tensors, data=data))
    return read_gguf(str(path))


@pytest.fixture(scope="module")
def smol(folder: Path) -> GgufModel:
    merges = {"tokenizer.ggml.tokens": ["a"] * 49152, "tokenizer.ggml.merges": ["a a"] * 48900}
    return model(folder, {**build.llama(), **merges})


@pytest.fixture(scope="module")
def gemma(folder: Path) -> GgufModel:
    return model(folder, build.gemma3_270m())


# (layers, KV heads, head size) and bytes a token for f16, q8_0, q4_0
DIMENSIONS = [
    ("SmolLM2-135M", (30, 3, 64), (23040, 12240, 6480)),
    ("SmolLM2-1.7B", (24, 32, 64), (196608, 104448, 55296)),
    ("TinyLlama-1.1B", (22, 4, 64), (22528, 11968, 6336)),
    ("Qwen2.5-0.5B", (24, 2, 64), (12288, 6528, 3456)),
    ("Qwen2.5-3B", (36, 2, 128), (36864, 19584, 10368)),
    ("Llama-3.2-3B", (28, 8, 128), (114688, 60928, 32256)),
    ("Qwen3-4B", (36, 8, 128), (147456, 78336, 41472)),
]


@pytest.mark.parametrize(("name", "shape", "per_token"), DIMENSIONS)
def test_bytes_a_token(folder: Path, name: str, shape: tuple[int, int, int], per_token: tuple[int, int, int]) -> None:
    layers, heads, size = shape
    meta = build.llama(
        block_count=layers,
        attention__head_count_kv=heads,
        attention__key_length=size,
        attention__value_length=size,
    )
    one = model(folder, meta)
    assert tuple(kv_bytes_per_token(one, kind, kind) for kind in ("f16", "q8_0", "q4_0")) == per_token, name
    assert kv_bytes(one, 4096) == 4096 * per_token[0]


def test_smollm2_as_the_engine_prints_it(smol: GgufModel) -> None:
    """llama_kv_cache: CPU KV buffer size = 90.00 MiB at -c 4096 f16, 11.95 at -c 1024 q8_0."""
    assert kv_bytes(smol, 4096) == 90 * MIB
    assert kv_bytes(smol, 1024, 1, "q8_0", "q8_0") / MIB == pytest.approx(11.95, abs=0.005)


def test_gemma_as_the_engine_prints_it(gemma: GgufModel) -> None:
    """-c 2048 with the default micro-batch of 512: a cache of 6 MiB, one of 15 for the sliding layers, compute 21."""
    assert gemma.swa_layers.count(False) == 3
    assert kv_bytes(gemma, 2048, ubatch=512) == 21 * MIB
    assert kv_bytes(gemma, 4096, ubatch=512) == 27 * MIB
    assert compute_bytes(gemma, 2048, ubatch=512) / MIB == pytest.approx(21, abs=0.5)
    assert kv_bytes(gemma, 2048, ubatch=512, swa_full=True) == 36 * MIB


@pytest.mark.parametrize(("context", "ubatch", "printed"), [(4096, 128, 4.66), (1024, 128, 3.94), (4096, 512, 18.64)])
def test_compute_as_the_engine_prints_it(smol: GgufModel, context: int, ubatch: int, printed: float) -> None:
    assert compute_bytes(smol, context, ubatch=ubatch) / MIB == pytest.approx(printed, abs=0.04)


def test_compute_without_flash_attention(folder: Path) -> None:
    one = model(folder, build.llama(attention__head_count=16))
    with_scores = compute_bytes(one, 4096, ubatch=512, flash=False)
    assert with_scores - compute_bytes(one, 4096, ubatch=512) == 128 * MIB


@pytest.mark.parametrize(
    ("context", "kv_type", "ubatch", "measured_kib"),
    [
        (4096, "f16", 128, 139184),
        (1024, "q8_0", 128, 58100),
        (1024, "f16", 128, 68748),
        (4096, "q8_0", 128, 96124),
        (4096, "f16", 512, 152432),
    ],
)
def test_the_whole_plan_against_a_running_engine(
    smol: GgufModel, context: int, kv_type: str, ubatch: int, measured_kib: int
) -> None:
    """RssAnon of xllamacpp 2026.10 with SmolLM2-135M Q4_1 after one full prefill, x86-64."""
    profile = Profile("p", "m", context=context, kv_type=kv_type, batch=2048, ubatch=ubatch)
    assert plan(smol, profile, machine="x86_64").anon / 1024 == pytest.approx(measured_kib, rel=0.02)


def test_gemma_at_ready_against_a_running_engine(gemma: GgufModel) -> None:
    """RssAnon 82 MiB at ready, 12.7 of them repacked; compute is not touched yet, nor the first request's 5 MiB."""
    planned = plan(gemma, Profile("p", "m", context=2048, batch=2048, ubatch=512))
    assert (planned.kv + planned.overhead) / MIB + 12.7 - 5 == pytest.approx(82, rel=0.05)


def test_slots(smol: GgufModel) -> None:
    """Context is tokens a slot; only the padding differs between one cache and one a slot."""
    assert kv_bytes(smol, 1000, 2) == 2 * 1024 * 23040
    assert kv_bytes(smol, 1000, 2, unified=True) == 2048 * 23040
    assert kv_bytes(smol, 600, 3, unified=True) == 2048 * 23040


def test_slots_with_a_window(gemma: GgufModel) -> None:
    """A row of one layer is 1 KiB: 3 full layers, 15 that slide over 512 tokens (a slot) and the micro-batch."""
    assert kv_bytes(gemma, 2048, 2, ubatch=128) == (3 * 4096 + 15 * 2 * 768) * 1024
    assert kv_bytes(gemma, 2048, 2, ubatch=128, unified=True) == (3 * 4096 + 15 * 1280) * 1024


def test_sliding_layers_may_have_heads_of_another_size(folder: Path) -> None:
    meta = build.llama(
        "gemma3",
        block_count=6,
        attention__sliding_window=512,
        attention__key_length_swa=32,
        attention__value_length_swa=16,
    )
    assert kv_bytes_per_token(model(folder, meta)) == 3 * 2 * (5 * (32 + 16) + 64 + 64)


def test_layers_without_keys_cost_nothing(folder: Path) -> None:
    heads = [3 if layer % 5 == 0 else 0 for layer in range(30)]
    assert kv_bytes(model(folder, build.llama(attention__head_count_kv=heads)), 256) == 256 * 6 * 2 * 3 * 64 * 2


def test_latent_attention_keeps_one_row(folder: Path) -> None:
    changes: dict[str, build.Meta] = {
        "block_count": 27,
        "attention__head_count_kv": 1,
        "attention__key_length": 576,
        "attention__value_length": 512,
        "attention__kv_lora_rank": 512,
        "rope__dimension_count": 64,
    }
    assert kv_bytes_per_token(model(folder, build.llama("deepseek2", **changes))) == 27 * (576 + 512) * 2
    latent = model(folder, build.llama("deepseek2", **changes, attention__key_length_mla=192))
    assert kv_bytes_per_token(latent) == 27 * 576 * 2


def test_a_recurrent_state_is_a_fixed_cost_of_a_slot(folder: Path) -> None:
    meta = build.llama(
        "mamba",
        block_count=24,
        embedding_length=768,
        attention__head_count=0,
        attention__head_count_kv=0,
        ssm__conv_kernel=4,
        ssm__inner_size=1536,
        ssm__state_size=16,
        ssm__group_count=0,
    )
    state = 24 * (3 * 1536 + 16 * 1536) * 4
    assert kv_bytes(model(folder, meta), 4096, 2) == 2 * state


@pytest.fixture(scope="module")
def quantised(folder: Path) -> GgufModel:
    tensors = [
        build.tensor("token_embd.weight", (256, 64), build.Q8_0_TYPE),
        build.tensor("output.weight", (256, 64), build.Q8_0_TYPE),
        build.tensor("blk.0.attn_q.weight", (256, 64), build.Q4_K_TYPE),
        build.tensor("blk.0.attn_norm.weight", (256,)),
        build.tensor("blk.0.odd.weight", (256, 3), build.Q4_K_TYPE),
    ]
    return model(folder, build.llama(), *tensors, data=256 * 64 * 4)


Q8_SIZE, Q4_SIZE = 256 * 64 // 32 * 34, 256 * 64 // 256 * 144


def test_what_is_repacked_depends_on_the_machine(quantised: GgufModel) -> None:
    assert quantised.repackable == (("Q4_K", Q4_SIZE), ("Q8_0", Q8_SIZE))
    assert repacked_bytes(quantised, "x86_64") == Q4_SIZE
    assert repacked_bytes(quantised, "aarch64") == Q4_SIZE + Q8_SIZE
    assert repacked_bytes(quantised) == Q4_SIZE + Q8_SIZE


@pytest.mark.parametrize(
    ("extra", "mapped", "anon"),
    [
        ((), True, Q4_SIZE),
        (("--no-repack",), True, 0),
        (("-nr",), True, 0),
        (("--no-mmap",), False, None),
        (("--load-mode", "dio"), False, None),
        (("--load-mode=none",), False, None),
        (("--load-mode", "mmap"), True, Q4_SIZE),
    ],
)
def test_engine_flags_that_move_the_weights(
    quantised: GgufModel, extra: tuple[str, ...], mapped: bool, anon: int | None
) -> None:
    planned = plan(quantised, Profile("p", "m", extra=extra), machine="x86_64")
    assert planned.weights_file == (quantised.file_size if mapped else 0)
    assert planned.weights_anon == (quantised.tensor_size if anon is None else anon)


def test_unknown_cache_types_are_refused(smol: GgufModel) -> None:
    with pytest.raises(TidegateError, match="cannot plan memory: kv type 'q9' is not known"):
        plan(smol, Profile("p", "m", kv_type="q9"))


PLANNED = Footprint(weights_file=800 * MIB, weights_anon=700 * MIB, kv=100 * MIB, compute=10 * MIB, overhead=40 * MIB)


def test_without_repacking_all_mapped_weights_are_hot() -> None:
    assert hot_file(PLANNED, 820 * MIB, 140 * MIB) == 820 * MIB
    assert hot_file(PLANNED, 820 * MIB, 155 * MIB) == 820 * MIB


def test_repacked_weights_are_cold() -> None:
    assert hot_file(PLANNED, 820 * MIB, 640 * MIB) == 320 * MIB


def test_no_more_is_cold_than_can_be_repacked() -> None:
    assert hot_file(PLANNED, 820 * MIB, 5000 * MIB) == 120 * MIB
    assert hot_file(PLANNED, 100 * MIB, 5000 * MIB) == 0


def test_weights_that_are_not_mapped_are_no_reason_for_cold_pages() -> None:
    planned = Footprint(weights_file=0, weights_anon=700 * MIB, kv=0, compute=0, overhead=0)
    assert hot_file(planned, 20 * MIB, 800 * MIB) == 20 * MIB


@given(st.integers(1, 200_000), st.integers(1, 8), st.sampled_from(sorted(KV_TYPES)), st.integers(1, 2048))
def test_a_larger_shape_is_never_smaller(gemma: GgufModel, context: int, slots: int, kv_type: str, ubatch: int) -> None:
    one = kv_bytes(gemma, context, slots, kv_type, kv_type, ubatch=ubatch)
    assert one <= kv_bytes(gemma, context + 1, slots, kv_type, kv_type, ubatch=ubatch)
    assert one <= kv_bytes(gemma, context, slots + 1, kv_type, kv_type, ubatch=ubatch)
    assert one <= kv_bytes(gemma, context, slots, kv_type, kv_type, ubatch=ubatch, swa_full=True)
    assert one <= kv_bytes(gemma, context, slots, "f32", "f32", ubatch=ubatch)
