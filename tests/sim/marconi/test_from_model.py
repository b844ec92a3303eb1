"""Marconi's costs of shipped models."""

from __future__ import annotations

import pytest

from hybridplan.config.find import load
from hybridplan.errors import InputError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.weights import weights
from hybridplan.sim.marconi.from_model import costs_of

NEXT = "qwen3-next-80b-a3b-instruct"


def test_bytes_are_what_a_rank_holds() -> None:
    costs = costs_of(load(NEXT), Deployment("sglang"))
    assert (costs.state_bytes, costs.kv_bytes_per_token) == (77_266_944, 24_576)
    assert (costs.attention_layers, costs.mlp_layers) == (12, 48)


def test_short_prefills_cost_two_flops_a_weight() -> None:
    spec = load(NEXT)
    costs = costs_of(spec, Deployment("sglang"))
    counted = {part.name: part.active_params for part in weights(spec).components}
    apart = ("embeddings", "head", "norms", "tables", "draft", "vision")
    met = sum(params for name, params in counted.items() if name not in apart)
    assert costs.prefill_flops(1) == pytest.approx(2 * met, rel=0.05)
    squared = 12 * 4 * 16 * 256
    assert costs.prefill_flops(20_000) - 20_000 * costs.prefill_flops(1) == squared * (
        20_000**2 - 20_000
    )


def test_more_ranks_hold_less_each_for_the_same_work() -> None:
    one, two = (costs_of(load(NEXT), Deployment("sglang", tp=tp)) for tp in (1, 2))
    assert two.state_bytes * 2 == one.state_bytes
    assert two.prefill_flops(1000) == one.prefill_flops(1000)


@pytest.mark.parametrize(
    "model, words",
    [("gpt-oss-20b", "windowed attention"), ("deepseek-v4-flash", "compresses its KV")],
    ids=["windowed", "compressed"],
)
def test_kv_that_does_not_grow_by_the_token_is_refused(model: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        costs_of(load(model), Deployment("sglang"))
