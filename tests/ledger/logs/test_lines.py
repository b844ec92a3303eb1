from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.ledger.logs.lines import read_facts

VLLM = """\
$ vllm serve Qwen/Qwen3.8-27B-FP8 --tensor-parallel-size 2 --kv-cache-dtype fp8 --max-model-len 131072
INFO 09-12 10:00:01 [core.py:140] Initializing a V1 LLM engine (v0.28.0) with config: model='Qwen/Qwen3.8-27B-FP8', dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=2, kv_cache_dtype=fp8
(EngineCore pid=7) INFO 09-12 10:00:09 [config.py:388] Setting attention block size to 1568 tokens to ensure that attention page size is >= mamba page size.
\x1b[32m(EngineCore pid=7)\x1b[0m INFO Padding mamba page size by 0.13% to ensure that mamba page size and attention page size are exactly equal.
INFO Model loading took 14.28 GiB memory and 12.5 seconds
INFO Available KV cache memory: 4.99 GiB
INFO GPU KV cache size: 302,921 tokens, Maximum concurrency for 131,072 tokens per request: 2.31x
an unrelated line
"""

SGLANG = """\
[2026-09-01 TP0] Load weight end. type=Qwen3_5ForConditionalGeneration, dtype=torch.bfloat16, avail mem=86.48 GB, mem usage=51.10 GB.
[2026-09-01 TP0] Mamba Cache is allocated. max_mamba_cache_size: 262, conv_state size: 0.45GB, ssm_state size: 18.50GB
[2026-09-01 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 920754, K size: 10.54 GB, V size: 10.54 GB
[2026-09-01 TP0] max_total_num_tokens=920754, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=52, context_len=262144, available_gpu_mem=9.10 GB
"""


def test_vllm_lines() -> None:
    facts = read_facts(VLLM.splitlines(), "boot.log")
    by_kind = {fact.kind: fact.values for fact in facts}
    assert by_kind["block_size"] == {"block_tokens": 1568}
    assert by_kind["padding"] == {"padding_pct": 0.13}
    assert by_kind["available"] == {"available_gib": 4.99}
    assert by_kind["capacity"] == {
        "kv_tokens": 302921,
        "max_model_len": 131072,
        "concurrency": 2.31,
    }
    assert "kv_tokens" not in by_kind
    assert by_kind["arguments"]["model"] == "Qwen/Qwen3.8-27B-FP8"
    assert by_kind["arguments"]["tp"] == 2
    assert by_kind["engine"] == {"version": "0.28.0"}
    assert [fact.line_number for fact in facts if fact.kind == "arguments"] == [1, 2]


def test_sglang_lines() -> None:
    by_kind = {fact.kind: fact.values for fact in read_facts(SGLANG.splitlines(), "boot.log")}
    assert by_kind["state_pool"] == {"slots": 262, "conv_gib": 0.45, "state_gib": 18.5}
    assert by_kind["kv_pool"]["kv_tokens"] == 920754
    assert by_kind["kv_pool"]["kv_dtype"] == "torch.bfloat16"
    assert by_kind["limits"] == {
        "kv_tokens": 920754,
        "max_running_requests": 52,
        "context_tokens": 262144,
    }
    assert by_kind["weights"] == {"available_gib": 86.48, "weights_gib": 51.1}


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "vLLM version 0.33.0\n"])
def test_a_log_without_a_known_line_is_bad_input(text: str) -> None:
    with pytest.raises(InputError, match="holds no memory line"):
        read_facts(text.splitlines(), "boot.log")


def test_binary_is_bad_input() -> None:
    with pytest.raises(InputError, match="line 2 holds a NUL byte"):
        read_facts(["ok", "\x00\x01"], "boot.log")


@given(st.lists(st.text(max_size=200), max_size=20))
def test_any_text_is_facts_or_a_clean_error(lines: list[str]) -> None:
    with contextlib.suppress(InputError):
        read_facts(lines, "boot.log")
