"""A model as a planner sees it: an ordered list of layers, each with a few caches and an MLP.

Numbers are whole-model counts (tensor parallel size 1). ``None`` means "this model has none",
never "unknown": a reader that cannot find a value which decides memory raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

How: TypeAlias = Literal["exact", "derived", "assumed", "measured"]
QKNorm: TypeAlias = Literal["none", "head", "full"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where one field of a spec came from.

    ``key`` is the path in the config file ("text_config.head_dim"), or a sentence for values the
    file does not hold. ``how`` is "exact" for a value read, "derived" for one computed from others,
    "assumed" for a constant of the modelling code.
    """

    key: str
    how: How = "exact"


@dataclass(frozen=True, slots=True)
class Window:
    """Attention that forgets all but the last ``tokens``, or all before the current chunk."""

    kind: Literal["sliding", "chunked"]
    tokens: int


@dataclass(frozen=True, slots=True)
class Indexer:
    """Key cache that picks what sparse attention reads (DSA, GLM kpool, QSA).

    ``tokens_per_entry`` > 1 pools that many tokens into one entry; ``tail_ring`` says that the
    tokens of an unfinished pool wait in a ring of their own (GLM-5.3-Flash: key and gate, bf16).
    ``owned`` False: the layer reads the index of an earlier layer and stores none.
    ``key_heads`` is the number of key heads stored (1 for DSA). ``form`` names the design, which
    decides its weights and the dtype an engine stores: "dsa" (DeepSeek-V3.2, GLM-5), "kpool"
    (GLM-5.3-Flash), "compressed" (DeepSeek-V4's own compressor), "qsa" (Qwen3.8-Flash-Next, mean of
    a block), "block" (MiniMax-M3, one key per token scored by blocks).
    """

    head_dim: int
    query_heads: int
    tokens_per_entry: int = 1
    key_heads: int = 1
    tail_ring: bool = False
    owned: bool = True
    topk_tokens: int | None = None
    form: Literal["dsa", "kpool", "compressed", "qsa", "block"] = "dsa"


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with K and V heads: MHA, GQA, MQA, windowed or full.

    ``kv_source_layer``: this layer stores nothing and reads that layer's KV, and has no weights for
    K and V.
    ``shared_kv_weights``: K and V come from one projection (both are still cached).
    ``output_gate`` doubles the q projection (Qwen3-Next) and has no cache.
    The remaining fields only decide parameters. ``output_projection`` False: the output joins
    another mixer's before a projection that is counted there (Hymba). ``qk_norm``: "head" norms
    head_dim wide, "full" norms heads x head_dim wide.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: Window | None = None
    kv_source_layer: int | None = None
    indexer: Indexer | None = None
    shared_kv_weights: bool = False
    output_gate: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QKNorm = "none"
    sinks: bool = False
    output_projection: bool = True
    input_dim: int | None = None
    kind: Literal["attention"] = "attention"


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """MLA: one latent of ``kv_lora_rank`` + ``rope_dim`` (may be 0) per token, for all heads."""

    heads: int
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_lora_rank: int | None = None
    indexer: Indexer | None = None
    output_gate: bool = False
    kind: Literal["mla"] = "mla"


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek-V4: a sliding window plus KV compressed ``compress_ratio`` to 1 (0: window only).

    ``head_dim`` counts one entry (K = V latent, ``rope_dim`` of it rotary). ``kv_owned`` /
    indexer.owned False: the layer reads the compressed KV / index of an earlier layer.
    """

    heads: int
    head_dim: int
    rope_dim: int
    window_tokens: int
    compress_ratio: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    kv_owned: bool = True
    indexer: Indexer | None = None
    kind: Literal["compressed"] = "compressed"


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Gated delta rule: state value_heads x key_dim x value_dim; conv over q, k and v."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    kind: Literal["gdn"] = "gdn"


@dataclass(frozen=True, slots=True)
class KimiDelta:
    """KDA: per-channel decay; state heads x head_dim x head_dim; three conv streams (q, k, v).

    ``bounded_gate``: the checkpoint bounds the decay from below (``gate_lower_bound``).
    ``full_rank_gate``: the output gate is one matrix instead of two of rank head_dim (Kimi-K3);
    ``full_rank_decay``: so is the projection of the decay (Ling-3.0).
    """

    heads: int
    head_dim: int
    conv_kernel: int
    bounded_gate: bool = False
    full_rank_gate: bool = False
    full_rank_decay: bool = False
    kind: Literal["kda"] = "kda"


@dataclass(frozen=True, slots=True)
class Lightning:
    """Scalar-decay linear attention (MiniMax, Ring/Ling to 2.6): heads x head_dim^2, no conv."""

    heads: int
    head_dim: int
    qk_norm: bool = False
    kind: Literal["lightning"] = "lightning"


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Selective SSM: state inner x state_dim; conv inner wide. ``norms``: Jamba's dt/B/C norms."""

    inner: int
    state_dim: int
    conv_kernel: int
    dt_rank: int
    norms: bool = False
    conv_bias: bool = True
    proj_bias: bool = False
    kind: Literal["mamba1"] = "mamba1"


@dataclass(frozen=True, slots=True)
class Mamba2:
    """SSD: state heads x head_dim x state_dim; conv over x and (``conv_groups``) B and C."""

    heads: int
    head_dim: int
    state_dim: int
    groups: int
    conv_kernel: int
    conv_over_groups: bool = True
    conv_bias: bool = True
    proj_bias: bool = False
    gated_norm: bool = True
    dt_rank: int | None = None
    kind: Literal["mamba2"] = "mamba2"


