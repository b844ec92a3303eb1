"""Drive vLLM's own EngineCore.step over a trace and write down what it decides.

    python vllm_oracle.py [--src DIR] [--time] < cases.jsonl > answers.jsonl

One case per line in (groups, engine_args, trace: the shape of a golden trace's ``case``), one
answer per line out (a golden trace's ``result``). The model is replaced by one that computes every
scheduled token at once and returns the trace's tokens. Methods of the scheduler are wrapped to
listen, never to change an answer. ``--time`` answers with seconds and hits only, and listens to
nothing. See vllm_import.py for what an interpreter needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time
import types
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import vllm_import

LONGEST_IDLE = 20


def expand(items: list[Any], outputs: dict[str, list[int]]) -> list[int]:
    tokens: list[int] = []
    for item in items:
        if "seed" in item:
            first = item["seed"] * 1_000_000 + item.get("from", 0)
            tokens.extend(range(first, first + item["n"]))
        else:
            tokens.extend(outputs[item["output_of"]][: item["n"]])
    return tokens


def tokens_of(trace: list[dict[str, Any]]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Prompt and output tokens by request."""
    prompts: dict[str, list[int]] = {}
    outputs: dict[str, list[int]] = {}
    for index, line in enumerate(trace):
        default = [{"seed": 900_000 + index, "n": line.get("max_tokens", 1)}]
        outputs[line["id"]] = expand(line.get("output", default), outputs)
        if "hash_ids" in line:
            size = line["hash_block"]
            prompt = [h * size + i for h in line["hash_ids"] for i in range(size)]
            prompts[line["id"]] = prompt[: line["input_length"]]
        else:
            prompts[line["id"]] = expand(line["prompt"], outputs)
    return prompts, outputs


class InstantModel:
    """An executor that returns the trace's tokens and accepts drafts as the case says."""

    def __init__(self, outputs: dict[str, list[int]], accepted: list[int]) -> None:
        self.outputs = outputs
        self.accepted = accepted or [0]
        self.position: dict[str, int] = {}
        self.verified: dict[str, int] = {}
        self.scheduler: Any = None
        self.drafts: Any = None
        self.pending: list[Any] = []

    def execute_model(self, plan: Any, non_block: bool = False) -> Future[Any]:
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        ids = list(plan.num_scheduled_tokens)
        sampled = [self._sample(plan, request_id) for request_id in ids]
        count = 0 if getattr(plan, "skip_drafts", False) else plan.num_spec_tokens_to_schedule
        self.drafts = DraftTokenIds(ids, [[-1] * count for _ in ids])
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
        )
        future: Future[Any] = Future()
        if ids:
            self.pending.append(output)
        future.set_result(None if ids else output)
        return future

    def _sample(self, plan: Any, request_id: str) -> list[int]:
        if self.scheduler.requests[request_id].is_prefill_chunk:
            return []
        drafts = len(plan.scheduled_spec_decode_tokens.get(request_id, ()))
        accepted = 0
        if drafts:
            turn = self.verified.get(request_id, 0)
            self.verified[request_id] = turn + 1
            accepted = min(self.accepted[turn % len(self.accepted)], drafts)
        start = self.position.get(request_id, 0)
        self.position[request_id] = start + accepted + 1
        known = self.outputs[request_id]
        return [known[i] if i < len(known) else 7 for i in range(start, start + accepted + 1)]

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        output = self.pending.pop()
        if not non_block:
            return output
        future: Future[Any] = Future()
        future.set_result(output)
        return future

    def take_draft_token_ids(self) -> Any:
        return self.drafts


