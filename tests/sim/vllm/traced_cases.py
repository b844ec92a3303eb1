"""A stored vLLM case (groups, limits, trace) driven through the replay, told the way vLLM told it.

``replay_case`` returns requests, steps and the final queue in the shape of a golden trace's
``result``, so that a test compares them key by key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.vllm.engine import VllmEngine
from hybridplan.sim.vllm.keys import Key
from hybridplan.sim.vllm.scheduler import Step
from hybridplan.sim.vllm.sequence import Sequence
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

TOKEN_AFTER_OUTPUT = 7
KINDS = {
    "full": GroupKind.FULL,
    "FullAttentionSpec": GroupKind.FULL,
    "mla": GroupKind.MLA,
    "MLAAttentionSpec": GroupKind.MLA,
    "sliding_window": GroupKind.SLIDING,
    "chunked_local": GroupKind.CHUNKED,
    "circular_buffer": GroupKind.RING,
    "CircularBufferSpec": GroupKind.RING,
}


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def _group(spec: dict[str, Any]) -> VllmGroup:
    kind = spec["type"]
    if kind in ("mamba", "MambaSpec"):
        mode = spec.get("mamba_cache_mode", "none")
        kinds = {"align": GroupKind.MAMBA_ALIGN, "none": GroupKind.MAMBA_NONE}
        group_kind = kinds[mode]
    else:
        group_kind = KINDS[kind]
    same = {k: v for k, v in spec.items() if k not in ("layers", "is_eagle_group")}
    return VllmGroup(
        kind=group_kind,
        block_tokens=spec["block_size"],
        window_tokens=spec.get("sliding_window") or spec.get("attention_chunk_size") or 0,
        spec_blocks=spec.get("num_speculative_blocks") or 0,
        checkpoint_blocks=spec.get("num_prefill_checkpoint_blocks") or 0,
        checkpoint_alignment_tokens=spec.get("prefill_checkpoint_alignment"),
        is_draft=bool(spec.get("is_eagle_group")),
        spec_id=json.dumps(same, sort_keys=True),
    )


def config_of(case: dict[str, Any], result: dict[str, Any], version: str) -> VllmCacheConfig:
    """The engine of a case. Real models' groups come from the plan that the result echoes."""
    args = case["engine_args"]
    resolved = result["resolved"]
    if "groups" in case:
        groups = tuple(_group(g) for g in case["groups"])
        spec = case.get("spec")
        extra = (spec or {}).get("extra", {})
        drafts = spec["num_speculative_tokens"] if spec else 0
    else:
        groups = tuple(
            _group({**g["spec"], "is_eagle_group": g["is_eagle_group"]}) for g in resolved["groups"]
        )
        extra = {}
        drafts = args.get("speculative_config", {}).get("num_speculative_tokens", 0)
    caching = args.get("enable_prefix_caching", True)
    drop = bool(drafts) and not extra.get("disable_eagle_block_drop", False)
    lookahead_hashes = (
        drop
        and version == "0.33"
        and caching
        and not extra.get("disable_lookahead_block_hashes", False)
    )
    return VllmCacheConfig(
        groups=groups,
        num_blocks=case["num_blocks"],
        version=version,
        max_batched_tokens=args["max_num_batched_tokens"],
        max_seqs=args["max_num_seqs"],
        max_model_len=args["max_model_len"],
        prefix_caching=caching,
        retention_interval_tokens=args.get("prefix_cache_retention_interval", 0),
        prefix_match_unit_tokens=args.get("prefix_match_unit"),
        long_prefill_threshold_tokens=args.get("long_prefill_token_threshold", 0),
        reserve_full_prompt=args.get("scheduler_reserve_full_isl", True),
        watermark=args.get("watermark", 0.0),
        async_depth=2 if args.get("async_scheduling") else 1,
        draft_tokens=drafts,
        lookahead_tokens=drafts,
        drop_draft_block=drop and not lookahead_hashes,
        hash_lookahead_tokens=1 if lookahead_hashes else 0,
        shared_prefix_checkpoint=args.get("enable_mamba_shared_prefix_checkpoint", False),
        skips_useless_drafts=version == "0.33" and drafts > 0,
    )


def accepted_drafts(case: dict[str, Any]) -> tuple[int, ...]:
    return tuple(case.get("spec_accept") or case.get("spec", {}).get("accept") or [0])


def _expand(items: list[Any], outputs: dict[str, list[int]]) -> list[int]:
    tokens: list[int] = []
    for item in items:
        if isinstance(item, int):
            tokens.append(item)
        elif "seed" in item:
            first = item["seed"] * 1_000_000 + item.get("from", 0)
            tokens.extend(range(first, first + item["n"]))
        else:
            tokens.extend(outputs[item["output_of"]][: item["n"]])
    return tokens


