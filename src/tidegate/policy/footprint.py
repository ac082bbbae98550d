"""How many bytes a model will take in a given shape, before it is started. Pure.

A plan is the first guess; the guard learns the true figure ("ready and one full prefill") and uses that afterwards. It
errs upwards: a profile that turns out smaller costs a step up later, one that turns out larger costs the board.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tidegate.errors import TidegateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.gguf import GgufModel
    from tidegate.settings.model import Profile

# Bytes a block of 32 elements takes in the KV cache (ggml-common.h); unquantised types as if they had blocks.
_BLOCK = 32
KV_TYPES = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}

# The types that the CPU_REPACK buffer takes (ggml_repack_get_optimal_repack_type, ggml/src/ggml-cpu/repack.cpp), with
# every instruction set it asks for: AVX2 and, for Q2_K, AVX-512 on x86; dotprod or i8mm on ARM. Not among them: Q4_1,
# Q5_0, Q5_1, Q3_K, F16. Older builds know fewer; that the plan is then too large is learned at the first start.
_REPACK_X86 = frozenset(("Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4"))
_REPACK_ARM = frozenset(("Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"))
_REPACK_BY_MACHINE = {"x86_64": _REPACK_X86, "aarch64": _REPACK_ARM}

# Measured with xllamacpp 2026.10 in a Python process and SmolLM2-135M (49,152 tokens, 48,900 merges), after one full
# prefill, less KV and compute: 41.0 MiB at -c 4096 and 40.7 at -c 1024. Watching the load step by step: Python and the
# library 9, strings of the vocabulary 23, threads and sampler of the first request 5 MiB. Gemma 3 270M (262,144 tokens,
# no merges) has 48 MiB at ready, which separates tokens from merges. llama-server itself needs 14 MiB less.
_OVERHEAD = int(18.2 * (1 << 20))
_TOKEN_BYTES = 150
_MERGE_BYTES = 330
# A KV cell's metadata and token history: from the difference of the two runs above.
_CELL_BYTES = 180

# Graph memory a token of a micro-batch, f32: measured 4.66 MiB (-c 4096 -ub 128), 18.64 (-ub 512) and 3.94 (-c 1024)
# for n_embd 576, n_ff 1536, and 21 MiB for Gemma 3 270M (-c 2048 -ub 512); this form gives 4.66, 18.62, 3.91, 21.2.
_EMBD_BUFFERS = 5
_FF_BUFFERS = 3
# The f16 attention mask: a row of cells a token.
_MASK_BYTES = 2

# Below this an excess of anonymous memory is the plan's own error and not repacked weights.
_NOISE = 16 << 20


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a worker will hold, in bytes.

    ``weights_file``: mapped file pages, reclaimable but hot. ``weights_anon``: the engine's repacked copies, or all
    weights where they are not mapped. ``kv``: resident at once. ``compute``: reserved at start, resident from the
    first large prompt on. ``overhead``: program, vocabulary, threads. The host prompt cache comes on top, up to the
    profile's bound.
    """

    weights_file: int
    weights_anon: int
    kv: int
    compute: int
    overhead: int

    @property
    def anon(self) -> int:
        """What counts on the budget: everything that can not be dropped and read again."""
        return self.weights_anon + self.kv + self.compute + self.overhead


def plan(model: GgufModel, profile: Profile, *, machine: str = "") -> Footprint:
    """The bytes of ``model`` in the shape of ``profile``, flash attention on.

    ``machine`` is os.uname().machine, which decides what is repacked; unknown machines get the longest list.
    ``profile.extra`` is looked through for the engine flags that change memory: --no-repack, --no-mmap, --load-mode,
    --swa-full.

    Raises:
        TidegateError: the profile's kv_type is not known.
    """
    swa_full = "--swa-full" in profile.extra
    ubatch = max(1, min(profile.ubatch, profile.batch))
    kv = kv_bytes(
        model, profile.context, profile.slots, profile.kv_type, profile.kv_type, ubatch=ubatch, swa_full=swa_full
    )
    cells = _pad256(profile.context) * profile.slots
    mapped = _is_mapped(profile.extra)
    repack = repacked_bytes(model, machine)
    if not mapped:
        weights_anon = model.tensor_size or model.file_size
    elif "--no-repack" in profile.extra or "-nr" in profile.extra:
        weights_anon = 0
    else:
        weights_anon = repack
    return Footprint(
        weights_file=model.file_size if mapped else 0,
        weights_anon=weights_anon,
        kv=kv,
        compute=compute_bytes(model, profile.context, profile.slots, ubatch=ubatch),
        overhead=_OVERHEAD + model.vocab_size * _TOKEN_BYTES + model.n_merges * _MERGE_BYTES + cells * _CELL_BYTES,
    )


