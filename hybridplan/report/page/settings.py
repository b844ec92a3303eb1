"""The explorer's settings: a model and its deployment as a few numbers one can move.

A setting is what a slider holds. ``as_spec`` builds the model that settings stand for, ``answer``
asks the planner and the ledger about it. The page does the same arithmetic in ``rules.js``; the
tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.config.spec import (
    Attention,
    GatedDeltaNet,
    IllustrativeState,
    KimiDelta,
    LatentAttention,
    Layer,
    Lightning,
    Mamba1,
    Mamba2,
    Mixer,
    ModelSpec,
    Recurrent,
    ShortConv,
    Window,
)
from hybridplan.ledger.crossover import attention_twin, crossover_tokens, request_bytes
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm

GIB = 1 << 30
ENGINE_RULES = "0.33"
TRITON_GDN = "olmo_hybrid"
KV_DTYPES = ("fp8", "int8_per_token_head", "int4_per_token_head")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the explorer's arithmetic reads. Sizes are whole-model counts (tp 1).

    ``full_layers``, ``window_layers`` and ``state_layers`` are counts of mixers; ``parallel`` of
    the attention layers hold a state beside their attention (Falcon-H1, Zamba2), so such a layer
    counts in both. ``order`` is the order in which kinds first appear. ``draft_layers`` are MTP
    layers that join the full attention when drafts are on. ``state_heads`` are value heads (Gated
    DeltaNet), heads, inner channels (Mamba-1) or channels (short convolution); ``state_key_heads``
    key heads or Mamba-2 groups. ``block_tokens`` 0 is the engine's choice. ``flashinfer_states``:
    the prefill kernel of Gated DeltaNet exports states; ``bounded_gate``: KDA's does.
    """

    attention: str
    order: tuple[str, ...]
    full_layers: int
    window_layers: int
    state_layers: int
    parallel: int
    draft_layers: int
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window_tokens: int
    window_kv_heads: int
    window_key_dim: int
    window_value_dim: int
    state_kind: str
    state_heads: int
    state_key_heads: int
    state_key_dim: int
    state_value_dim: int
    conv_kernel: int
    conv_channels: int
    conv_over_groups: bool
    flashinfer_states: bool
    bounded_gate: bool
    model_dtype: str
    kv_dtype: str
    state_dtype: str
    conv_dtype: str
    tp: int
    drafts: int
    prefix_caching: bool
    block_tokens: int
    batched_tokens: int
    context_tokens: int
    memory_gib: int


