"""What layers hold, by rank and by engine: properties, and cuts that are refused."""

from __future__ import annotations

from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan import Deployment, HybridplanError, load
from hybridplan.config.catalogue import entries
from hybridplan.config.spec import Window
from hybridplan.errors import InputError
from hybridplan.ledger.caches import TokenCache, layer_caches, model_caches
from hybridplan.ledger.kv_formats import head_bytes, kv_format, latent_bytes
from hybridplan.ledger.sharding import kv_heads_per_rank, pipeline_stages, split

SIZES = (2, 4, 8)


@pytest.mark.parametrize("name", list(entries()))
def test_ranks_together_hold_the_model_once_and_the_copies(name: str) -> None:
    """Bytes of a rank x ranks / copies are those of one rank, but for groups that are repeated."""
    spec = load(name)
    whole = model_caches(spec, Deployment())
    for tp in SIZES:
        try:
            parts = model_caches(spec, Deployment(tp=tp))
        except HybridplanError:
            continue  # refused; test_split_names_the_next_size_that_works and its like say how
        for layer, one in zip(parts, whole, strict=True):
            for cache, full in zip(layer.tokens, one.tokens, strict=True):
                assert cache.bytes_per_entry * tp == full.bytes_per_entry * cache.copies
            for state, all_of_it in zip(layer.states, one.states, strict=True):
                together = state.bytes * tp
                if state.name == "conv" and "mamba2" in layer.kinds:
                    assert together >= all_of_it.bytes * state.copies
                else:
                    assert together == all_of_it.bytes * state.copies


def _held_one_by_one(cache: TokenCache, tokens: int) -> int:
    """Feed tokens one at a time; keep a list of positions."""
    kept: list[int] = []
    for position in range(tokens):
        kept.append(position)
        if cache.window_tokens is not None:
            kept = kept[-cache.window_tokens :] if cache.window_tokens else []
    rank_0 = [
        slot for slot in range(len(kept) + cache.sink_tokens) if slot % cache.context_ranks == 0
    ]
    entries_, pending = 0, 0
    for _ in rank_0:
        pending += 1
        if pending == cache.tokens_per_entry:
            entries_, pending = entries_ + 1, 0
    return entries_ * cache.bytes_per_entry + pending * cache.pending_bytes


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.integers(0, 200),
    per_entry=st.integers(1, 8),
    window=st.none() | st.integers(1, 100),
    sinks=st.integers(0, 16),
    ranks=st.integers(1, 4),
    pending=st.integers(0, 7),
)
def test_held_bytes_against_one_token_at_a_time(
    tokens: int, per_entry: int, window: int | None, sinks: int, ranks: int, pending: int
) -> None:
    bound = Window("sliding", window) if window is not None else None
    cache = TokenCache(
        "kv", 1, 8, 8, "bfloat16", 32, per_entry, bound, window, sinks, 1, ranks, 1, pending
    )
    assert cache.bytes(tokens) == _held_one_by_one(cache, tokens)


@given(
    count=st.integers(1, 40), stages=st.integers(1, 40), engine=st.sampled_from(["vllm", "sglang"])
)
def test_stages_are_a_partition(count: int, stages: int, engine: str) -> None:
    layers = list(range(count))
    if stages > count:
        with pytest.raises(InputError, match=f"{stages} is larger than the {count} layers"):
            pipeline_stages(layers, stages, engine)
        return
    cut = pipeline_stages(layers, stages, engine)
    assert [layer for stage in cut for layer in stage] == layers
    sizes = [len(stage) for stage in cut]
    assert max(sizes) - min(sizes) <= 1
    if count % stages and engine == "vllm" and stages > 1:
        assert sizes[-1] == min(sizes)
    if count % stages and engine == "sglang":
        assert sizes[-1] == max(sizes)