@dataclass(frozen=True, slots=True)
class RGLRU:
    """Griffin's recurrent block: state and conv both ``lru_width`` wide."""

    lru_width: int
    heads: int
    conv_kernel: int
    kind: Literal["rglru"] = "rglru"


@dataclass(frozen=True, slots=True)
class RWKV7:
    """RWKV-7: state heads x head_dim^2, plus two token-shift vectors of the hidden width."""

    heads: int
    head_dim: int
    decay_lora: int = 0
    gate_lora: int = 0
    a_lora: int = 0
    v_lora: int = 0
    kind: Literal["rwkv7"] = "rwkv7"


@dataclass(frozen=True, slots=True)
class ShortConv:
    """Gated short convolution (LFM): window of ``conv_kernel`` columns, hidden wide, no matrix."""

    channels: int
    conv_kernel: int
    bias: bool = False
    kind: Literal["short_conv"] = "short_conv"


@dataclass(frozen=True, slots=True)
class NGramConv:
    """Dilated convolution over a layer's n-gram embedding (Qwen3.8-Flash-Next's PLE).

    It reads ``conv_kernel`` inputs ``dilation`` tokens apart. Only its window is described: the
    embedding's weights are not sized by the files seen so far.
    """

    channels: int
    conv_kernel: int
    dilation: int
    kind: Literal["ngram_conv"] = "ngram_conv"

    @property
    def window_tokens(self) -> int:
        """Inputs it looks back at, this token's own left out."""
        return (self.conv_kernel - 1) * self.dilation


@dataclass(frozen=True, slots=True)
class GatedMemoryUnit:
    """SambaY's GMU: gates the output of an earlier Mamba layer; no cache of its own."""

    inner: int
    kind: Literal["gmu"] = "gmu"


@dataclass(frozen=True, slots=True)
class IllustrativeState:
    """A recurrent state given by size only, in a hand-written ``model_type: hybridplan`` file.

    ``state_elements`` shard over tensor parallel ranks; ``conv_channels`` x (kernel) may be 0.
    """

    state_elements: int
    conv_channels: int = 0
    conv_kernel: int = 0
    kind: Literal["state"] = "state"


Recurrent: TypeAlias = (
    GatedDeltaNet
    | KimiDelta
    | Lightning
    | Mamba1
    | Mamba2
    | RGLRU
    | RWKV7
    | ShortConv
    | NGramConv
    | IllustrativeState
)
Attending: TypeAlias = Attention | LatentAttention | CompressedAttention
Mixer: TypeAlias = Attending | Recurrent | GatedMemoryUnit


@dataclass(frozen=True, slots=True)
class DenseMLP:
    """``matrices`` 3 for gated (SwiGLU), 2 for plain (relu2, gelu)."""

    intermediate: int
    matrices: int = 3
    bias: bool = False
    kind: Literal["dense"] = "dense"


@dataclass(frozen=True, slots=True)
class MoE:
    """Routed experts, plus shared experts of total width ``shared_intermediate`` (0: none).

    ``latent_dim``: experts work in a latent of that width behind two projections.
    """

    experts: int
    topk: int
    intermediate: int
    matrices: int = 3
    shared_intermediate: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    latent_dim: int | None = None
    expert_bias: bool = False
    dense_beside: DenseMLP | None = None
    kind: Literal["moe"] = "moe"


MLP: TypeAlias = DenseMLP | MoE


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. No mixer: an MLP in a slot of its own (Nemotron-H). Two: in parallel.

    ``shared_block``: the weights of the attention are those of block n, shared by other layers
    (Zamba2); its KV is not shared. ``extra_params`` holds weight-bearing parts no cache sees
    (norms, adapters, hyper-connections), by name: ``mixer_`` and ``mlp_`` names count with the
    mixers and MLPs, ``shared_`` names once per shared block.
    """

    index: int
    mixers: tuple[Mixer, ...]
    mlp: MLP | None
    norms: int = 2
    shared_block: int | None = None
    extra_params: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights and KV are stored, as the checkpoint states it.

    ``weight_bits`` is of the quantised linear layers; ``block_tokens`` style details stay in
    ``method``. ``excluded`` are the module patterns left in the model dtype. ``kv_dtype`` None: the
    checkpoint says nothing. ``experts_only``: nothing but routed experts is quantised (gpt-oss).
    ``overrides`` gives bits per weight, scales included, by module name; where it is not empty,
    modules it does not name stay in the model dtype.
    """

    method: str
    weight_bits: int
    scale_bits_per_weight: float = 0.0
    expert_bits: int | None = None
    expert_scale_bits_per_weight: float = 0.0
    experts_only: bool = False
    overrides: tuple[tuple[str, float], ...] = ()
    kv_dtype: str | None = None
    excluded: tuple[str, ...] = ()
    stated_in: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything the ledger, the plan and the simulators need to know of a model.

    ``draft_layers`` are MTP / next-n layers the checkpoint carries. ``prefix_tokens`` are learnt
    tokens put before every prompt (Hymba: 128). ``max_tokens`` is 0 where the file states no
    context length because the model has none (pure recurrent). ``state_dtype`` is what the config
    asks for (``mamba_ssm_dtype``), None where it is silent, and so is ``state_chunk_tokens``
    (``mamba_chunk_size``). ``sources`` maps "<mixer kind>.<field>"
    or "model.<field>" to the config key it came from. ``notes`` are sentences a user should read.
    """

    name: str
    model_type: str
    architecture: str
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    max_tokens: int
    dtype: str
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    prefix_tokens: int = 0
    state_dtype: str | None = None
    state_chunk_tokens: int | None = None
    quantization: Quantization | None = None
    extra_params: Mapping[str, int] = field(default_factory=dict)
    file: str = ""
    confidence: str = ""
    vision: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
