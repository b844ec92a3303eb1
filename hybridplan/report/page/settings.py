"""The explorer's settings: a model and its deployment as a few numbers one can move.

A setting is what a slider holds. ``of_model`` reads them off a real model, ``as_spec`` builds the
model they stand for, and ``answer`` asks the planner and the ledger about it. The page does the
same arithmetic in ``rules.js``; the tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridplan.config.spec import (
    Attending,
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
from hybridplan.errors import RefusalError
from hybridplan.ledger.conventions import conv_dtype, kv_dtype, model_dtype, state_dtype
from hybridplan.ledger.crossover import attention_twin, crossover_tokens, request_bytes
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm

GIB = 1 << 30
ENGINE_RULES = "0.33"
_TRITON_GDN = "olmo_hybrid"


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


def of_model(spec: ModelSpec, deployment: Deployment, memory_gib: int = 80) -> Settings:
    """The settings that stand for a real model.

    Raises RefusalError for a model whose caches are not one attention, one windowed attention and
    one kind of state at most.
    """
    full, window, state = _kinds(spec)
    attention = full or window
    latent = isinstance(full, LatentAttention)
    near = window or (full if isinstance(full, Attention) else None)
    drafted = [m for layer in spec.draft_layers for m in layer.mixers]
    layers = [layer for layer in spec.layers if layer.mixers]
    return Settings(
        attention="mla" if latent else "gqa",
        order=_order(spec),
        full_layers=_count(spec, full),
        window_layers=_count(spec, window),
        state_layers=_count(spec, state),
        parallel=sum(len(layer.mixers) > 1 for layer in layers),
        draft_layers=len(drafted) if full and all(_same(m, full) for m in drafted) else 0,
        query_heads=attention.heads if attention else 64,
        kv_heads=full.kv_heads if isinstance(full, Attention) else 8,
        key_dim=_width(full) if full else 128,
        value_dim=full.value_dim if isinstance(full, Attention) else 0 if latent else 128,
        window_tokens=window.window.tokens if window and window.window else 1024,
        window_kv_heads=near.kv_heads if near else 8,
        window_key_dim=near.key_dim if near else 128,
        window_value_dim=near.value_dim if near else 128,
        **_state_fields(state),
        flashinfer_states=spec.model_type != _TRITON_GDN,
        bounded_gate=isinstance(state, KimiDelta) and state.bounded_gate,
        model_dtype=model_dtype(spec, deployment),
        kv_dtype=_short(kv_dtype(spec, deployment)),
        state_dtype=state_dtype(spec, state, deployment) if state else "float32",
        conv_dtype=conv_dtype(spec, deployment),
        tp=deployment.tp,
        drafts=deployment.drafts,
        prefix_caching=attention is not None,
        block_tokens=0,
        batched_tokens=8192,
        context_tokens=min(spec.max_tokens or 131072, 131072),
        memory_gib=memory_gib,
    )


def _same(mixer: Mixer, full: Attention | LatentAttention) -> bool:
    if isinstance(mixer, Attention) and isinstance(full, Attention):
        return mixer.window is None and (mixer.kv_heads, mixer.key_dim, mixer.value_dim) == (
            full.kv_heads,
            full.key_dim,
            full.value_dim,
        )
    return isinstance(mixer, LatentAttention) and _width(mixer) == _width(full)


def _short(dtype: str) -> str:
    return "fp8" if dtype.startswith("float8") else dtype


def _width(mixer: Attending) -> int:
    if isinstance(mixer, LatentAttention):
        return mixer.kv_lora_rank + mixer.rope_dim
    assert isinstance(mixer, Attention)
    return mixer.key_dim


def _kinds(
    spec: ModelSpec,
) -> tuple[Attention | LatentAttention | None, Attention | None, Recurrent | None]:
    mixers = list(dict.fromkeys(m for layer in spec.layers for m in layer.mixers))
    full: list[Attention | LatentAttention] = []
    window: list[Attention] = []
    states: list[Recurrent] = []
    for mixer in mixers:
        odd = mixer.kind in ("compressed", "gmu", "ngram_conv", "rglru", "rwkv7")
        if isinstance(mixer, Attention | LatentAttention) and mixer.indexer is not None:
            odd = True
        if isinstance(mixer, Attention):
            odd |= mixer.kv_source_layer is not None
            odd |= mixer.window is not None and mixer.window.kind != "sliding"
            (full if mixer.window is None else window).append(mixer)
        elif isinstance(mixer, LatentAttention):
            full.append(mixer)
        else:
            states.append(mixer)  # type: ignore[arg-type]
        if odd:
            raise RefusalError(
                f"{spec.name} has {_spoken(mixer)}, which the explorer has no sliders for; "
                "`hybridplan plan` and `hybridplan ledger` answer for it"
            )
    latent = bool(full) and isinstance(full[0], LatentAttention)
    if max(len(full), len(window), len(states)) > 1 or (latent and window) or spec.prefix_tokens:
        raise RefusalError(
            f"{spec.name} mixes {len(full)} full, {len(window)} windowed and {len(states)} "
            "recurrent shapes, and the explorer moves one of each; `hybridplan plan` answers for it"
        )
    one = next(iter(full), None), next(iter(window), None), next(iter(states), None)
    if one[2] is not None and not isinstance(one[2], _STATES):
        raise RefusalError(f"{spec.name} has {one[2].kind} layers, which the explorer cannot move")
    return one


_STATES = (GatedDeltaNet, KimiDelta, Lightning, Mamba1, Mamba2, ShortConv, IllustrativeState)


def _spoken(mixer: Mixer) -> str:
    if getattr(mixer, "indexer", None) is not None:
        return "sparse attention with an index"
    if getattr(mixer, "kv_source_layer", None) is not None:
        return "layers that share another layer's KV"
    return {"compressed": "compressed attention", "gmu": "gated memory units"}.get(
        mixer.kind, f"{mixer.kind} layers"
    )


def _count(spec: ModelSpec, wanted: Mixer | None) -> int:
    return sum(mixer == wanted for layer in spec.layers for mixer in layer.mixers)


def _order(spec: ModelSpec) -> tuple[str, ...]:
    found = [_kind(m) for layer in spec.layers for m in layer.mixers]
    return tuple(dict.fromkeys([*found, "full", "window", "state"]))


def _kind(mixer: Mixer) -> str:
    if isinstance(mixer, Attention):
        return "full" if mixer.window is None else "window"
    return "full" if isinstance(mixer, LatentAttention) else "state"


def _state_fields(state: Recurrent | None) -> dict[str, Any]:
    heads, key_heads, key_dim, value_dim, kernel, channels, over = 32, 16, 128, 128, 4, 0, True
    kind = state.kind if state is not None else "gdn"
    if isinstance(state, GatedDeltaNet):
        heads, key_heads, kernel = state.value_heads, state.key_heads, state.conv_kernel
        key_dim, value_dim = state.key_dim, state.value_dim
    elif isinstance(state, KimiDelta | Lightning):
        heads, key_heads, key_dim, value_dim = state.heads, 1, state.head_dim, state.head_dim
        kernel = state.conv_kernel if isinstance(state, KimiDelta) else kernel
    elif isinstance(state, Mamba2):
        heads, key_heads, kernel = state.heads, state.groups, state.conv_kernel
        key_dim, value_dim, over = state.state_dim, state.head_dim, state.conv_over_groups
    elif isinstance(state, Mamba1):
        heads, key_heads, key_dim, value_dim = state.inner, 1, state.state_dim, 1
        kernel = state.conv_kernel
    elif isinstance(state, ShortConv):
        heads, key_heads, key_dim, value_dim = state.channels, 1, 0, 0
        kernel = state.conv_kernel
    elif isinstance(state, IllustrativeState):
        heads, key_heads, key_dim, value_dim = state.state_elements, 1, 1, 1
        kernel, channels = max(state.conv_kernel, 1), state.conv_channels
    return {
        "state_kind": kind,
        "state_heads": heads,
        "state_key_heads": key_heads,
        "state_key_dim": key_dim,
        "state_value_dim": value_dim,
        "conv_kernel": kernel,
        "conv_channels": channels,
        "conv_over_groups": over,
    }


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
        model_type="hybridplan" if s.flashinfer_states else _TRITON_GDN,
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