@given(heads=st.integers(1, 64), tp=st.integers(1, 64))
def test_kv_heads_are_divided_or_repeated(heads: int, tp: int) -> None:
    if lcm(heads, tp) != max(heads, tp):
        with pytest.raises(InputError, match=rf"{tp}.*{heads}"):
            kv_heads_per_rank(heads, tp)
        return
    each, copies = kv_heads_per_rank(heads, tp)
    assert each * tp == heads * copies


def test_split_names_the_next_size_that_works() -> None:
    with pytest.raises(InputError, match=r"size 12 does not divide the 32 heads; .* is 8"):
        split(32, 12, "heads")


@pytest.mark.parametrize(
    "name, row",
    [
        ("bf16", 1024),
        ("fp8", 512),
        ("int8_per_token_head", 520),
        ("fp8_per_token_head", 520),
        ("int4_per_token_head", 264),
        ("nvfp4", 288),
        ("q8_0", 544),
        ("q4_0", 288),
    ],
)
def test_row_of_a_256_wide_head(name: str, row: int) -> None:
    assert head_bytes(256, 256, kv_format(name)) == row


@pytest.mark.parametrize(
    "name, row", [("bf16", 1152), ("fp8", 576), ("fp8_ds_mla", 656), ("nvfp4_ds_mla", 352)]
)
def test_row_of_a_576_wide_latent(name: str, row: int) -> None:
    assert latent_bytes(576, kv_format(name)) == row


def test_context_ranks_share_the_tokens_of_a_latent_but_not_states() -> None:
    spec = load("kimi-linear")
    alone, shared = (model_caches(spec, Deployment(tp=4, dcp=dcp)) for dcp in (1, 4))
    assert shared[3].token_bytes(1001) == 251 * 1152
    assert alone[3].token_bytes(1001) == 1001 * 1152
    assert shared[0].states == alone[0].states


def test_groups_that_do_not_divide_are_one_to_a_rank() -> None:
    spec = load("bamba-9b")
    (conv,) = (
        s for s in layer_caches(spec.layers[0], spec, Deployment(tp=8)).states if s.name == "conv"
    )
    assert conv.shape == (3, 128 // 8 * 64 + 2 * 128)


@pytest.mark.parametrize(
    "name, engine, state, conv",
    [
        ("qwen3.5-0.8b", "vllm", "float32", "bfloat16"),
        ("qwen3-next-80b-a3b-instruct", "vllm", "bfloat16", "bfloat16"),
        ("qwen3-next-80b-a3b-instruct", "sglang", "float32", "bfloat16"),
        ("qwen3-next-80b-a3b-instruct", "transformers", "float32", "bfloat16"),
        ("qwen3-next-80b-a3b-instruct", "llama.cpp", "float32", "float32"),
        ("qwen3-next-80b-a3b-instruct", "mlx", "bfloat16", "bfloat16"),
        ("kimi-linear", "vllm", "float32", "bfloat16"),
        ("nemotron-nano-9b-v2", "vllm", "float32", "bfloat16"),
        ("bamba-9b", "vllm", "bfloat16", "bfloat16"),
        ("ling-2.6-flash", "vllm", "bfloat16", None),
    ],
)
def test_dtypes_the_engine_picks(name: str, engine: str, state: str, conv: str | None) -> None:
    spec = load(name)
    layers = model_caches(spec, Deployment(engine))  # type: ignore[arg-type]
    picked = {s.name: s.dtype for layer in layers for s in layer.states}
    assert (picked["state"], picked.get("conv")) == (state, conv)


def test_the_checkpoints_kv_dtype_is_followed_by_serving_engines_only() -> None:
    spec = load("nemotron-3-nano-30b-a3b-nvfp4")
    assert spec.quantization is not None
    assert spec.quantization.kv_dtype is not None
    for engine, dtype in (("vllm", "float8_e4m3fn"), ("transformers", "bfloat16")):
        layers = model_caches(spec, Deployment(engine))  # type: ignore[arg-type]
        assert {c.dtype for layer in layers for c in layer.tokens} == {dtype}
