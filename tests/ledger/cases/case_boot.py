"""Figures of a vLLM boot: the configuration through explain-log, the figures through the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from case_settings import INFERRED, Case, NotDerivableError, Settings, settings_of

from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.logs import vllm as log
from hybridplan.ledger.logs.capacity import Capacity, solve
from hybridplan.ledger.logs.lines import read_facts
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm
from hybridplan.ledger.vllm.pool import GIB, longest_that_fits
from hybridplan.ledger.vllm.rules import rules_of

Where = tuple[str | int, ...]
_LINES = {
    "block_size": "Setting attention block size to {} tokens",
    "padding_pct": "Padding mamba page size by {}%",
    "available_kv_gib": "Available KV cache memory: {} GiB",
    "padding_layers": "Add {} padding layers",
    "kv_tokens": "GPU KV cache size: {} tokens",
    "concurrency": "Maximum concurrency for {length} tokens per request: {}x",
    "num_blocks": "# GPU blocks: {}",
    "mamba_cache_blocks": "max_num_seqs ({seqs}) exceeds available Mamba cache blocks ({})",
}
FIGURES = tuple(_LINES)
_LISTS = ("points", "runs")


@dataclass(frozen=True)
class Within:
    """A figure the log prints rounded, or that leaves room below one more block."""

    low: float
    high: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, float)) and self.low <= other <= self.high


@dataclass(frozen=True)
class Point:
    """One boot of a case: what it observed by figure name, and where each stands in ``observed``.

    ``same_blocks``: the derivation says its pool has the blocks of the boot before.
    """

    settings: Settings
    observed: dict[str, Any]
    at: dict[str, Where]
    same_blocks: bool = False


def points(case: Case) -> Iterator[Point]:
    """Every boot a case tells of."""
    base, observed = settings_of(case), case["observed"]
    said = INFERRED.get(case["id"], {}).get("points", [])
    listed = next((key for key in _LISTS if key in observed), None)
    if said and "at" in said[0]:
        for one in said:
            changes = {k: v for k, v in one.items() if k not in ("at", "same_blocks")}
            same = one.get("same_blocks", False)
            yield _point(replace(base, **changes), observed, one["at"], same)
        return
    shared = {name: (name,) for name in FIGURES if name in observed}
    if listed is None:
        yield _point(base, observed, shared)
        return
    for index, own in enumerate(observed[listed]):
        at: dict[str, Where] = dict(shared) if index == 0 else {}
        at |= {name: (listed, index, name) for name in FIGURES if name in own}
        changes = dict(said[index]) if said else {}
        if "max_model_len" in own:
            changes["max_model_len"] = own["max_model_len"]
        if "draft_tokens" in own:
            changes["drafts"] = own["draft_tokens"]
        kv = own.get("kv", own.get("kv_dtype"))
        changes |= {"kv_dtype": {"bf16": "bfloat16"}.get(kv, kv)} if kv else {}
        yield _point(replace(base, **changes), observed, at)


def _point(
    settings: Settings, observed: Any, at: dict[str, Where], same_blocks: bool = False
) -> Point:
    values = {}
    for name, where in at.items():
        value = observed
        for step in where:
            value = value[step]
        values[name] = value
    return Point(settings, values, dict(at), same_blocks)


def boot(case: Case) -> dict[Where, Any]:
    """Reproduced figures of every boot, by their place in ``observed``."""
    found: dict[Where, Any] = {}
    blocks: int | None = None
    for point in points(case):
        if not point.observed:
            continue
        if set(point.observed) <= {"mamba_cache_blocks", "num_blocks"}:
            raise NotDerivableError(
                "a block count alone follows from memory that the case does not log"
            )
        plan, blocks = _inferred(case, point, blocks if point.same_blocks else None)
        found |= {point.at[k]: v for k, v in figures(plan, blocks).items() if k in point.at}
        found |= extra(case["observed"], plan, blocks)
        found |= derived(case, point, plan, blocks)
    if not found:
        raise NotDerivableError("no figure of the pool is logged")
    return found


def figures(plan: PoolPlan, blocks: int | None) -> dict[str, Any]:
    """Of a plan whose blocks are the log's."""
    found: dict[str, Any] = {"block_size": plan.block_tokens}
    if plan.alignment is not None:
        found["padding_pct"] = round(plan.alignment.padding_percent, 2)
    found["padding_layers"] = sum(group.padding_layers for group in plan.groups)
    if blocks is None:
        return found
    size = plan.bytes_per_block
    room = Within(blocks * size / GIB - 0.005, (blocks + 1) * size / GIB + 0.005)
    return found | {
        "kv_tokens": plan.kv_tokens,
        "kv_tokens_about": plan.kv_tokens,
        "concurrency": round(plan.max_concurrency, 2),
        "num_blocks": blocks,
        "mamba_cache_blocks": blocks,
        "available_kv_gib": room,
    }


def extra(observed: Any, plan: PoolPlan, blocks: int | None) -> dict[Where, Any]:
    """Figures few cases log: blocks of another length, the longest length, padded layers."""
    found: dict[Where, Any] = {}
    for key in observed:
        if key.startswith("blocks_for_"):
            found[key,] = max(plan.request_blocks(int(key.removeprefix("blocks_for_"))))
        if key.startswith("est_max_len_at_") and blocks is not None:
            limit = int(key.removeprefix("est_max_len_at_"))
            null = rules_of(plan.version).reserves_null_block
            found[key,] = longest_that_fits(plan.groups, plan.limits, blocks - null, limit)
        if key == "padding_waste_pct":
            padded = [group for group in plan.groups if group.padding_layers]
            found[key,] = sum(100 * g.padding_layers / g.bucket_layers for g in padded)
    return found