def requests_of(case: dict[str, Any]) -> list[Request]:
    """The trace of a case as explicit tokens, outputs included."""
    requests = []
    outputs: dict[str, list[int]] = {}
    for index, line in enumerate(case["trace"]):
        most = line.get("max_tokens", 1)
        default = [{"seed": 900_000 + index, "n": most}]
        output = _expand(line.get("output", default), outputs)
        outputs[line["id"]] = output
        if "hash_ids" in line:
            size = line.get("hash_block", 512)
            prompt = [h * 1_000_000 + i for h in line["hash_ids"] for i in range(size)]
            prompt = prompt[: line.get("input_length", len(prompt))]
        else:
            prompt = _expand(line["prompt"], outputs)
        padded = (output + [TOKEN_AFTER_OUTPUT] * most)[:most]
        requests.append(
            Request(
                request_id=line["id"],
                prompt=Prompt(len(prompt), 1, prompt),
                output_tokens=most,
                sequence=Prompt(len(prompt) + most, 1, prompt + padded),
            )
        )
    return requests


class _Recorder:
    """Writes down what the engine did in the oracle's words."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.step: dict[str, Any] = {}
        self.requests: dict[str, dict[str, Any]] = {}
        self.new_blocks: dict[str, list[int]] = {}
        self.known: dict[Key, tuple[str, int]] = {}
        self.sequences: list[Sequence] = []
        for hooks in engine.pool.on_publish:
            hooks.append(self.published)
        engine.pool.on_evict.append(self.evicted)
        engine.pool.on_move.append(self.moved)
        engine.observers.append(self)
        for manager in engine.scheduler.coordinator.managers:
            manager.on_allocate = self.allocated

    def name(self, group: int, key: Key) -> dict[str, Any]:
        if key not in self.known:
            self.register()
        owner, tokens = self.known[key]
        return {"group": group, "prefix_of": owner, "tokens": tokens}

    def register(self) -> None:
        for seq in self.sequences:
            for index in range(seq.num_keys):
                tokens = (index + 1) * seq.hash_tokens
                self.known.setdefault(seq.keys[index], (seq.request.request_id, tokens))

    def allocated(self, seq: Sequence, group: int, blocks: list[int]) -> None:
        rid = seq.request.request_id
        self.step.setdefault("allocated", []).append(
            {"req": rid, "group": group, "blocks": list(blocks)}
        )
        self.new_blocks[rid][group] += len(blocks)

    def published(self, block: int, group: int, key: Key, position_tokens: int) -> None:
        self.step.setdefault("cached", []).append({"block": block, "key": self.name(group, key)})

    def evicted(self, block: int, keys: list[tuple[int, Key]], overwritten: bool) -> None:
        self.step.setdefault("evicted", []).append(
            {"block": block, "keys": [self.name(g, k) for g, k in keys]}
        )

    def moved(self, source: int, target: int, keys: list[tuple[int, Key]]) -> None:
        for group, key in keys:
            self.published(target, group, key, 0)

    def scheduled(self, step: int, plan: Step) -> None:
        at = self.step
        at["scheduled"] = {}
        for seq, lookup in plan.admitted:
            self.requests[seq.request.request_id]["admissions"].append(
                {
                    "step": step,
                    "hit_tokens": lookup.hit_tokens,
                    "shared_prefix_boundary": lookup.junction_tokens,
                    "hit_blocks": [list(blocks) for blocks in lookup.blocks],
                }
            )
        for part in plan.parts:
            rid = part.seq.request.request_id
            end = part.start + part.tokens
            at["scheduled"][rid] = [part.start, end]
            self.requests[rid]["chunks"].append([step, part.start, end])
            if part.drafts:
                at.setdefault("spec_tokens", {})[rid] = part.drafts
        if plan.preempted:
            at["preempted"] = sorted(s.request.request_id for s in plan.preempted)
            for rid in at["preempted"]:
                self.requests[rid]["preempted_at"].append(step)
        if plan.copies:
            at["block_copies"] = [list(pair) for pair in plan.copies]
        at["block_tables"] = {
            p.seq.request.request_id: [list(t.blocks) for t in p.seq.tables] for p in plan.parts
        }
        at["free_blocks_after_schedule"] = self.engine.pool.free_blocks

    def finished(self, step: int, seq: Sequence) -> None:
        row = self.requests[seq.request.request_id]
        row["finished_at_step"] = step
        row["num_output_tokens"] = seq.outputs
        row["num_computed_tokens"] = seq.computed


def replay_case(case: dict[str, Any], config: VllmCacheConfig, check: Any = None) -> dict[str, Any]:
    """Drive a case as the oracle drove vLLM; ``check(engine)`` runs after every step."""
    engine = VllmEngine(config, accepted_drafts=accepted_drafts(case), skipping=False)
    recorder = _Recorder(engine)
    requests = {r.request_id: r for r in requests_of(case)}
    waiting: list[tuple[dict[str, Any], set[str]]] = []
    previous = None
    for line in case["trace"]:
        after = set(line.get("after", []))
        sequential = case.get("arrival", "sequential") == "sequential"
        if "arrive_step" not in line and not after and sequential and previous:
            after = {previous}
        waiting.append((line, after))
        previous = line["id"]
    done: set[str] = set()
    steps: list[dict[str, Any]] = []
    count, error = 0, None
    limit = case.get("max_steps", 20_000)
    while True:
        rest = []
        for line, after in waiting:
            if not (after <= done and count >= line.get("arrive_step", 0)):
                rest.append((line, after))
                continue
            rid = line["id"]
            recorder.requests[rid] = {
                "id": rid,
                "num_prompt_tokens": requests[rid].prompt.length_tokens,
                "added_at_step": count,
                "admissions": [],
                "chunks": [],
                "preempted_at": [],
            }
            recorder.new_blocks[rid] = [0] * len(config.groups)
            seq = engine.add(requests[rid])
            recorder.sequences.append(seq)
            recorder.register()
        waiting = rest
        if not engine.has_work:
            arrivals = [line.get("arrive_step", 0) for line, after in waiting if after <= done]
            if not arrivals:
                break
            count = max(count + 1, min(arrivals))
            continue
        engine.step_index = len(steps)
        recorder.step = {"step": len(steps)}
        _, finished = engine.step()
        count += 1
        recorder.register()
        done.update(s.request.request_id for s in finished)
        order = list(recorder.requests)
        if finished:
            recorder.step["finished"] = sorted(
                (s.request.request_id for s in finished), key=order.index
            )
        recorder.step["free_blocks_after_step"] = engine.pool.free_blocks
        steps.append(recorder.step)
        if check is not None:
            check(engine)
        if len(steps) >= limit:
            error = f"stopped after {limit} steps"
            break
        if not recorder.step.get("scheduled") and not finished:
            idle = 0
            for step in reversed(steps):
                if step.get("scheduled"):
                    break
                idle += 1
            if idle > 20:
                error = "no progress: no request can be scheduled"
                break
    while steps and not steps[-1].get("scheduled") and not steps[-1].get("finished"):
        steps.pop()
    rows = list(recorder.requests.values())
    for row in rows:
        admissions = row["admissions"]
        row["hit_tokens"] = admissions[0]["hit_tokens"] if admissions else None
        row["new_blocks_per_group"] = recorder.new_blocks[row["id"]]
    pool = engine.pool
    queue: list[list[Any]] = []
    for block in pool.free_queue()[:400]:
        keys = pool.keys_of(block) if block < len(pool.refs) else []
        queue.append([block, recorder.name(*keys[0]) if keys else None])
    return {
        "requests": rows,
        "steps": steps,
        "error": error,
        "final": {
            "free_blocks": pool.free_blocks,
            "cached_keys": sum(len(c) for c in pool.cached),
            "free_queue_front_to_back": queue,
        },
    }


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Where a replayed case and vLLM's own answer differ; empty when they agree."""
    found: list[str] = []
    if (ours["error"] or "") != (theirs["error"] or ""):
        found.append(f"error: {ours['error']!r} instead of {theirs['error']!r}")
    for step, (mine, real) in enumerate(zip(ours["steps"], theirs["steps"], strict=False)):
        for key in real:
            want, have = real[key], mine.get(key)
            if key == "evicted":
                want, have = _sorted_keys(want), _sorted_keys(have or [])
            if want != have:
                found.append(f"step {step} {key}: {have} instead of {want}")
        for key in mine.keys() - real.keys() - {"block_tables"}:
            found.append(f"step {step} {key}: {mine[key]} where vLLM has none")
    if len(ours["steps"]) != len(theirs["steps"]):
        found.append(f"{len(ours['steps'])} steps instead of {len(theirs['steps'])}")
    for mine, real in zip(ours["requests"], theirs["requests"], strict=True):
        for key in real:
            if mine.get(key) != real[key]:
                found.append(f"{real['id']} {key}: {mine.get(key)} instead of {real[key]}")
    for key, value in theirs["final"].items():
        if ours["final"][key] != value:
            found.append(f"final {key}: {ours['final'][key]} instead of {value}")
    return found


def _sorted_keys(events: list[dict[str, Any]]) -> list[Any]:
    """The keys beyond a block's first are an unordered set in vLLM."""
    return [[e["block"], sorted(json.dumps(k, sort_keys=True) for k in e["keys"])] for e in events]