class Listener:
    """Writes down lookups, allocations, keys and evictions of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        from vllm.v1.core import kv_cache_utils

        self.utils, self.scheduler = kv_cache_utils, scheduler
        self.manager = scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self.step: dict[str, Any] = {}
        self.names: dict[bytes, tuple[str, int]] = {}
        self.lookups: dict[str, dict[str, Any]] = {}
        self.allocated: dict[str, dict[int, int]] = {}
        self.current: tuple[str, int] | None = None
        self._wrap_pool()
        self._wrap_manager()

    def _wrap_pool(self) -> None:
        pool = self.pool
        evict, insert, take = (
            pool._maybe_evict_cached_block,
            pool._insert_block_hash,
            pool.get_new_blocks,
        )

        def evicting(block: Any) -> Any:
            keys = [block.block_hash] if block.block_hash is not None else []
            keys += sorted(pool.cached_block_hashes_by_block.get(block.block_id, ()))
            lost = evict(block)
            if lost:
                self.step.setdefault("evicted", []).append(
                    {"block": block.block_id, "keys": [self.name(key) for key in keys]}
                )
            return lost

        def inserting(key: Any, block: Any, num_tokens: Any) -> Any:
            had = block.block_hash == key or pool.cached_block_hash_to_block.contain(
                key, block.block_id
            )
            result = insert(key, block, num_tokens)
            if not had:
                self.step.setdefault("cached", []).append(
                    {"block": block.block_id, "key": self.name(key)}
                )
            return result

        def taking(count: int) -> Any:
            blocks = take(count)
            if self.current and count:
                request_id, group = self.current
                counts = self.allocated.setdefault(request_id, {})
                counts[group] = counts.get(group, 0) + count
                self.step.setdefault("allocated", []).append(
                    {"req": request_id, "group": group, "blocks": [b.block_id for b in blocks]}
                )
            return blocks

        pool._maybe_evict_cached_block = evicting
        pool._insert_block_hash = inserting
        pool.get_new_blocks = taking

    def _wrap_manager(self) -> None:
        manager = self.manager
        lookup = manager.get_computed_blocks

        def looking(request: Any, *args: Any, **kwargs: Any) -> Any:
            found = lookup(request, *args, **kwargs)
            self.lookups[request.request_id] = {
                "hit_tokens": found[1],
                "shared_prefix_boundary": found[2],
                "hit_blocks": [[b.block_id for b in group] for group in found[0].blocks],
            }
            return found

        manager.get_computed_blocks = looking
        for index, single in enumerate(manager.coordinator.single_type_managers):
            single.allocate_new_blocks = self._attributed(single.allocate_new_blocks, index)

    def _attributed(self, allocate: Any, group: int) -> Any:
        def allocating(request_id: str, *args: Any, **kwargs: Any) -> Any:
            self.current = (request_id, group)
            try:
                return allocate(request_id, *args, **kwargs)
            finally:
                self.current = None

        return allocating

    def register(self, request: Any) -> None:
        size = self.pool.hash_block_size
        for index, key in enumerate(request.block_hashes):
            self.names.setdefault(bytes(key), (request.request_id, (index + 1) * size))

    def name(self, key: Any) -> dict[str, Any]:
        content = bytes(self.utils.get_block_hash(key))
        if content not in self.names:
            for request in list(self.scheduler.requests.values()):
                self.register(request)
        owner, tokens = self.names.get(content, ("?", -1))
        return {"group": self.utils.get_group_id(key), "prefix_of": owner, "tokens": tokens}


def build(case: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Config, scheduler and block hasher of a case."""
    import vllm.v1.core.kv_cache_utils as utils
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    arguments = {"async_scheduling": False, **case["engine_args"]}
    drafting = case.get("spec")
    if drafting:
        extra = dict(drafting.get("extra", {}))
        if vllm_version().startswith("0.32"):
            extra.pop("disable_lookahead_block_hashes", None)
        arguments["speculative_config"] = {
            "method": drafting["method"],
            "model": vllm_import.model_folder(),
            "num_speculative_tokens": drafting["num_speculative_tokens"],
            **extra,
        }
    config = vllm_import.engine_config(arguments)
    register_all_kvcache_specs(config)
    groups = []
    for index, description in enumerate(case["groups"]):
        fields = dict(description)
        layers = fields.pop("layers", 1)
        is_draft = fields.pop("is_eagle_group", False)
        names = [f"g{index}.l{layer}" for layer in range(layers)]
        groups.append(
            KVCacheGroupSpec(names, vllm_import.layer_spec(fields), is_eagle_group=is_draft)
        )
    cache = config.cache_config
    plan = KVCacheConfig(num_blocks=case["num_blocks"], kv_cache_tensors=[], kv_cache_groups=groups)
    plan.prefix_cache_retention_interval = cache.prefix_cache_retention_interval
    states = [g.kv_cache_spec for g in groups if type(g.kv_cache_spec).__name__ == "MambaSpec"]
    if states:
        cache.mamba_cache_mode = states[0].mamba_cache_mode
        cache.mamba_block_size = states[0].block_size
    cache.block_size = min(
        g.kv_cache_spec.block_size for g in groups if g.kv_cache_spec.prefix_cacheable
    )
    cache.num_gpu_blocks = case["num_blocks"]
    block, unit = utils.resolve_kv_cache_block_sizes(plan, config)
    scheduler = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=plan,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block,
        hash_block_size=unit,
        log_stats=False,
    )
    function = get_hash_fn_by_name(cache.prefix_caching_hash_algo)
    utils.init_none_hash(function)
    ahead = getattr(config, "num_hash_lookahead_tokens", None)
    hasher = None
    if cache.enable_prefix_caching:
        extra_arguments = () if ahead is None else (ahead,)
        hasher = utils.get_request_block_hasher(unit, function, *extra_arguments)
    return config, scheduler, hasher


