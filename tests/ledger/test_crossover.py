"""The crossover against a linear search over a second, plain way to count bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan import Deployment, ledger, load
from hybridplan.config.spec import Attention, GatedDeltaNet, Layer, Mixer, ModelSpec, Window
from hybridplan.ledger.crossover import attention_twin, crossover_tokens

LIMIT = 4000


def _model(kinds: str, attention: Attention, linear: GatedDeltaNet) -> ModelSpec:
    mixers: dict[str, tuple[Mixer, ...]] = {
        "F": (attention,),
        "L": (linear,),
        "B": (attention, linear),
    }
    layers = tuple(Layer(i, mixers[kind], None) for i, kind in enumerate(kinds))
    return ModelSpec("m", "m", "M", 64, 128, False, 4096, "bfloat16", layers)


def _naive_bytes(spec: ModelSpec, tokens: int) -> int:
    """vLLM's rules for the two mixers at tp 1 written out: bf16 KV and state, K - 1 columns."""
    total = 0
    for layer in spec.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                kept = min(tokens, mixer.window.tokens) if mixer.window else tokens
                total += kept * mixer.kv_heads * (mixer.key_dim + mixer.value_dim) * 2
            elif isinstance(mixer, GatedDeltaNet):
                state = mixer.value_heads * mixer.key_dim * mixer.value_dim
                width = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
                total += (state + width * (mixer.conv_kernel - 1)) * 2
    return total


def _naive_crossover(spec: ModelSpec, twin: ModelSpec) -> int | None:
    for tokens in range(LIMIT):
        if _naive_bytes(spec, tokens) <= _naive_bytes(twin, tokens):
            return tokens
    return None


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.text("FLB", min_size=2, max_size=5).filter(lambda k: "L" in k and k != "L" * len(k)),
    kv_heads=st.integers(1, 4),
    head_dim=st.sampled_from([8, 16]),
    window=st.none() | st.integers(1, 60),
    value_heads=st.integers(1, 8),
    key_dim=st.sampled_from([4, 8, 16]),
    kernel=st.integers(2, 4),
)
def test_bisection_finds_what_a_walk_finds(
    kinds: str,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    value_heads: int,
    key_dim: int,
    kernel: int,
) -> None:
    bound = Window("sliding", window) if window is not None else None
    attention = Attention(4, kv_heads, head_dim, head_dim, window=bound)
    linear = GatedDeltaNet(1, value_heads, key_dim, 16, kernel)
    spec = _model(kinds, attention, linear)
    twin = attention_twin(spec)
    assert twin is not None
    assert crossover_tokens(spec, Deployment()) == _naive_crossover(spec, twin)
    account = ledger(spec, contexts=[1, 7, 300])
    for line in account.contexts:
        assert line.hybrid_bytes == _naive_bytes(spec, line.tokens)
        assert line.twin_bytes == _naive_bytes(twin, line.tokens)


def test_twin_takes_the_unwindowed_attention() -> None:
    window = Attention(4, 2, 16, 16, window=Window("sliding", 8))
    full = Attention(4, 2, 16, 16)
    linear = GatedDeltaNet(1, 2, 8, 16, 4)
    spec = _model("LLL", full, linear)
    layers = (Layer(0, (window,), None), Layer(1, (full,), None), *spec.layers[2:])
    twin = attention_twin(replace(spec, layers=layers))
    assert twin is not None
    assert [layer.mixers for layer in twin.layers] == [(window,), (full,), (full,)]


@pytest.mark.parametrize(
    "name, reason",
    [
        pytest.param("llama-3.1-8b", "own twin", id="no-recurrent-layer"),
        pytest.param("falcon-mamba-7b", "no attention layer", id="no-attention-layer"),
        pytest.param("falcon-h1-7b-base", "the states come on top", id="parallel-in-every-layer"),
    ],
)
def test_models_without_a_crossover_say_why(name: str, reason: str) -> None:
    crossover = ledger(load(name)).crossover
    assert crossover.tokens is None
    assert reason in crossover.reason
    assert crossover.movers == ()


def test_share_of_attention_does_not_move_it_but_heads_dtype_and_ranks_do() -> None:
    account = ledger(load("qwen3.5-0.8b"))
    moved = {mover.change: mover.tokens for mover in account.crossover.movers}
    assert moved == {
        "bf16 state": 274,
        "fp8 KV": 1060,
        "twice the KV heads": 265,
        "1 draft": 536,
        "TP 2": 530,
        "TP 4": 265,
        "TP 8": 133,
    }
    spec = load("qwen3.5-0.8b")
    fewer = replace(spec, layers=spec.layers[:3] + spec.layers[:4])
    assert ledger(fewer).crossover.tokens == 530
