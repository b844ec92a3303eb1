"""Paged attention against dense attention for any block table, split and context."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from hybridplan.kernels.common.checks import KernelInputError
from hybridplan.kernels.common.recipe import Recipes
from hybridplan.kernels.paged_attention import recurrent
from hybridplan.kernels.paged_attention.chunk import prefill_gqa
from hybridplan.kernels.paged_attention.recurrent import Tile, decode_gqa, decode_mla
from hybridplan.kernels.paged_attention.reference import (
    gather_pages,
    gqa_decode_reference,
    mla_decode_reference,
)

PAGE, BLOCKS = 16, 24

FP32 = 3e-5 if torch.cuda.is_available() else 3e-6
"""Bound for fp32 inputs: the card splits a product into three of tf32, the interpreter does not."""


def error(x: torch.Tensor, reference: torch.Tensor) -> float:
    return float((x.double().cpu() - reference.cpu()).norm() / reference.norm())


class Case:
    """Random GQA caches as two interleaved views of one allocation, and shuffled pages."""

    def __init__(self, device, contexts, shape=(4, 2, 16, 16), dtype=torch.float32, seed=0):
        HQ, HKV, D, V = shape
        gen = torch.Generator().manual_seed(seed)
        B = len(contexts)
        cache = torch.randn((BLOCKS, 2, PAGE, HKV, max(D, V)), generator=gen).to(device, dtype)
        if D == V:
            self.keys, self.values = cache[:, 0], cache[:, 1]
        else:
            self.keys = cache[:, 0, ..., :D].contiguous()
            self.values = cache[:, 1, ..., :V].contiguous()
        self.q = torch.randn((B, HQ, D), generator=gen).to(device, dtype)
        pages = torch.randperm(BLOCKS, generator=gen)[: B * (BLOCKS // B)]
        self.table = pages.view(B, -1).to(device, torch.int32)
        self.contexts = torch.tensor(contexts, dtype=torch.int32, device=device)

    @property
    def inputs(self):
        return self.q, self.keys, self.values, self.table, self.contexts

    def expected(self, scale):
        return gqa_decode_reference(*(x.cpu() for x in self.inputs), scale=scale)


@pytest.mark.parametrize("splits", [1, 3, 8])
@pytest.mark.parametrize(
    "shape",
    [(4, 2, 16, 16), (3, 3, 24, 40), (20, 1, 16, 16)],
    ids=lambda s: "HQ{}-HKV{}-D{}-V{}".format(*s),
)
def test_gqa_matches_fp64(device, shape, splits):
    case = Case(device, [1, 100, 33], shape)
    out = decode_gqa(*case.inputs, scale=0.2, tile=Tile(32, splits, 4, 2))
    assert error(out, case.expected(0.2)) < FP32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_gqa_of_half_precision(device, dtype):
    case = Case(device, [90, 120], dtype=dtype)
    assert error(decode_gqa(*case.inputs), case.expected(16**-0.5)) < 5e-3


@settings(max_examples=10, deadline=None)
@given(
    contexts=st.lists(st.integers(1, 120), min_size=1, max_size=3),
    splits=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_gqa_is_dense_attention_for_any_block_table(device, contexts, splits, seed):
    case = Case(device, contexts, seed=seed)
    out = decode_gqa(*case.inputs, tile=Tile(16, splits, 4, 2))
    for b, tokens in enumerate(contexts):
        keys, values = (
            gather_pages(cache, case.table[b], tokens).transpose(0, 1)[None].double()
            for cache in (case.keys, case.values)
        )
        q = case.q[b][None, :, None].double()
        dense = scaled_dot_product_attention(q, keys, values, enable_gqa=True)[0, :, 0]
        assert error(out[b], dense) < FP32


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("heads", [16, 20], ids="HQ{}".format)
def test_mla_matches_fp64(device, heads, splits):
    case = Case(device, [1, 100, 40], (heads, 1, 40, 40))
    cache = case.keys[:, :, 0].contiguous()
    options = {"latent_width": 32, "scale": 0.2}
    inputs = (case.q, cache, case.table, case.contexts)
    out = decode_mla(*inputs, **options, tile=Tile(32, splits, 4, 2))
    expected = mla_decode_reference(*(x.cpu() for x in inputs), **options)
    assert error(out, expected) < FP32


def test_padding_rows_and_unread_pages_may_be_poison(device):
    case = Case(device, [20, 0, 33])
    used = {int(p) for b, n in ((0, 2), (2, 3)) for p in case.table[b, :n]}
    for block in set(range(BLOCKS)) - used:
        case.keys[block] = case.values[block] = float("nan")
    case.keys[case.table[0, 1], 4:] = case.values[case.table[0, 1], 4:] = float("nan")
    case.table[0, 2:] = 9999
    out = torch.full((3, 4, 16), float("nan"), device=device)
    decode_gqa(*case.inputs, out=out, tile=Tile(32, 3, 4, 2))
    assert bool(out[[0, 2]].isfinite().all())
    assert bool(out[1].isnan().all())


def test_permuting_requests_permutes_results(device):
    case = Case(device, [20, 70, 33])
    order = [2, 0, 1]
    out = decode_gqa(*case.inputs)
    case.q, case.table, case.contexts = case.q[order], case.table[order], case.contexts[order]
    assert torch.equal(decode_gqa(*case.inputs), out[order])


def test_prefill_is_decode_token_by_token(device):
    case = Case(device, [6, 40, 5])
    fresh = [4, 2, 5]
    q = torch.randn(sum(fresh), 4, 16, device=device)
    out = prefill_gqa(q, case.keys, case.values, case.table, case.contexts, [0, 4, 6, 11])
    requests = [b for b, n in enumerate(fresh) for _ in range(n)]
    contexts = [3, 4, 5, 6, 39, 40, 1, 2, 3, 4, 5]
    case.q, case.table = q, case.table[requests]
    case.contexts = torch.tensor(contexts, dtype=torch.int32, device=device)
    assert error(out, case.expected(16**-0.5)) < FP32


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"table": torch.full((2, 12), BLOCKS)}, "holds block 24, the cache has 24"),
        ({"contexts": torch.tensor([5, 193])}, "has 193 tokens, its block table holds 192"),
        ({"q": torch.ones(2, 3, 16)}, "not a multiple"),
        ({"q": torch.ones(2, 4, 15)}, "q has shape"),
        ({"keys": torch.ones(BLOCKS, PAGE, 2, 16).half()}, "needed float16"),
    ],
    ids=["block", "context", "heads", "width", "dtype"],
)
def test_wrong_inputs_raise(device, change, sentence):
    case = Case(device, [20, 30])
    for name, x in change.items():
        setattr(
            case, name, x.to(device, torch.int32) if not x.is_floating_point() else x.to(device)
        )
    with pytest.raises(KernelInputError, match=sentence):
        decode_gqa(*case.inputs)


def test_a_cache_for_keys_and_values_alike_has_its_own_recipe(device, monkeypatch):
    """Its kernel never reads values, so that no call with other values may repeat it."""
    case = Case(device, [20, 30])
    kept = {}
    recipes = Recipes()
    monkeypatch.setattr(recipes, "add", lambda key, _: kept.setdefault(key))
    monkeypatch.setattr(recurrent, "_RECIPES", recipes)
    q, keys, values, *rest = case.inputs
    for second in (values, keys):
        decode_gqa(q, keys, second, *rest)
    assert len(kept) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("page", [16, 64])
def test_real_sizes_match_fp64_and_replay(device, page):
    gen = torch.Generator(device).manual_seed(1)
    keys, values = (
        torch.randn((64, page, 2, 256), generator=gen, device=device).bfloat16() for _ in range(2)
    )
    q = torch.randn((4, 8, 256), generator=gen, device=device).bfloat16()
    table = torch.randperm(64, generator=gen, device=device).view(4, 16).int()
    contexts = torch.tensor([1, 16 * page, 0, 9 * page + 5], dtype=torch.int32, device=device)
    inputs = (q, keys, values, table, contexts)
    expected = gqa_decode_reference(*inputs, scale=256**-0.5)
    again = torch.full_like(q, float("nan"))
    out = decode_gqa(*inputs, out=again.clone())
    assert error(out[[0, 1, 3]], expected[[0, 1, 3]]) < 4e-3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode_gqa(*inputs, out=again)
    graph.replay()
    assert torch.equal(again[[0, 1, 3]], out[[0, 1, 3]])


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [16, 32, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_mla_of_real_width_matches_fp64(device, heads, dtype):
    gen = torch.Generator(device).manual_seed(1)
    cache = torch.randn((64, 64, 576), generator=gen, device=device).to(dtype)
    q = torch.randn((4, heads, 576), generator=gen, device=device).to(dtype)
    table = torch.randperm(64, generator=gen, device=device).view(4, 16).int()
    contexts = torch.tensor([1, 1024, 700, 65], dtype=torch.int32, device=device)
    inputs, options = (q, cache, table, contexts), {"latent_width": 512, "scale": 192**-0.5}
    expected = mla_decode_reference(*inputs, **options)
    assert error(decode_mla(*inputs, **options), expected) < 4e-3