def core_of(config: Any, scheduler: Any, model: InstantModel) -> tuple[Any, Any]:
    """The part of an EngineCore that its step functions use, and the step to call."""
    from vllm.v1.engine.core import EngineCore

    depth = config.max_concurrent_batches
    drafting = config.speculative_config is not None
    model.scheduler = scheduler
    core = types.SimpleNamespace(
        scheduler=scheduler,
        model_executor=model,
        vllm_config=config,
        batch_queue_size=depth,
        batch_queue=deque(maxlen=depth) if depth > 1 else None,
        is_mm_encoder_only=False,
        is_pooling_model=False,
        use_spec_decode=drafting,
        check_for_draft_tokens=drafting,
        async_scheduling=config.scheduler_config.async_scheduling,
        capture_iteration_details=lambda plan: contextlib.nullcontext(None),
        log_error_detail=lambda plan: contextlib.nullcontext(None),
        _process_aborts_queue=lambda: None,
        _attach_iteration_details=lambda *args: None,
        _attach_weight_version=lambda *args: None,
        _should_throttle_prefills=lambda: False,
    )
    step = EngineCore.step if depth == 1 else EngineCore.step_with_batch_queue

    def advance() -> None:
        result = step(core)
        EngineCore.post_step(core, result[1])

    return core, advance


def request_of(line: dict[str, Any], prompt: list[int], order: int, hasher: Any) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id=line["id"],
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(
            max_tokens=line.get("max_tokens", 1), ignore_eos=True, temperature=0.0
        ),
        pooling_params=None,
        arrival_time=float(order),
        priority=0,
        block_hasher=hasher,
    )


