"""Whole logs explained: what is inferred, what agrees, and what does not."""

from __future__ import annotations

import pytest

from hybridplan.errors import InputError
from hybridplan.ledger.logs.candidates import rule_order
from hybridplan.ledger.logs.explain import explain_log
from hybridplan.ledger.logs.result import LogReport

B02 = """\
INFO [core.py:140] Initializing a V1 LLM engine (v0.28.0) with config: model='Qwen/Qwen3.8-27B-FP8', dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=2, kv_cache_dtype=fp8
INFO Setting attention block size to 1568 tokens to ensure that attention page size is >= mamba page size.
INFO Padding mamba page size by 0.13% to ensure that mamba page size and attention page size are exactly equal.
INFO Available KV cache memory: 4.99 GiB
INFO GPU KV cache size: 302,921 tokens, Maximum concurrency for 131,072 tokens per request: 2.31x
"""
B01 = """\
vllm serve Qwen/Qwen3.5-27B --max-num-seqs 16 --max-num-batched-tokens 16384
GPU KV cache size: 290,864 tokens
Maximum concurrency for 32,768 tokens per request: 33.04x
"""
SGLANG = """\
server_args=ServerArgs(model_path='Qwen/Qwen3-Next-80B-A3B-Instruct', tp_size=1, max_running_requests=64)
Mamba Cache is allocated. max_mamba_cache_size: 262, conv_state size: 0.43GB, ssm_state size: 18.49GB
KV Cache is allocated. dtype: torch.bfloat16, #tokens: 920754, K size: 10.54 GB, V size: 10.54 GB
max_total_num_tokens=920754, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=52, context_len=262144
"""


def report(text: str, **settings: object) -> LogReport:
    model = settings.pop("model", None)
    return explain_log(text.splitlines(), "boot.log", model=model, settings=settings)  # type: ignore[arg-type]


def ours(found: LogReport) -> dict[str, tuple[str | None, bool | None]]:
    return {line.kind: (line.ours, line.agrees) for line in found.lines}


def test_every_line_of_a_new_log_agrees() -> None:
    found = report(B02)
    assert found.agrees
    assert (found.num_blocks, found.blocks_per_request) == (208, 90)
    assert all(line.agrees for line in found.lines)
    inferred = {s.name: s.value for s in found.settings if s.origin == "inferred"}
    assert inferred == {"rules": "older", "prefix_caching": "True"}
    assert any("is read as qwen3.8-27b" in note for note in found.notes)


def test_the_old_meaning_of_the_token_count() -> None:
    found = report(B01)
    assert found.agrees
    assert found.num_blocks == 1487
    formula = next(line.formula for line in found.lines if line.kind == "kv_tokens")
    assert formula.startswith("old")
    assert any("1,082,800 tokens at once" in note for note in found.notes)


def test_sglang_pools_and_clamp() -> None:
    found = report(SGLANG)
    assert found.agrees
    assert found.slots == 262
    assert ours(found)["limits"] == ("262 slots // 5 = 52 (extra_buffer)", True)
    assert "one state slot costs as much as 3,144.0 KV tokens" in found.notes


@pytest.mark.parametrize(
    "wrong,kind",
    [
        pytest.param(("1568", "1570"), "block_size", id="block"),
        pytest.param(("0.13%", "0.93%"), "padding", id="padding"),
        pytest.param(("302,921", "302,922"), "capacity", id="tokens"),
        pytest.param(("2.31x", "2.41x"), "capacity", id="concurrency"),
        pytest.param(("4.99", "6.99"), "available", id="memory"),
    ],
)
def test_a_changed_figure_is_caught(wrong: tuple[str, str], kind: str) -> None:
    found = report(B02.replace(*wrong))
    assert not found.agrees
    assert ours(found)[kind][1] is False


def test_sglang_wrong_pool_is_caught() -> None:
    assert not report(SGLANG.replace("18.49", "19.10")).agrees


def test_stated_settings_win() -> None:
    found = report(B02, tp=1)
    assert not found.agrees
    assert ("tp", "1", "stated") in {(s.name, s.value, s.origin) for s in found.settings}