def derived(case: Case, point: Point, plan: PoolPlan, blocks: int | None) -> dict[Where, Any]:
    """What the case's own derivation says of the pool, so that no other one passes for it."""
    expected = (case.get("derived") or {}).get("predicted", {})
    where: Where = ("derived",)
    listed = next((w[:2] for w in point.at.values() if w[0] in _LISTS), None)
    if listed is not None:
        points = expected.get(listed[0])
        if not isinstance(points, list) or not isinstance(points[int(listed[1])], dict):
            return {}
        expected, where = points[int(listed[1])], (*where, *listed)
    ours = {"num_blocks": blocks, "blocks_per_request": sum(plan.blocks_per_request)}
    return {(*where, key): value for key, value in ours.items() if key in expected}


def _inferred(case: Case, point: Point, blocks: int | None) -> tuple[PoolPlan, int | None]:
    if point.settings.drafter is not None:
        return _stated(point)
    lines = _log_lines(case, point)
    if blocks is not None:
        lines.append(_LINES["num_blocks"].format(blocks))
    settings = point.settings
    stated = {
        "tp": settings.tp,
        "pp": settings.pp,
        "kv_dtype": settings.kv_dtype,
        "state_dtype": settings.state_dtype,
        "drafts": settings.drafts,
        "prefix_caching": None if settings.prefix_caching is None else str(settings.prefix_caching),
        "max_model_len": settings.max_model_len,
        **settings.given,
    }
    facts = read_facts(lines, case["id"])
    given = {key: value for key, value in stated.items() if value is not None}
    report = log.explain(facts, case["id"], settings.model, "", given)
    plan = _replanned(report, point)
    wrong = [f"{x.kind}: {x.text!r}, ours {x.ours}" for x in report.lines if x.agrees is False]
    assert report.agrees, "; ".join(wrong)
    return plan, report.num_blocks


def _log_lines(case: Case, point: Point) -> list[str]:
    version = (case.get("engine_version") or "").split(" ")[0]
    lines = [f"Initializing a V1 LLM engine (v{version}) with config:"] if version else []
    length = point.settings.max_model_len
    words = {"length": length, "seqs": case["observed"].get("default_max_num_seqs", 256)}
    lines += [
        _LINES[name].format(point.observed[name], **words)
        for name in _LINES
        if name in point.observed and not (name == "concurrency" and length is None)
    ]
    return lines


def _replanned(report: Any, point: Point) -> PoolPlan:
    found = {setting.name: setting.value for setting in report.settings}
    if "rules" not in found:
        raise NotDerivableError(f"the pool of {point.settings.model.name} is not modelled")

    def own(name: str) -> str | None:
        value = found.get(name)
        return None if value in (None, "auto", "None") else value

    old = any(line.formula.startswith("old") for line in report.lines)
    rules = "oldest" if old else found["rules"]
    deployment = Deployment(
        "vllm",
        rules,
        tp=int(found["tp"]),
        pp=point.settings.pp or 1,
        kv_dtype=own("kv_dtype"),
        state_dtype=own("state_dtype"),
        drafts=int(found["drafts"]),
    )
    kernel: Any = found.get("gdn_prefill", "auto")
    options = VllmOptions(
        max_model_len=point.settings.max_model_len,
        prefix_caching=found["prefix_caching"] == "True",
        gdn_prefill=kernel,
        kernel_block_tokens=point.settings.given.get("kernel_block_tokens"),
        num_gpu_blocks_override=report.num_blocks,
    )
    return plan_vllm(point.settings.model, deployment, options, 1 << 46)


def _stated(point: Point) -> tuple[PoolPlan, int]:
    """A drafter's boot: everything is stated, and the blocks are those the figures imply."""
    settings, seen = point.settings, point.observed
    ample = drafter_plan(settings, 1 << 46)
    logged = Capacity(
        seen.get("kv_tokens"),
        seen.get("concurrency"),
        settings.max_model_len,
        None,
        seen.get("available_kv_gib"),
    )
    solved = solve(
        logged,
        groups=len(ample.groups),
        block_tokens=ample.block_tokens,
        per_request=sum(ample.blocks_per_request),
        bytes_per_block=ample.bytes_per_block,
    )
    assert solved is not None, (ample.block_tokens, ample.blocks_per_request)
    assert solved.agrees_with_memory is not False
    available = solved.num_blocks * ample.bytes_per_block
    return drafter_plan(settings, available), solved.num_blocks


def drafter_plan(settings: Settings, available_bytes: int, width: int | None = None) -> PoolPlan:
    """The pool of a target with a DFlash drafter."""
    deployment = Deployment(
        "vllm",
        "older",
        tp=settings.tp or 1,
        kv_dtype=settings.kv_dtype,
        drafts=settings.drafts or 0,
    )
    options = VllmOptions(
        max_model_len=settings.max_model_len,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        prefix_caching=True,
        draft_method="dflash",
        draft_layers=settings.drafter,
        group_layers=width,
    )
    return plan_vllm(settings.model, deployment, options, available_bytes)


def widths(case: Case) -> dict[Where, Any]:
    """One pool under several group widths."""
    settings, observed = settings_of(case), case["observed"]
    found: dict[Where, Any] = {}
    for index, one in enumerate(observed["widths"]):
        plan = drafter_plan(settings, observed["pool_bytes"], one["width"])
        found["widths", index, "num_blocks"] = plan.num_blocks
        found["widths", index, "blocks_per_request"] = sum(plan.blocks_per_request)
        found["widths", index, "kv_tokens"] = plan.kv_tokens
    return found