class Run:
    """One case from the first arrival to the last finish."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.config, self.scheduler, self.hasher = build(case)
        self.prompts, outputs = tokens_of(case["trace"])
        accepted = case.get("spec", {}).get("accept") or [0]
        self.core, self.advance = core_of(
            self.config, self.scheduler, InstantModel(outputs, accepted)
        )
        self.listener = Listener(self.scheduler)
        self.rows: dict[str, dict[str, Any]] = {}
        self.requests: dict[str, Any] = {}
        self.steps: list[dict[str, Any]] = []
        self.done: set[str] = set()
        self.count = 0
        self.waiting = self._dependencies()
        self._wrap_schedule()

    def _dependencies(self) -> list[tuple[dict[str, Any], set[str]]]:
        lines = []
        previous = None
        for line in self.case["trace"]:
            chained = self.case["arrival"] == "sequential" and "arrive_step" not in line
            lines.append((line, {previous} if chained and previous else set()))
            previous = line["id"]
        return lines

    def _wrap_schedule(self) -> None:
        schedule = self.scheduler.schedule

        def scheduling(*args: Any, **kwargs: Any) -> Any:
            before = {request.request_id for request in self.scheduler.running}
            plan = schedule(*args, **kwargs)
            self._note(plan, before)
            return plan

        self.scheduler.schedule = scheduling

    def _note(self, plan: Any, before: set[str]) -> None:
        step, at = self.listener.step, len(self.steps)
        starts = {r.req_id: r.num_computed_tokens for r in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        step["scheduled"] = {}
        for request_id, tokens in plan.num_scheduled_tokens.items():
            start = starts[request_id]
            step["scheduled"][request_id] = [start, start + tokens]
            row = self.rows[request_id]
            row["chunks"].append([at, start, start + tokens])
            if request_id not in before:
                lookup = self.listener.lookups.get(request_id, {})
                row["admissions"].append({"step": at, **lookup})
            drafts = plan.scheduled_spec_decode_tokens.get(request_id)
            if drafts:
                step.setdefault("spec_tokens", {})[request_id] = len(drafts)
        if plan.preempted_req_ids:
            step["preempted"] = sorted(plan.preempted_req_ids)
            for request_id in step["preempted"]:
                self.rows[request_id]["preempted_at"].append(at)
        if plan.kv_cache_block_copies:
            step["block_copies"] = [
                [copy.src_block_id, copy.dst_block_id] for copy in plan.kv_cache_block_copies
            ]
        step["free_blocks_after_schedule"] = self.listener.pool.get_num_free_blocks()

    def _add_ready(self) -> None:
        rest = []
        for line, after in self.waiting:
            if not (after <= self.done and self.count >= line.get("arrive_step", 0)):
                rest.append((line, after))
                continue
            name = line["id"]
            request = request_of(line, self.prompts[name], len(self.requests), self.hasher)
            self.requests[name] = request
            self.rows[name] = {
                "id": name,
                "num_prompt_tokens": request.num_prompt_tokens,
                "added_at_step": self.count,
                "admissions": [],
                "chunks": [],
                "preempted_at": [],
            }
            self.listener.register(request)
            self.scheduler.add_request(request)
        self.waiting = rest

    def _finish_step(self) -> None:
        step = self.listener.step
        for name, request in self.requests.items():
            self.listener.register(request)
            if request.is_finished() and name not in self.done:
                self.done.add(name)
                self.rows[name].update(
                    finished_at_step=len(self.steps),
                    num_output_tokens=request.num_output_tokens,
                    num_computed_tokens=request.num_computed_tokens,
                )
                step.setdefault("finished", []).append(name)
        step["free_blocks_after_step"] = self.listener.pool.get_num_free_blocks()
        self.steps.append(step)

    def _stuck(self) -> bool:
        last = self.steps[-LONGEST_IDLE - 1 :]
        idle = all(not step.get("scheduled") for step in last)
        return len(last) > LONGEST_IDLE and idle and not last[-1].get("finished")

    def answer(self) -> dict[str, Any]:
        error = None
        while True:
            self._add_ready()
            if not self.scheduler.has_requests() and not self.core.batch_queue:
                arrivals = [
                    line.get("arrive_step", 0) for line, after in self.waiting if after <= self.done
                ]
                if not arrivals:
                    break
                self.count = max(self.count + 1, min(arrivals))
                continue
            self.listener.step = {"step": len(self.steps)}
            self.advance()
            self.count += 1
            self._finish_step()
            if len(self.steps) >= self.case.get("max_steps", 20_000):
                error = f"stopped after {len(self.steps)} steps"
                break
            if self._stuck():
                error = "no progress: no request can be scheduled"
                break
        while self.steps and not (
            self.steps[-1].get("scheduled") or self.steps[-1].get("finished")
        ):
            self.steps.pop()
        return {"vllm_version": vllm_version(), "error": error, **self._totals()}

    def _totals(self) -> dict[str, Any]:
        groups = range(len(self.case["groups"]))
        for name, row in self.rows.items():
            row["hit_tokens"] = row["admissions"][0]["hit_tokens"] if row["admissions"] else None
            counts = self.listener.allocated.get(name, {})
            row["new_blocks_per_group"] = [counts.get(group, 0) for group in groups]
        pool = self.listener.pool
        queue = [
            [block.block_id, self.listener.name(block.block_hash) if block.block_hash else None]
            for block in pool.free_block_queue.get_all_free_blocks()[:400]
        ]
        return {
            "requests": list(self.rows.values()),
            "steps": self.steps,
            "final": {
                "free_blocks": pool.get_num_free_blocks(),
                "cached_keys": len(pool.cached_block_hash_to_block),
                "free_queue_front_to_back": queue,
            },
        }


def vllm_version() -> str:
    import vllm

    return str(vllm.__version__)


def timed(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds that vLLM's scheduler takes for a sequential trace, requests built beforehand."""
    config, scheduler, hasher = build(case)
    prompts, outputs = tokens_of(case["trace"])
    _, advance = core_of(config, scheduler, InstantModel(outputs, [0]))
    hits: list[int] = []
    lookup = scheduler.kv_cache_manager.get_computed_blocks

    def looking(request: Any, *args: Any, **kwargs: Any) -> Any:
        found = lookup(request, *args, **kwargs)
        hits.append(found[1])
        return found

    scheduler.kv_cache_manager.get_computed_blocks = looking
    start = time.process_time()
    steps = 0
    for order, line in enumerate(case["trace"]):
        scheduler.add_request(request_of(line, prompts[line["id"]], order, hasher))
        while scheduler.has_unfinished_requests():
            advance()
            steps += 1
    seconds = time.process_time() - start
    return {"vllm_version": vllm_version(), "seconds": seconds, "steps": steps, "hits": hits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--src", help="folder of the unpacked wheel")
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    vllm_import.import_vllm(options.src)
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        case = json.loads(line)
        try:
            answer = timed(case) if options.time else Run(case).answer()
        except ValueError as error:
            answer = {"vllm_version": vllm_version(), "refused": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
