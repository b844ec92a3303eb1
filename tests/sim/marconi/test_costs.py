"""The paper's formulas against the figures it prints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridplan.errors import InputError
from hybridplan.sim.marconi.costs import ModelCosts

PAPER = ModelCosts.from_paper()


def test_bytes_of_the_papers_7b_hybrid() -> None:
    assert PAPER.state_bytes == 26_787_840
    assert PAPER.kv_bytes_per_token == 65_536


def test_ten_thousand_tokens_with_a_state_every_sixteen() -> None:
    held = PAPER.prefix_bytes(10_000, states=10_000 // 16)
    assert round(held / 1e9, 3) == 17.398
    transformer = ModelCosts.from_paper(attention_layers=32, state_layers=0)
    assert round(transformer.prefix_bytes(10_000) / 1e9, 2) == 5.24
    assert round(held / transformer.prefix_bytes(10_000), 1) == 3.3


def test_conv_share_of_a_state() -> None:
    without_conv = 24 * 4096 * 128 * 2
    assert round(100 * (1 - without_conv / PAPER.state_bytes), 1) == 6.1


@pytest.mark.parametrize(
    "tokens, flops, held_bytes, flops_per_byte",
    [
        pytest.param(100, "1.309e+12", 33_341_440, 39_272, id="100-tokens"),
        pytest.param(1_000, "1.315e+13", 92_323_840, 142_463, id="1000-tokens"),
        pytest.param(5_000, "6.707e+13", 354_467_840, 189_226, id="5000-tokens"),
        pytest.param(10_000, "1.374e+14", 682_147_840, 201_460, id="10000-tokens"),
        pytest.param(20_000, "2.880e+14", 1_337_507_840, 215_295, id="20000-tokens"),
    ],
)
def test_flop_table(tokens: int, flops: str, held_bytes: int, flops_per_byte: int) -> None:
    assert f"{PAPER.prefill_flops(tokens):.3e}" == flops
    assert PAPER.prefix_bytes(tokens) == held_bytes
    assert round(PAPER.flops_per_byte(tokens)) == flops_per_byte


@pytest.mark.parametrize("state_bytes, kv_bytes", [(0, 0), (-1, 8)], ids=["nothing", "negative"])
def test_a_cache_of_nothing_is_refused(state_bytes: int, kv_bytes: int) -> None:
    with pytest.raises(InputError, match=f"{state_bytes} B a state and {kv_bytes} B a token"):
        replace(PAPER, state_bytes=state_bytes, kv_bytes_per_token=kv_bytes)
