"""Random small vLLM cases: groups, limits and traces that share, extend and repeat prompts.

A case has the shape of a golden trace's ``case``, so that vLLM itself can answer it too
(tests/conformance/vllm_fuzz.py).
"""

from __future__ import annotations

from math import lcm
from random import Random
from typing import Any

MAX_MODEL_LEN = 8192
FULL = {"type": "full", "num_kv_heads": 1, "head_size": 128, "dtype": "bf16"}
MLA = {"type": "mla", "num_kv_heads": 1, "head_size": 512, "dtype": "bf16"}
STATE = {
    "type": "mamba",
    "shapes": [[3, 64], [2, 8, 8]],
    "dtypes": ["bf16", "fp32"],
    "mamba_cache_mode": "align",
}
SLIDING = {"type": "sliding_window", "num_kv_heads": 1, "head_size": 128, "dtype": "bf16"}
CHUNKED = {"type": "chunked_local", "num_kv_heads": 1, "head_size": 128, "dtype": "bf16"}
RING = {
    "type": "circular_buffer",
    "block_size": 4,
    "num_kv_heads": 2,
    "head_size": 128,
    "head_size_v": 0,
    "dtype": "bf16",
    "dcp_sharded": False,
}


def random_case(seed: int, *, drafts: bool = True) -> dict[str, Any]:
    """One case; equal seeds give equal cases. ``drafts`` allows speculative decoding."""
    rng = Random(seed)
    block = rng.choice([16, 32, 64])
    plain = rng.random()
    num_drafts = rng.choice([1, 2, 3]) if plain >= 0.1 and drafts and rng.random() < 0.35 else 0
    if plain < 0.05:
        groups = _chunked_groups(rng, block)
    elif plain < 0.1:
        groups = _uncached_groups(rng, block)
    else:
        groups = _groups(rng, block, num_drafts)
    args = _limits(rng, groups, num_drafts)
    if plain < 0.05:
        args.pop("prefix_match_unit", None)
    elif plain < 0.1:
        for name in ("prefix_match_unit", "prefix_cache_retention_interval"):
            args.pop(name, None)
        args["enable_prefix_caching"] = False
    case: dict[str, Any] = {
        "engine_args": args,
        "num_blocks": rng.choice([25, 30, 45, 70, 200] if block > 16 else [60, 90, 150, 400]),
        "groups": groups,
        "arrival": rng.choice(["sequential", "together"]),
        "trace": _trace(rng),
        "record_block_tables": False,
        "max_steps": 600,
    }
    if num_drafts:
        extra: dict[str, Any] = {}
        if rng.random() < 0.5:
            extra["disable_lookahead_block_hashes"] = True
        if rng.random() < 0.15:
            extra["disable_eagle_block_drop"] = True
        case["spec"] = {
            "method": "eagle",
            "num_speculative_tokens": num_drafts,
            "accept": [rng.randint(0, num_drafts) for _ in range(4)],
            "extra": extra,
        }
        if rng.random() < 0.5:
            args["enable_mamba_shared_prefix_checkpoint"] = True
    return case


def _groups(rng: Random, block: int, num_drafts: int) -> list[dict[str, Any]]:
    state = {**STATE, "block_size": block, "num_speculative_blocks": num_drafts, "layers": 4}
    if rng.random() < 0.5:
        state["num_prefill_checkpoint_blocks"] = 1
        state["prefill_checkpoint_alignment"] = rng.choice([1, 16, block])
    attention = {**rng.choice([FULL, FULL, MLA]), "block_size": block, "layers": 2}
    if rng.random() < 0.2:
        attention["block_size"] = block // 2
    shape = rng.random()
    if shape < 0.1:
        return [attention]
    if shape < 0.15:
        return [state]
    groups = [attention] + [dict(state) for _ in range(rng.choice([1, 1, 2, 3]))]
    if rng.random() < 0.25:
        window = rng.choice([block, 2 * block, 100])
        groups.append({**SLIDING, "block_size": block, "sliding_window": window, "layers": 2})
    if rng.random() < 0.2:
        groups.append({**RING, "layers": 2})
    if rng.random() < 0.3:
        rng.shuffle(groups)
    if num_drafts and rng.random() < 0.5:
        groups.append({**attention, "layers": 1, "is_eagle_group": True})
    return groups