@dataclass(frozen=True, slots=True)
class Group:
    """One group of the plan: what it holds and one block's bytes in it."""

    kind: str
    layers: int
    block_tokens: int
    page_bytes: int
    content_bytes: int
    padding_bytes: int
    blocks_per_request: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the page shows. Bytes are per rank; ``crossover_tokens`` None where there is none.

    ``twin_bytes`` None: no attention to build a twin from.
    """

    block_tokens: int
    token_bytes: int
    state_bytes: int
    padded_state_bytes: int
    bytes_per_block: int
    num_blocks: int
    blocks_per_request: int
    kv_tokens: int
    groups: tuple[Group, ...]
    crossover_tokens: int | None
    hybrid_bytes: int
    twin_bytes: int | None


def _mixer(s: Settings) -> Recurrent:
    if s.state_kind == "gdn":
        return GatedDeltaNet(
            s.state_key_heads, s.state_heads, s.state_key_dim, s.state_value_dim, s.conv_kernel
        )
    if s.state_kind == "kda":
        return KimiDelta(s.state_heads, s.state_key_dim, s.conv_kernel, s.bounded_gate)
    if s.state_kind == "lightning":
        return Lightning(s.state_heads, s.state_key_dim)
    if s.state_kind == "mamba2":
        return Mamba2(
            s.state_heads,
            s.state_value_dim,
            s.state_key_dim,
            s.state_key_heads,
            s.conv_kernel,
            conv_over_groups=s.conv_over_groups,
        )
    if s.state_kind == "mamba1":
        return Mamba1(s.state_heads, s.state_key_dim, s.conv_kernel, dt_rank=1)
    if s.state_kind == "short_conv":
        return ShortConv(s.state_heads, s.conv_kernel)
    return IllustrativeState(s.state_heads, s.conv_channels, s.conv_kernel)


def as_spec(s: Settings) -> ModelSpec:
    """The model that the settings describe: kinds in ``order``, MLPs left out."""
    if s.attention == "mla":
        full: Mixer = LatentAttention(s.query_heads, s.key_dim, 0, 128, 128)
    else:
        full = Attention(s.query_heads, s.kv_heads, s.key_dim, s.value_dim)
    near = Attention(
        s.query_heads,
        s.window_kv_heads,
        s.window_key_dim,
        s.window_value_dim,
        Window("sliding", s.window_tokens),
    )
    counts = {"full": s.full_layers, "window": s.window_layers}
    both = min(s.parallel, s.state_layers, s.full_layers + s.window_layers)
    counts["state"] = s.state_layers - both
    made = {"full": full, "window": near, "state": _mixer(s)}
    stacks: list[tuple[Mixer, ...]] = []
    paired = 0
    for kind in s.order:
        for _ in range(counts[kind]):
            pair = kind != "state" and paired < both
            stacks.append((made[kind], made["state"]) if pair else (made[kind],))
            paired += pair
    return ModelSpec(
        name="explored",
        model_type="hybridplan" if s.flashinfer_states else TRITON_GDN,
        architecture="",
        hidden_size=1,
        vocab_size=1,
        tied_embeddings=True,
        max_tokens=1 << 40,
        dtype=s.model_dtype,
        layers=tuple(Layer(i, mixers, None) for i, mixers in enumerate(stacks)),
        draft_layers=tuple(Layer(len(stacks) + i, (full,), None) for i in range(_drafting(s))),
    )


def _drafting(s: Settings) -> int:
    """MTP layers: copies of the full attention, so none without it."""
    return s.draft_layers if s.full_layers else 0


def deployment_of(s: Settings) -> Deployment:
    """The deployment part of the settings; KDA's state stays what vLLM makes it."""
    return Deployment(
        "vllm",
        ENGINE_RULES,
        tp=s.tp,
        kv_dtype=s.kv_dtype,
        state_dtype=None if s.state_kind == "kda" else s.state_dtype,
        conv_dtype=s.conv_dtype,
        drafts=s.drafts,
    )


def plan_of(s: Settings) -> PoolPlan:
    """The planner's pool. Raises HybridplanError as ``hybridplan plan`` would."""
    options = VllmOptions(
        max_model_len=s.context_tokens,
        max_num_batched_tokens=s.batched_tokens,
        prefix_caching=s.prefix_caching,
        block_tokens=s.block_tokens or None,
        draft_method="mtp" if _drafting(s) else "ngram",
    )
    return plan_vllm(as_spec(s), deployment_of(s), options, s.memory_gib * GIB)


def answer(s: Settings) -> Answer:
    """The planner's and the ledger's word on the settings. Raises HybridplanError."""
    spec, deployment = as_spec(s), deployment_of(s)
    pool = plan_of(s)
    twin = attention_twin(spec)
    found = pool.alignment
    assert found is not None
    return Answer(
        block_tokens=pool.block_tokens,
        token_bytes=found.token_bytes,
        state_bytes=found.state_bytes,
        padded_state_bytes=found.state_page_bytes or found.state_bytes,
        bytes_per_block=pool.bytes_per_block,
        num_blocks=pool.num_blocks,
        blocks_per_request=sum(pool.blocks_per_request),
        kv_tokens=pool.kv_tokens,
        groups=tuple(
            Group(
                _GROUP_KIND.get(group.kind, "state"),
                len(group.layers),
                group.block_tokens,
                group.caches[0].page_bytes,
                group.content_bytes,
                padding,
                blocks,
            )
            for group, padding, blocks in zip(
                pool.groups, pool.padding_bytes(), pool.blocks_per_request, strict=True
            )
        ),
        crossover_tokens=crossover_tokens(spec, deployment),
        hybrid_bytes=request_bytes(spec, deployment)(s.context_tokens),
        twin_bytes=None if twin is None else request_bytes(twin, deployment)(s.context_tokens),
    )


_GROUP_KIND = {"full": "full", "mla": "full", "sliding": "window"}