def test_without_a_model_lines_are_still_explained() -> None:
    found = report("INFO GPU KV cache size: 290,864 tokens\n")
    assert found.model is None
    assert ours(found) == {"kv_tokens": (None, None)}
    assert "names no model" in found.notes[0]


def test_partial_log_of_one_line() -> None:
    found = report("Setting attention block size to 528 tokens", model="qwen3.5-4b")
    assert ours(found)["block_size"] == ("528 tokens", True)


def test_unknown_given_model_is_bad_input() -> None:
    with pytest.raises(InputError, match="nosuchmodel"):
        report(B02, model="nosuchmodel")


def test_unknown_logged_model_is_said() -> None:
    found = report(B02.replace("Qwen/Qwen3.8-27B-FP8", "someone/else"))
    assert found.model is None
    assert "someone/else" in found.notes[0]


def test_a_length_the_user_gives_completes_the_log() -> None:
    lines = "GPU KV cache size: 377,456 tokens\n"
    found = report(lines, model="qwen3.8-27b", tp=2, max_model_len=262144, prefix_caching="True")
    assert (found.num_blocks, found.blocks_per_request) == (491, 341)


@pytest.mark.parametrize(
    "version, rules",
    [("0.33.0", ("0.33",)), ("0.28.1rc1.dev524", ("older", "0.32")), ("0.19.1", ("older", "0.32"))],
)
def test_a_stated_version_rules_out_newer_rules(version: str, rules: tuple[str, ...]) -> None:
    assert rule_order(version) == rules


def test_the_card_is_an_input() -> None:
    log = "Setting attention block size to 1664 tokens\n"
    stated = {"model": "qwen3.8-27b", "tp": 2, "kv_dtype": "fp8", "drafts": 2}
    assert report(log, **stated, prefix_caching="True", kernel_block_tokens=128).agrees
    assert not report(log, **stated, prefix_caching="False", kernel_block_tokens=16).agrees


def test_pipeline_ranks_share_the_layers_of_a_block() -> None:
    log = "Available KV cache memory: 10.35 GiB\nGPU KV cache size: 1,000,000 tokens\n"
    found = report(log, model="qwen3.8-27b", tp=4, pp=2, max_model_len=262144)
    assert ("pp", "2", "stated") in {(s.name, s.value, s.origin) for s in found.settings}


REFUSED = """\
Initializing a V1 LLM engine (v0.33.0) with config: model='Qwen/Qwen3.8-27B', max_seq_len=262144
ValueError: To serve at least one request with the model's max seq len (262144), ({needed} GiB KV \
cache is needed, which is larger than the available KV cache memory (3.95 GiB). Based on the \
available memory, the estimated maximum model length is {length}. Try increasing it.
"""


@pytest.mark.parametrize(
    "needed, length, agrees",
    [
        pytest.param("16.5", 56576, (True, True), id="the plan's own refusal of 4 GiB"),
        pytest.param("16.6", 56576, (False, True), id="another need"),
        pytest.param("16.5", 57409, (True, False), id="another length"),
    ],
)
def test_a_server_that_refused(needed: str, length: int, agrees: tuple[bool, bool]) -> None:
    """325 blocks of 52 MiB are needed, and 77 are left beside the null block."""
    found = ours(report(REFUSED.format(needed=needed, length=length)))
    assert (found["too_small"][1], found["estimated_length"][1]) == agrees


@pytest.mark.parametrize("layers, agrees", [(3, True), (4, False)])
def test_padding_layers_are_counted(layers: int, agrees: bool) -> None:
    text = (
        "Initializing a V1 LLM engine (v0.33.0) with config: model='Qwen/Qwen3.5-35B-A3B',"
        " tensor_parallel_size=2, max_seq_len=262144\n"
        "Setting attention block size to 1088 tokens to ensure that attention page size is >= mamba"
        " page size.\nPadding mamba page size by 2.26% to ensure that mamba page size and attention"
        " page size are exactly equal.\n"
        f"Add {layers} padding layers, may waste at most 10.00% KV cache memory\n"
    )
    found = ours(report(text, drafts=2))
    assert found["padding_layers"][1] is agrees


def test_sglang_more_running_than_slots_is_caught() -> None:
    wrong = SGLANG.replace("max_running_requests=52", "max_running_requests=300")
    assert ours(report(wrong))["limits"][1] is False