def _chunked_groups(rng: Random, block: int) -> list[dict[str, Any]]:
    """Chunked local attention is only looked up where every block is of one size."""
    full = {**FULL, "block_size": block, "layers": 2}
    chunk = rng.choice([block, 2 * block, 100])
    return [full, {**CHUNKED, "block_size": block, "attention_chunk_size": chunk, "layers": 2}]


def _uncached_groups(rng: Random, block: int) -> list[dict[str, Any]]:
    """Without prefix caching a state block spans the longest sequence."""
    state = {**STATE, "mamba_cache_mode": "none", "block_size": MAX_MODEL_LEN, "layers": 4}
    full = {**FULL, "block_size": block, "layers": 2}
    return [full] + [dict(state) for _ in range(rng.choice([1, 2]))]


def _limits(rng: Random, groups: list[dict[str, Any]], num_drafts: int) -> dict[str, Any]:
    args: dict[str, Any] = {
        "max_num_batched_tokens": rng.choice([20, 50, 100, 300, 8192]),
        "max_num_seqs": rng.choice([1, 2, 4, 16]),
        "max_model_len": MAX_MODEL_LEN,
    }
    if args["max_num_batched_tokens"] <= num_drafts * args["max_num_seqs"] + 4:
        args["max_num_batched_tokens"] = 64
    cacheable = [g["block_size"] for g in groups if g["type"] != "circular_buffer"]
    if len(groups) > 1 and rng.random() < 0.4:
        units = [u for u in (4, 8, 16, 32) if all(size % u == 0 for size in cacheable)]
        args["prefix_match_unit"] = rng.choice(units)
    sparse = any(g["type"] in ("mamba", "sliding_window") for g in groups)
    if sparse and rng.random() < 0.5:
        whole = lcm(*(g["block_size"] for g in groups))
        args["prefix_cache_retention_interval"] = rng.choice([None, whole, 2 * whole, 4 * whole])
    if rng.random() < 0.2:
        args["long_prefill_token_threshold"] = rng.choice([30, 70, 150])
    if rng.random() < 0.2:
        args["scheduler_reserve_full_isl"] = False
    if rng.random() < 0.25:
        args["async_scheduling"] = True
    if rng.random() < 0.15:
        args["watermark"] = rng.choice([0.05, 0.1])
    return args


def _trace(rng: Random) -> list[dict[str, Any]]:
    trace: list[dict[str, Any]] = []
    for index in range(rng.randint(3, 9)):
        prompt: list[dict[str, Any]] = [
            {"seed": 1, "n": rng.choice([0, 37, 100, 150, 200, 256])},
            {"seed": rng.choice([2, 3, 4]), "n": rng.choice([0, 16, 50, 64, 128])},
            {"seed": rng.choice([5, 6, 7, 50 + index]), "n": rng.randint(1, 120)},
        ]
        prompt = [part for part in prompt if part["n"]]
        if trace and rng.random() < 0.3:
            earlier = rng.choice(trace)
            prompt = list(earlier["prompt"])
            if rng.random() < 0.5:
                prompt += [
                    {"output_of": earlier["id"], "n": earlier["max_tokens"]},
                    {"seed": 80 + index, "n": rng.randint(1, 80)},
                ]
        line = {"id": f"r{index}", "prompt": prompt, "max_tokens": rng.choice([1, 2, 5, 20, 70])}
        if rng.random() < 0.5:
            line["arrive_step"] = rng.randint(0, 12)
        trace.append(line)
    return trace