def _is_mapped(extra: tuple[str, ...]) -> bool:
    if "--no-mmap" in extra:
        return False
    pairs = [*pairwise(extra), *(item.partition("=")[::2] for item in extra)]
    return not any(flag == "--load-mode" and value in ("none", "dio") for flag, value in pairs)


def kv_bytes(
    model: GgufModel,
    context: int,
    slots: int = 1,
    ctk: str = "f16",
    ctv: str = "f16",
    *,
    unified: bool = False,
    ubatch: int = 128,
    swa_full: bool = False,
) -> int:
    """Bytes of the KV cache: allocated and zero-filled at start, never more and never less afterwards.

    ``context`` is tokens a slot; ``ctk`` and ``ctv`` are the cache types of keys and values; ``unified``: one cache of
    all slots' tokens instead of one a slot; ``ubatch``: tokens of a micro-batch, which a sliding window has on top.
    Cells are padded to 256; layers with a sliding window keep only window + ubatch (src/llama-kv-cache-iswa.cpp).
    Recurrent layers have a fixed state a slot.

    Raises:
        TidegateError: a cache type is not known.
    """
    streams = 1 if unified else slots
    cells = _pad256(context * slots if unified else context)
    window = model.sliding_window * (slots if unified else 1) + ubatch
    swa_cells = cells if swa_full else _pad256(min(cells, window))
    total = model.state_size * slots
    for layer in range(model.n_layers):
        sliding = model.swa_layers[layer]
        total += streams * (swa_cells if sliding else cells) * _row_bytes(model, layer, ctk, ctv)
    return total


def kv_bytes_per_token(model: GgufModel, ctk: str = "f16", ctv: str = "f16") -> int:
    """Bytes that one token takes in all layers: what the host prompt cache keeps of it.

    Layers with a sliding window keep fewer tokens, so for long conversations of such models this is too much.

    Raises:
        TidegateError: a cache type is not known.
    """
    return sum(_row_bytes(model, layer, ctk, ctv) for layer in range(model.n_layers))


def _row_bytes(model: GgufModel, layer: int, ctk: str, ctv: str) -> int:
    """Bytes a token in one layer. Latent attention (MLA) keeps one compressed row and no values."""
    heads = model.n_head_kv[layer]
    if heads == 0:
        return 0
    if model.kv_lora_rank:
        return _elements(model.kv_lora_rank + model.rope_dim, ctk)
    if model.swa_layers[layer]:
        key, value = model.key_length_swa, model.value_length_swa
    else:
        key, value = model.key_length, model.value_length
    return _elements(heads * key, ctk) + _elements(heads * value, ctv)


def _elements(count: int, cache_type: str) -> int:
    size = KV_TYPES.get(cache_type)
    if size is None:
        raise TidegateError(
            f"cannot plan memory: kv type {cache_type!r} is not known", hint=f"one of {', '.join(KV_TYPES)}"
        )
    return count * size // _BLOCK


def _pad256(cells: int) -> int:
    return -(-cells // 256) * 256


def compute_bytes(model: GgufModel, context: int, slots: int = 1, *, ubatch: int = 128, flash: bool = True) -> int:
    """Bytes of the compute buffer, resident after the first prompt of ``ubatch`` tokens and more.

    Activations and the attention mask a token of the micro-batch; without flash attention also one f32 score a cell
    and head, which soon is most of it (512 * 4096 * 16 * 4 = 128 MiB).
    """
    cells = _pad256(context) * slots
    row = 4 * (_EMBD_BUFFERS * model.n_embd + _FF_BUFFERS * model.n_ff) + _MASK_BYTES * cells
    if any(model.swa_layers):
        row += _MASK_BYTES * _pad256(min(cells, model.sliding_window + ubatch))
    if not flash:
        row += 4 * cells * model.n_head
    return ubatch * row


def repacked_bytes(model: GgufModel, machine: str = "") -> int:
    """Bytes of weights that the engine copies into anonymous memory in an order its processor likes better.

    The mapped originals stay, and are cold from then on (llama.cpp#19578): see :func:`hot_file`.
    """
    types = _REPACK_BY_MACHINE.get(machine, _REPACK_X86 | _REPACK_ARM)
    return sum(size for kind, size in model.repackable if kind in types)


def hot_file(planned: Footprint, rss_file: int, ready_anon: int) -> int:
    """How much of the worker's ``rss_file`` must stay resident, from its anonymous bytes when it got ready.

    ``ready_anon`` well above planned KV and overhead shows that weights were repacked; their file pages are not read
    again. It is RssAnon at ready, not now: the prompt cache grows. At most what the plan says can be repacked is taken
    for cold, and nothing if the excess is within the plan's own error.
    """
    if planned.weights_file == 0:
        return rss_file
    excess = ready_anon - planned.kv - planned.overhead
    if excess < _NOISE:
        return rss_file
    return max(0, rss_file - min(excess, planned.weights_anon))
