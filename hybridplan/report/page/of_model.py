"""A real model read as the explorer's settings, or a sentence that says why it has none."""

from __future__ import annotations

from typing import Any

from hybridplan.config.spec import (
    Attending,
    Attention,
    GatedDeltaNet,
    IllustrativeState,
    KimiDelta,
    LatentAttention,
    Lightning,
    Mamba1,
    Mamba2,
    Mixer,
    ModelSpec,
    Recurrent,
    ShortConv,
)
from hybridplan.errors import RefusalError
from hybridplan.ledger.conventions import conv_dtype, kv_dtype, model_dtype, state_dtype
from hybridplan.ledger.deployment import Deployment
from hybridplan.report.page.settings import KV_DTYPES, TRITON_GDN, Settings


def of_model(spec: ModelSpec, deployment: Deployment, memory_gib: int = 80) -> Settings:
    """The settings that stand for a real model.

    Raises RefusalError for a model whose caches are not one attention, one windowed attention and
    one kind of state at most.
    """
    full, window, state = _kinds(spec)
    _check_dtypes(spec, deployment, state)
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
        flashinfer_states=spec.model_type != TRITON_GDN,
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


def _check_dtypes(spec: ModelSpec, deployment: Deployment, state: Recurrent | None) -> None:
    stored = _short(kv_dtype(spec, deployment))
    known = (model_dtype(spec, deployment), *KV_DTYPES)
    if stored not in known:
        raise RefusalError(
            f"the explorer does not know KV dtype {stored}; start it with --kv-dtype "
            f"{', '.join(known[:-1])} or {known[-1]}"
        )
    if isinstance(state, KimiDelta) and deployment.state_dtype not in (None, "float32"):
        raise RefusalError(
            f"vLLM keeps the states of {spec.name}'s KDA layers in float32 whatever is asked; "
            f"drop --state-dtype {deployment.state_dtype}"
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
        channels = state.conv_channels
        kernel = state.conv_kernel if channels else kernel
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
