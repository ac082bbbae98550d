"""What a GGUF model file says about its own memory: layers, heads, windows, weights.

Only the header is read (see :mod:`tidegate.gguf_reader` for the bounds). Key names and their defaults are those of
llama.cpp (src/llama-arch.cpp, src/models/*.cpp); whatever is not known is taken so that the plan comes out too large.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidegate.errors import TidegateError
from tidegate.gguf_reader import GgufError, Header, Tensor, read_header

_MOST_LAYERS = 1024
_MOST_DIMENSION = 1 << 24
_MOST_TOKENS = 1 << 40

# Keys that matter, without the architecture in front.
_WANTED = frozenset(
    (
        "architecture",
        "name",
        "alignment",
        "count",  # split.count
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "expert_feed_forward_length",
        "expert_used_count",
        "context_length",
        "vocab_size",
        "full_attention_interval",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.key_length_swa",
        "attention.value_length_swa",
        "attention.key_length_mla",
        "attention.kv_lora_rank",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.shared_kv_layers",
        "rope.dimension_count",
        "ssm.conv_kernel",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.group_count",
        "wkv.head_size",
        "shortconv.l_cache",
    )
)

# llama.cpp writes the sliding-window period of these into its code, not into the file: (period, the full layer is the
# first of a period). A period of 0 is "every layer slides". Other architectures ignore the window key unless the file
# has a pattern (llama, phi3), so they are planned with full attention.
_SWA_PERIODS = {
    "afmoe": (4, False),
    "cohere2": (4, False),
    "cohere2moe": (4, True),
    "exaone-moe": (4, False),
    "exaone4": (4, False),
    "gemma-embedding": (6, False),
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gpt-oss": (2, False),
    "laguna": (4, True),
    "llama4": (4, False),
    "mellum": (4, False),
    "olmo2": (4, False),
    "plamo3": (8, False),
    "smallthinker": (4, True),
}

# gemma3n computes K and V in its first 20 layers only (n_layer_kv_from_start in src/models/gemma3n.cpp).
_GEMMA3N_KV_LAYERS = 20


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The facts of one model file; sizes in bytes, lengths in elements, 0 where the model has no such thing.

    ``n_head_kv`` has an entry a layer; layers that keep no keys and values (recurrent, shared) have 0.
    ``swa_layers`` has an entry a layer: it keeps only ``sliding_window`` tokens. ``kv_lora_rank`` > 0: multi-head
    latent attention, one row of kv_lora_rank + ``rope_dim`` a layer. ``state_size``: fixed bytes a sequence of the
    recurrent layers. ``quant``: the type that most tensor bytes have. ``repackable``: bytes by type of the tensors
    that an engine could repack (matrices that are multiplied with; which types are, depends on the processor).
    """

    path: str
    architecture: str
    name: str
    n_layers: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: tuple[int, ...]
    key_length: int
    value_length: int
    key_length_swa: int
    value_length_swa: int
    context_length: int
    vocab_size: int
    n_merges: int
    sliding_window: int
    swa_layers: tuple[bool, ...]
    kv_lora_rank: int
    rope_dim: int
    state_size: int
    file_size: int
    tensor_size: int
    quant: str
    repackable: tuple[tuple[str, int], ...]

    @property
    def is_recurrent(self) -> bool:
        """Some layers keep a fixed state: a prompt cache then holds copies of it (checkpoints)."""
        return self.state_size > 0


def read_gguf(path: str) -> GgufModel:
    """The facts of the model file ``path``; below 50 ms and 20 MB whatever the file contains.

    Raises:
        TidegateError: "cannot read model X: why".
    """
    try:
        header = read_header(path, _WANTED)
        return _model(path, header)
    except GgufError as error:
        raise TidegateError(f"cannot read model {path}: {error}") from error
    except OSError as error:
        raise TidegateError(f"cannot read model {path}: {error.strerror or error}") from error
    except ValueError as error:
        # os.open refuses a NUL in a path.
        raise TidegateError(f"cannot read model {path!r}: {error}") from error


