"""Qwen3.8-Flash-Next's n-gram layers: what the file says of them decides a state and a group.

Their pools are held against vLLM's own answers in tests/golden/vllm (flash_next_*).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridplan.config.catalogue import folder
from hybridplan.config.read import read_config
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError
from hybridplan.ledger.account import ledger
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import plan_vllm

WINDOW_BYTES = 9 * 4 * 2560 * 2  # (4 - 1) x 3 columns of 4 streams of 2,560 channels, bf16


def spec_with(layers: Any) -> ModelSpec:
    data = json.loads((folder() / "qwen3.8-flash-next.json").read_text())
    data["text_config"]["ple_layer_ids"] = layers
    return read_config(data, file="config.json", name="flash-next")


def ngram_bytes(spec: ModelSpec, deployment: Deployment) -> list[int]:
    held = model_caches(spec, deployment)
    return [s.bytes for layer in held for s in layer.states if s.name == "ngram_conv"]


def test_a_file_without_them_says_so() -> None:
    spec = spec_with(None)
    assert ngram_bytes(spec, Deployment("vllm")) == []
    assert any("text_config.ple_layer_ids is not given" in note for note in spec.notes)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_window_is_whole_on_every_rank(tp: int) -> None:
    spec = spec_with([2, 6])
    assert ngram_bytes(spec, Deployment("vllm", tp=tp)) == [WINDOW_BYTES] * 2


def test_drafts_widen_it() -> None:
    widened = ngram_bytes(spec_with([2]), Deployment("vllm", drafts=2))
    assert widened == [WINDOW_BYTES * 11 // 9]


def test_it_counts_in_the_ledger_and_its_chain() -> None:
    with_one, without = (ledger(spec_with(x), Deployment("vllm")) for x in ([2], None))
    assert with_one.per_request.bytes - without.per_request.bytes == WINDOW_BYTES


def test_its_states_are_a_group_of_their_own() -> None:
    options = VllmOptions(prefix_caching=True)
    plan = plan_vllm(spec_with([2, 6]), Deployment("vllm", "0.33"), options, 1 << 40)
    groups = [group for group in plan.groups if group.kind == "short_conv"]
    assert [len(group.layers) for group in groups] == [2]


@pytest.mark.parametrize(
    "layers, says",
    [
        pytest.param([4], "layer 4, which is no linear_attention", id="attention layer"),
        pytest.param([0], "ple_layer_ids", id="counts from one"),
        pytest.param([49], "ple_layer_ids", id="past the end"),
        pytest.param(["2"], "ple_layer_ids", id="not a number"),
    ],
)
def test_ids_that_cannot_be(layers: list[Any], says: str) -> None:
    with pytest.raises(HybridplanError, match=says):
        spec_with(layers)
