"""A step's counts: repeats against passes one by one, totals against the ledger's bytes."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridplan
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.weights import weights
from hybridplan.ledger.work import Counts, StepWork, WorkModel, work_model

MODELS = (
    "qwen3.5-0.8b",
    "kimi-linear",
    "qwen3-next",
    "gemma-3-27b-it",
    "gpt-oss-20b",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "jamba-v0.1",
    "hymba-1.5b-base",
    "qwen3.8-flash-next",
)


@cache
def model_of(name: str, tp: int = 1) -> WorkModel:
    return work_model(hybridplan.load(name), Deployment("vllm", tp=tp))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(MODELS), st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    st.integers(1, 200),
)  # fmt: skip
def test_repeats_are_passes_one_by_one(name: str, contexts: list[int], repeats: int) -> None:
    model, rows = model_of(name), len(contexts)
    total = Counts()
    for n in range(repeats):
        total = total.plus(model.counts(StepWork([c + n for c in contexts], head_rows=rows)))
    assert model.counts(StepWork(contexts, head_rows=rows, repeats=repeats)) == total


@pytest.mark.parametrize("name", MODELS)
def test_a_decode_step_reads_weights_states_and_kv_of_the_ledger(name: str) -> None:
    """Nothing but activations comes on top, and they are small beside the weights."""
    spec, context = hybridplan.load(name), 4096
    layers = model_caches(spec, Deployment("vllm"))
    model = model_of(name)
    moved = model.counts(StepWork([context], head_rows=1)).bytes
    states = 2 * sum(layer.state_bytes for layer in layers)
    assert 2 * (model.state_bytes + model.window_bytes) == states
    stored = {c.name: c for c in weights(spec).components}
    read = sum(
        c.bytes
        for c in stored.values()
        if c.name not in ("embeddings", "experts", "tables", "draft", "vision")
    )
    if spec.tied_embeddings:
        read += stored["embeddings"].bytes
    if "experts" in stored:
        routed = stored["experts"]
        read += routed.bytes * routed.active_params // routed.params
    floor = read + states
    kv = sum(rate * reach.read(context) for reach, rate in model.read_bytes.items())
    assert 0.97 * (floor + kv) < moved < 1.06 * (floor + kv)


@pytest.mark.parametrize("name", ["qwen3.5-0.8b", "kimi-linear", "llama-3.1-8b", "gpt-oss-20b"])
def test_flop_of_a_token_is_twice_its_active_weights(name: str) -> None:
    spec = hybridplan.load(name)
    found = weights(spec)
    model = model_of(name)
    embeddings = next(c for c in found.components if c.name == "embeddings")
    active = found.active_params - embeddings.active_params
    if spec.tied_embeddings:
        active += embeddings.params
    flop = model.counts(StepWork([1], head_rows=1)).dense_flop
    assert flop == pytest.approx(2 * active, rel=0.01)


def test_two_ranks_do_half_the_products_each() -> None:
    work = StepWork(chunks=[(0, 2048)], head_rows=1)
    one, two = (model_of("llama-3.1-8b", tp).counts(work) for tp in (1, 2))
    assert two.dense_flop * 2 == one.dense_flop
    assert two.attention_flop * 2 == one.attention_flop
    assert two.launches == one.launches


def test_a_chunk_that_starts_later_costs_what_comes_before_it() -> None:
    model = model_of("llama-3.1-8b")
    whole = model.counts(StepWork(chunks=[(0, 2048)], head_rows=1))
    first = model.counts(StepWork(chunks=[(0, 1024)], head_rows=0))
    second = model.counts(StepWork(chunks=[(1024, 1024)], head_rows=1))
    assert first.attention_flop + second.attention_flop == whole.attention_flop
    kv_bytes = model.counts(StepWork([2], head_rows=1)).bytes
    kv_bytes -= model.counts(StepWork([1], head_rows=1)).bytes
    extra = first.plus(second).less(whole).bytes
    assert extra == model.once.bytes + 1024 * kv_bytes


def test_a_verify_window_leaves_a_state_for_each_of_its_tokens() -> None:
    model = model_of("qwen3.5-0.8b")
    narrow = model.counts(StepWork(windows=[(100, 2)], head_rows=2)).bytes
    wide = model.counts(StepWork(windows=[(100, 3)], head_rows=3)).bytes
    rest = model.row.bytes + model.decode_row.bytes + model.head_row.bytes
    assert wide - narrow == model.state_bytes + rest + sum(model.read_bytes.values())


def test_drafts_are_proposed_by_passes_of_the_mtp_layer_and_the_head() -> None:
    spec = hybridplan.load("qwen3.5-0.8b")
    model = work_model(spec, Deployment("vllm", drafts=3))
    assert model.draft is not None
    assert model_of("qwen3.5-0.8b").draft is None
    hidden, table = spec.hidden_size, 2 * spec.hidden_size * spec.vocab_size
    projection = 2 * 2 * hidden * hidden
    layer = model.draft.once.bytes - table
    assert layer == pytest.approx(projection + model.once.bytes / 24 - table / 24, rel=0.5)
    work = StepWork(windows=[(100, 4), (200, 4)], head_rows=8)
    proposing = StepWork(windows=[(100, 4), (200, 4)], head_rows=8, proposed=3)
    extra = model.counts(proposing).less(model.counts(work))
    assert extra.step == 0
    first = model.draft.counts(StepWork(windows=[(100, 4), (200, 4)], head_rows=2))
    then = model.draft.counts(StepWork([105, 205], head_rows=2, repeats=2))
    assert extra == first.plus(then)._replace(step=0)


def test_chunks_that_end_no_prompt_propose_nothing_after_the_first_pass() -> None:
    model = work_model(hybridplan.load("qwen3.5-0.8b"), Deployment("vllm", drafts=2))
    assert model.draft is not None
    chunk = StepWork(chunks=[(0, 64), (0, 64)], head_rows=1, proposed=2)
    extra = model.counts(chunk).less(model.counts(StepWork(chunks=chunk.chunks, head_rows=1)))
    first = model.draft.counts(StepWork(chunks=chunk.chunks, head_rows=1))
    then = model.draft.counts(StepWork([65], head_rows=1))
    assert extra == first.plus(then)._replace(step=0)


def test_an_empty_pass_counts_nothing() -> None:
    assert model_of("qwen3.5-0.8b").counts(StepWork(copied_bytes=100)) == Counts()
