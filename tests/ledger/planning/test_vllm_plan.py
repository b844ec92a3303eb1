"""Whole plans: memory, figures of the issue, warnings, refusals, lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hybridplan.config.find import load
from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.lengths.distribution import parse_lengths
from hybridplan.ledger.logs.explain import explain_log
from hybridplan.ledger.planning.ask import MemoryAsk, VllmAsk, static_memory
from hybridplan.ledger.planning.fit import fit
from hybridplan.ledger.planning.result import VllmResult
from hybridplan.ledger.planning.vllm import plan
from hybridplan.ledger.vllm.options import VllmOptions

GIB = 1024**3


def ask(model: str, *, gib: int | None = 40, gpu: str | None = None, **more: Any) -> VllmAsk:
    deployment = Deployment(
        "vllm", **{key: more.pop(key) for key in ("tp", "drafts", "version") if key in more}
    )
    memory = MemoryAsk(
        gpu=find_gpu(gpu) if gpu else None,
        kv_memory_bytes=None if gpu else (gib or 0) * GIB,
    )
    options = VllmOptions(**more.pop("options", {}))
    return VllmAsk(load(model), deployment, options, memory, **more)


def test_glm_flash_strides_at_tp8() -> None:
    """Block b is index kernel blocks 1768 b ... 1768 b + 4 and MLA rows from 7293 b."""
    got = plan(ask("glm-5.3-flash", tp=8))
    by_page = {tensor.page_bytes: tensor for tensor in got.tensors}
    index, latent = by_page[21_120], next(t for t in got.tensors if t.unit_bytes == 1_024)
    assert (index.unit, index.units_to_next_block, index.units_per_page) == (
        "kernel block",
        1768,
        5,
    )
    assert (latent.unit, latent.units_to_next_block) == ("row", 7293)
    assert got.bytes_per_block == 7_468_032


def test_deepseek_v32_is_one_group_of_two_pages() -> None:
    got = plan(ask("deepseek-v3.2", options={"max_model_len": 65_536}))
    assert len(got.groups) == 1
    assert got.groups[0].page_bytes == (8_448, 73_728)
    assert len(got.groups[0].layers) == 122
    assert got.bytes_per_block == 4_895 * 1024 + 256


def test_costs_add_up() -> None:
    got = plan(ask("qwen3.8-27b"))
    for cost in got.costs:
        assert cost.bytes == sum(cost.blocks) * got.bytes_per_block
        assert cost.concurrent == (got.num_blocks - 1) // sum(cost.blocks)
    assert got.costs[-1].tokens == got.max_model_len
    assert sum(got.costs[-1].blocks) == got.blocks_per_request
    assert got.num_blocks * got.bytes_per_block + got.unused_bytes == got.memory.available_bytes


def test_memory_of_a_card_adds_up_and_is_labelled() -> None:
    got = plan(ask("qwen3.8-27b", gpu="h200"))
    memory = got.memory
    taken = sum(int(part.value) for part in memory.parts)
    assert memory.usable_bytes is not None
    assert memory.usable_bytes - taken == memory.available_bytes
    labels = {part.name: part.how for part in memory.parts}
    assert labels == {
        "weights": "derived",
        "activations": "assumed",
        "graphs": "assumed",
        "driver context": "assumed",
    }
    assert (got.max_num_batched_tokens, got.max_num_seqs) == (8192, 1024)


def test_weights_of_a_logged_boot() -> None:
    """vLLM logged 14.28 GiB a GPU for 27B in FP8 at TP2 (vllm-project/recipes#810), vision and
    the layers FP8 leaves in bf16 included; half of our bf16 weights must stay below that."""
    got = plan(ask("qwen3.8-27b", gpu="h200", tp=2))
    weights = next(part.value for part in got.memory.parts if part.name == "weights")
    assert 12.0 < weights / 2 / GIB < 14.28


def test_state_blocks_below_max_num_seqs_are_refused() -> None:
    """vllm-project/vllm#49064: 161 blocks against the default of 256."""
    with pytest.raises(RefusalError, match=r"max_num_seqs is 256 .* --max-num-seqs"):
        plan(ask("qwen3.8-27b", gib=3, options={"max_model_len": 8192}))
    got = plan(ask("qwen3.8-27b", gib=3, options={"max_model_len": 8192}, graphs=False))
    assert got.num_blocks < 256


@pytest.mark.parametrize(
    "question,sentence",
    [
        pytest.param(
            {"max_num_batched_tokens": 512},
            "block of 832 tokens is larger than max_num_batched_tokens",
            id="block-larger-than-budget",
        ),
        pytest.param({}, "prompts that share fewer than 832 tokens never hit", id="first-hit"),
        pytest.param({}, "one more draft token keeps the block at 832", id="draft-cost"),
        pytest.param({"tp": 8}, "with 4 KV heads, tp 8 stores each KV head on 2", id="replication"),
        pytest.param(
            {"max_num_seqs": 700}, "stop at 78 running requests", id="sequences-above-states"
        ),
    ],
)
def test_warnings(question: dict[str, Any], sentence: str) -> None:
    got = plan(ask("qwen3.8-27b", **question))
    assert any(sentence in warning for warning in got.warnings), got.warnings


def test_old_release_drops_the_last_block_when_drafting() -> None:
    got = plan(ask("qwen3.8-27b", version="0.32", drafts=1))
    assert any("fewer than 1,600 tokens never hit" in warning for warning in got.warnings)


def with_lengths(text: str, **more: Any) -> VllmResult:
    question = ask("qwen3.5-0.8b", **more)
    return plan(replace(question, lengths=parse_lengths(text, 262_144)))


def test_lengths_of_equal_requests_are_a_division() -> None:
    short = {"options": {"max_model_len": 16_384}}
    got = with_lengths("fixed:10000", gib=2, **short)
    lengths = got.lengths
    assert lengths is not None
    blocks = got.num_blocks - 1
    costs = plan(ask("qwen3.5-0.8b", gib=2, costs_at=(10_000,), **short)).costs
    each = sum(costs[0].blocks)
    assert lengths.default.mean == blocks // each
    assert lengths.default.p5 == lengths.default.p95


def test_short_requests_are_bound_by_states_and_long_ones_by_kv() -> None:
    short, long = with_lengths("fixed:600", gib=4), with_lengths("fixed:100000", gib=8)
    assert short.lengths is not None
    assert long.lengths is not None
    assert short.lengths.default.binds["state blocks"] == 1.0
    assert long.lengths.default.binds["KV blocks"] == 1.0
    assert long.lengths.twin is not None
    assert long.lengths.twin.mean < long.lengths.default.mean


def test_lengths_are_the_same_twice() -> None:
    text = "lognormal:p50=2k,p99=60k"
    assert with_lengths(text, gib=4).lengths == with_lengths(text, gib=4).lengths


def test_fit_yes_and_no() -> None:
    yes = fit(ask("qwen3.8-27b", gpu="h200"))
    assert (yes.fits, yes.smallest_tp, yes.largest_context_tokens) == (True, 1, 262_144)
    no = fit(ask("qwen3.8-27b", gpu="rtx4090"))
    assert (no.fits, no.smallest_tp) == (False, 4)
    assert "--tp 4" in no.change
    again = fit(ask("qwen3.8-27b", gpu="rtx4090", tp=4))
    assert again.fits


def test_the_change_that_fit_suggests_fits() -> None:
    no = fit(ask("qwen3.8-27b", gpu="h100"))
    assert not no.fits
    flag, seqs = no.change.split()[:2]
    assert flag == "--max-num-seqs"
    assert fit(ask("qwen3.8-27b", gpu="h100", max_num_seqs=int(seqs))).fits
    tight = fit(ask("qwen3.8-27b", gib=4))
    assert not tight.fits
    longest = tight.largest_context_tokens
    assert tight.change == f"--max-model-len {longest} --max-num-seqs 78 fits on this size"

    def fits(length: int, seqs: int = 78) -> bool:
        options = {"max_model_len": length}
        return fit(ask("qwen3.8-27b", gib=4, max_num_seqs=seqs, options=options)).fits

    assert fits(longest)
    assert not fits(longest + 832)
    assert not fits(longest, seqs=79)


def test_no_memory_is_bad_input() -> None:
    with pytest.raises(InputError, match="--gpu h200 or a size with --kv-memory"):
        MemoryAsk()
    with pytest.raises(InputError, match=r"utilisation is 1\.2"):
        MemoryAsk(kv_memory_bytes=1, utilisation=1.2)


def test_card_too_small_names_the_largest_part() -> None:
    with pytest.raises(RefusalError, match=r"\(weights 5\d\.\d\d GiB\).*raise --tp"):
        plan(ask("qwen3.8-27b", gpu="rtx4090"))


def test_fit_and_plan_refuse_the_same_boot() -> None:
    """The decode graphs of 1,024 sequences find 351 state blocks on one H100."""
    with pytest.raises(RefusalError, match="351 state blocks"):
        plan(ask("qwen3.8-27b", gpu="h100"))
    assert "351 state blocks" in fit(ask("qwen3.8-27b", gpu="h100")).reason
    assert fit(ask("qwen3.8-27b", gpu="h100", graphs=False)).fits


def test_eager_takes_no_graphs_off() -> None:
    eager = plan(ask("qwen3.8-27b", gpu="h200", graphs=False)).memory
    graphs = plan(ask("qwen3.8-27b", gpu="h200")).memory
    assert [part.name for part in eager.parts] == ["weights", "activations", "driver context"]
    assert eager.available_bytes - graphs.available_bytes == GIB // 2


def test_defaults_shrink_to_each_other() -> None:
    """vLLM caps a default step at sequences x length, and default sequences at the step."""
    short = ask("qwen3-8b", gpu="h200", max_num_seqs=2, options={"max_model_len": 1_000}).resolved()
    assert short.max_num_batched_tokens == 2_000
    small = ask("qwen3-8b", gpu="h200", max_num_batched_tokens=300).resolved()
    assert small.max_num_seqs == 300


def test_minimax_m3_keeps_bf16_keys_in_blocks_of_128() -> None:
    """vLLM 0.33 models/minimax_m3/common/indexer.py: one key of 128 in bf16, kernel block 128."""
    got = plan(ask("minimax-m3", tp=8, options={"max_model_len": 65_536}))
    assert got.block.tokens == 128
    assert got.groups[0].page_bytes == (128 * 256, 128 * 512)
    assert got.backends == ("FLASH_ATTN", "MINIMAX_M3_SPARSE_INDEXER", "MINIMAX_M3_SPARSE")


def test_mla_over_tp_is_said_to_be_whole_on_every_rank() -> None:
    said = plan(ask("deepseek-v3.2", gib=60, tp=8)).warnings
    assert any("tp 8 stores each on 8 ranks" in sentence for sentence in said)


def test_boot_lines_explain_themselves() -> None:
    """What the plan predicts, explain-log agrees with."""
    got = plan(ask("qwen3.8-27b", gib=42))
    found = explain_log(got.boot_lines, "plan", model="qwen3.8-27b")
    assert [line.agrees for line in found.lines if line.kind == "capacity"] == [True]
    assert found.agrees


def test_sglang_keeps_activations_outside_its_fraction() -> None:
    """What was free before loading, times the fraction, less the weights (KVCacheConfigurator)."""
    spec = load("qwen3-next-80b-a3b-instruct")
    card = find_gpu("h200")
    asked = MemoryAsk(gpu=card, utilisation=0.88, weights_bytes=80 * GIB, activation_bytes=2 * GIB)
    got = static_memory(asked, spec, Deployment("sglang"), 8192, 48)
    context = 3 * GIB // 10
    assert got.available_bytes == pytest.approx(
        (card.memory_bytes - context) * 0.88 - 80 * GIB, abs=2
    )
    tight = replace(asked, utilisation=0.99, graph_bytes=GIB)
    left = static_memory(tight, spec, Deployment("sglang"), 8192, 48)
    assert left.available_bytes == pytest.approx(
        card.memory_bytes - context - (80 + 3) * GIB, abs=2
    )


def test_bytes_of_a_pipeline_are_one_rank_s() -> None:
    got = plan(replace(ask("qwen3.8-27b"), deployment=Deployment("vllm", pp=2)))
    for group in got.groups:
        assert group.content_bytes + group.padding_bytes == got.bytes_per_block
