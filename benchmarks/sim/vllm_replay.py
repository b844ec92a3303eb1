"""Requests per second of the vLLM replay, and of vLLM's own scheduler on the same requests.

    python benchmarks/sim/vllm_replay.py [TRACE] [--requests N] [--vllm-python PY --vllm-src DIR]

TRACE is a Mooncake file, by default the one the tests use. All of it goes through the replay as
Qwen3.5-0.8B at block 576 (one full-attention group, three recurrent ones, one request in flight, a
pool that never evicts). With --vllm-python the first N requests go through vLLM's scheduler too,
and the replay is timed on the same N, the best of three because it takes milliseconds; both must
give the same hits or the run ends with an error. CPU seconds of one process each. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import sys
import time
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "conformance"))

from hybridplan.sim.outcome import RequestOutcome, Summary
from hybridplan.sim.replay import simulate
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

TRACE = Path(__file__).parents[2] / "tests/data/traces/mooncake_conversation.jsonl.gz"
BLOCK_TOKENS = 576
UNIT_TOKENS = 512
NUM_BLOCKS = 400_000
MAX_MODEL_LEN = 262_144


def rows_of(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.splitlines()]


def requests_of(rows: list[dict[str, Any]]) -> list[Request]:
    return [
        Request(
            request_id=f"r{index}",
            prompt=Prompt(row["input_length"], UNIT_TOKENS, row["hash_ids"], chained=True),
            output_tokens=row["output_length"],
        )
        for index, row in enumerate(rows)
    ]


def replay(requests: list[Request]) -> tuple[float, Summary, list[RequestOutcome]]:
    """CPU seconds, totals and outcomes."""
    state = VllmGroup(GroupKind.MAMBA_ALIGN, BLOCK_TOKENS)
    config = VllmCacheConfig(
        groups=(state, state, state, VllmGroup(GroupKind.FULL, BLOCK_TOKENS)),
        num_blocks=NUM_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
    )
    outcomes: list[RequestOutcome] = []
    start = time.process_time()
    summary = simulate(requests, ReplayedVllm(config), on_outcome=outcomes.append)
    return time.process_time() - start, summary, outcomes


def vllm_case(rows: list[dict[str, Any]]) -> dict[str, Any]:
    state = {
        "type": "mamba",
        "block_size": BLOCK_TOKENS,
        "shapes": [[3, 64], [2, 8, 8]],
        "dtypes": ["bf16", "fp32"],
        "mamba_cache_mode": "align",
    }
    full = {
        "type": "full",
        "block_size": BLOCK_TOKENS,
        "num_kv_heads": 1,
        "head_size": 128,
        "dtype": "bf16",
    }
    return {
        "engine_args": {
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 256,
            "max_model_len": MAX_MODEL_LEN,
        },
        "num_blocks": NUM_BLOCKS,
        "groups": [state, state, state, full],
        "arrival": "sequential",
        "trace": [
            {
                "id": f"r{index}",
                "hash_ids": row["hash_ids"],
                "hash_block": UNIT_TOKENS,
                "input_length": row["input_length"],
                "max_tokens": row["output_length"],
            }
            for index, row in enumerate(rows)
        ],
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace", type=Path, nargs="?", default=TRACE)
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--vllm-python")
    parser.add_argument("--vllm-src", default="")
    options = parser.parse_args()
    rows = rows_of(options.trace)
    seconds, summary, _ = replay(requests_of(rows))
    result: dict[str, Any] = {
        "benchmark": "vllm_replay",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": f"python benchmarks/sim/vllm_replay.py {options.trace.name}"
        f" --requests {options.requests} --vllm-python PY --vllm-src DIR",
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "trace": options.trace.name,
        "requests": summary.requests,
        "prompt_tokens": summary.prompt_tokens,
        "replay_cpu_s": round(seconds, 3),
        "replay_requests_per_s": round(summary.requests / seconds, 1),
        "hit_rate": round(summary.hit_rate, 6),
        "kv_hit_rate": round(summary.kv_hit_rate, 6),
        "ceiling_rate": round(summary.ceiling_rate or 0.0, 6),
    }
    if options.vllm_python:
        import vllm_fuzz

        part = list(islice(rows, options.requests))
        runs = [replay(requests_of(part)) for _ in range(3)]
        part_seconds, _, outcomes = min(runs, key=lambda run: run[0])
        answer = vllm_fuzz.vllm_answers(
            options.vllm_python, options.vllm_src, [vllm_case(part)], timing=True
        )[0]
        same = [outcome.hit_tokens for outcome in outcomes] == answer["hits"]
        result["compared"] = {
            "requests": len(part),
            "vllm_version": answer["vllm_version"],
            "same_hits": same,
            "vllm_cpu_s": round(answer["seconds"], 3),
            "replay_cpu_s": round(part_seconds, 4),
            "times_faster": round(answer["seconds"] / part_seconds, 1),
        }
        if not same:
            sys.stderr.write("the replay and vLLM disagree on hits\n")
            return 1
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