class _Facts:
    """Checked access to the values of one architecture."""

    def __init__(self, header: Header, architecture: str) -> None:
        self._values = header.values
        self._prefix = architecture

    def number(self, key: str, default: int = 0, *, most: int = _MOST_DIMENSION) -> int:
        """A number from 0 to ``most``; of a per-layer array its largest entry."""
        value = self._values.get(f"{self._prefix}.{key}", default)
        if isinstance(value, tuple):
            value = max(value, default=default)
        return self._checked(key, value, most)

    def per_layer(self, key: str, layers: int, default: int) -> tuple[int, ...]:
        """An entry a layer: the array of the file, or its one number for all."""
        value = self._values.get(f"{self._prefix}.{key}", default)
        if not isinstance(value, tuple):
            return (self._checked(key, value, _MOST_DIMENSION),) * layers
        if len(value) < layers:
            raise GgufError(f"{key} has {len(value)} entries for {layers} layers")
        return tuple(self._checked(key, entry, _MOST_DIMENSION) for entry in value[:layers])

    def pattern(self, key: str) -> int | tuple[int, ...] | None:
        value = self._values.get(f"{self._prefix}.{key}")
        return None if isinstance(value, str) else value

    def _checked(self, key: str, value: object, most: int) -> int:
        if not isinstance(value, int) or not 0 <= value <= most:
            raise GgufError(f"{key} is {value!r}, out of range (0 to {most})")
        return value


def _model(path: str, header: Header) -> GgufModel:
    architecture = header.values.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise GgufError("it does not say its architecture")
    facts = _Facts(header, architecture)
    layers = facts.number("block_count", most=_MOST_LAYERS)
    n_embd = facts.number("embedding_length")
    if layers == 0 or n_embd == 0:
        raise GgufError(f"it is no language model ({architecture} without layers)")
    n_head = facts.number("attention.head_count")
    head_size = n_embd // n_head if n_head else 0
    key_length = facts.number("attention.key_length", head_size)
    value_length = facts.number("attention.value_length", head_size)
    window = facts.number("attention.sliding_window", most=_MOST_TOKENS)
    latent = facts.number("attention.kv_lora_rank")
    name = header.values.get("general.name")
    vocab = header.lengths.get("tokenizer.ggml.tokens") or facts.number("vocab_size")
    file_size, share = _whole_size(path, header)
    by_type, repackable = _tensor_sizes(header.tensors)
    return GgufModel(
        path=path,
        architecture=architecture,
        name=name if isinstance(name, str) else "",
        n_layers=layers,
        n_embd=n_embd,
        n_ff=max(
            facts.number("feed_forward_length"),
            facts.number("expert_feed_forward_length") * facts.number("expert_used_count"),
        ),
        n_head=n_head,
        n_head_kv=_kv_heads(facts, architecture, layers, n_head),
        key_length=key_length,
        value_length=value_length,
        key_length_swa=facts.number("attention.key_length_swa", key_length),
        value_length_swa=facts.number("attention.value_length_swa", value_length),
        context_length=facts.number("context_length", most=_MOST_TOKENS),
        vocab_size=vocab,
        n_merges=header.lengths.get("tokenizer.ggml.merges", 0),
        sliding_window=window,
        swa_layers=_swa_layers(facts, architecture, layers, window),
        # Files from before llama.cpp's MLA (no key_length_mla) keep full keys and values.
        kv_lora_rank=latent if facts.number("attention.key_length_mla") else 0,
        rope_dim=facts.number("rope.dimension_count"),
        state_size=_state_size(facts, layers, n_embd),
        file_size=file_size,
        tensor_size=int(sum(by_type.values()) * share),
        quant=max(by_type, key=by_type.__getitem__, default=""),
        repackable=tuple(sorted((kind, int(size * share)) for kind, size in repackable.items())),
    )


def _attention_layers(facts: _Facts, layers: int) -> tuple[bool, ...]:
    """Which layers have attention at all (qwen3next and the like have it in every n-th, the last of a period)."""
    interval = facts.number("full_attention_interval")
    return tuple(interval < 2 or layer % interval == interval - 1 for layer in range(layers))


def _kv_heads(facts: _Facts, architecture: str, layers: int, n_head: int) -> tuple[int, ...]:
    heads = facts.per_layer("attention.head_count_kv", layers, n_head)
    shared = facts.number("attention.shared_kv_layers")
    own = _GEMMA3N_KV_LAYERS if architecture == "gemma3n" else max(layers - shared, 0)
    attention = _attention_layers(facts, layers)
    return tuple(heads[layer] if layer < own and attention[layer] else 0 for layer in range(layers))


def _swa_layers(facts: _Facts, architecture: str, layers: int, window: int) -> tuple[bool, ...]:
    """llama_hparams::set_swa_pattern: of a period, all but the last (or the first) layer slide."""
    if window == 0:
        return (False,) * layers
    pattern = facts.pattern("attention.sliding_window_pattern")
    period, dense_first = _SWA_PERIODS.get(architecture, (1, False))
    if isinstance(pattern, tuple) and pattern:
        return tuple(bool(pattern[layer % len(pattern)]) for layer in range(layers))
    if isinstance(pattern, int) and 0 <= pattern <= _MOST_LAYERS:
        period = pattern
    full = 0 if dense_first else period - 1
    return tuple(period == 0 or layer % period != full for layer in range(layers))


def _state_size(facts: _Facts, layers: int, n_embd: int) -> int:
    """Bytes a sequence of the recurrent layers, f32: n_embd_r + n_embd_s of src/llama-hparams.cpp."""
    head_counts = facts.per_layer("attention.head_count_kv", layers, facts.number("attention.head_count"))
    attention = _attention_layers(facts, layers)
    recurrent = sum(1 for layer in range(layers) if not attention[layer] or head_counts[layer] == 0)
    convolution, inner, state = (facts.number(f"ssm.{key}") for key in ("conv_kernel", "inner_size", "state_size"))
    head_size, cache = facts.number("wkv.head_size"), facts.number("shortconv.l_cache")
    if head_size:
        # token_shift_count is 2 at most.
        values = n_embd * head_size + 2 * n_embd
    elif cache:
        values = n_embd * (cache - 1)
    elif inner:
        values = max(convolution - 1, 0) * (inner + 2 * facts.number("ssm.group_count") * state) + state * inner
        # Falcon-H1 has both in every layer.
        recurrent = recurrent or layers
    else:
        return 0
    return recurrent * values * 4


def _tensor_sizes(tensors: list[Tensor]) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes by type of all tensors, and of those that could be repacked.

    Repacked are matrices that are multiplied with (two dimensions, or three for experts) with rows in multiples of 4.
    The token embedding is only looked up, unless there is no output matrix: then it is used as one, repacked as well.
    """
    by_type: dict[str, int] = {}
    repackable: dict[str, int] = {}
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    for tensor in tensors:
        by_type[tensor.type_name] = by_type.get(tensor.type_name, 0) + tensor.size
        looked_up = tensor.name.startswith(("token_embd.", "per_layer_token_embd."))
        if looked_up and not (tied and tensor.name == "token_embd.weight"):
            continue
        if tensor.dimensions in (2, 3) and tensor.rows % 4 == 0 and tensor.name.endswith(".weight"):
            repackable[tensor.type_name] = repackable.get(tensor.type_name, 0) + tensor.size
    return by_type, repackable


def _whole_size(path: str, header: Header) -> tuple[int, float]:
    """The size of the file, with the other parts of a split model, and how many times this part's size that is."""
    parts = header.values.get("split.count", 1)
    if not isinstance(parts, int) or parts < 2:
        return header.file_size, 1.0
    ending = f"-00001-of-{parts:05d}.gguf"
    if parts > 99999 or not path.endswith(ending):
        raise GgufError(f"it is a part of a split model, the first ends in {ending}")
    size = header.file_size
    for part in range(2, min(parts, _MOST_LAYERS) + 1):
        other = f"{path.removesuffix(ending)}-{part:05d}-of-{parts:05d}.gguf"
        try:
            size += os.stat(other).st_size
        except OSError as error:
            raise GgufError(f"part {part} of {parts} cannot be found") from error
    return size, size / header.file_size
