"""Prefix hits: two identical prompts through the replay, on the pool the plan gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from case_boot import Where
from case_settings import Case, Settings, settings_of

from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.logs import vllm as log
from hybridplan.ledger.logs.lines import read_facts
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm
from hybridplan.sim import Prompt, Request, simulate
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.vllm.from_plan import cache_config
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

# The oldest rules the replay knows; they drop a draft's last block as all before them did.
REPLAYED_RULES = "0.32"
_AMPLE_BYTES = 1 << 40
_DTYPES = ("kv_dtype", "state_dtype")


def pool(settings: Settings, unit: int | None = None) -> tuple[PoolPlan, VllmCacheConfig]:
    """The plan of a case's model with prefix caching, and the replay's cache for it."""
    deployment = Deployment(
        "vllm",
        REPLAYED_RULES,
        tp=settings.tp or 1,
        kv_dtype=settings.kv_dtype,
        state_dtype=settings.state_dtype,
        drafts=settings.drafts or 0,
    )
    options = VllmOptions(
        prefix_caching=True,
        prefix_match_unit=unit,
        max_num_batched_tokens=1 << 15,
        kernel_block_tokens=settings.given.get("kernel_block_tokens"),
    )
    plan = plan_vllm(settings.model, deployment, options, _AMPLE_BYTES)
    return plan, cache_config(plan, options)


def second_hit(config: VllmCacheConfig, first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens the second prompt finds cached after the first has run."""
    requests = [
        Request(str(i), Prompt(len(ids), 1, ids), 1) for i, ids in enumerate((first, second))
    ]
    outcomes: list[RequestOutcome] = []
    simulate(requests, ReplayedVllm(config), on_outcome=outcomes.append)
    return outcomes[-1].hit_tokens


def replayed(config: VllmCacheConfig, tokens: int) -> int:
    """Tokens cached when a prompt of that length comes again."""
    return second_hit(config, range(tokens), range(tokens))


def _inferred(case: Case, settings: Settings, block: int) -> Settings:
    """The settings with what explain-log finds behind that block."""
    lines = [
        f"Initializing a V1 LLM engine (v{settings.version.split(' ')[0]}) with config:",
        f"Setting attention block size to {block} tokens",
    ]
    facts = read_facts(lines, case["id"])
    given: dict[str, Any] = {"tp": settings.tp, "prefix_caching": "True"}
    given |= {"drafts": settings.drafts} if settings.drafts is not None else {}
    given |= {"state_dtype": settings.state_dtype} if settings.state_dtype else {}
    report = log.explain(facts, case["id"], settings.model, "", given)
    assert report.agrees, report.lines
    found = {setting.name: setting.value for setting in report.settings}
    dtypes = {key: None if found[key] == "auto" else found[key] for key in _DTYPES}
    return replace(settings, tp=int(found["tp"]), drafts=int(found["drafts"]), **dtypes)


def hits(case: Case) -> dict[Where, Any]:
    """Block size and cached tokens (or the hit rate) of a prompt that came before."""
    settings, observed = settings_of(case), case["observed"]
    plan, config = pool(settings)
    found: dict[Where, Any] = {("block_size",): plan.block_tokens}
    for index, one in enumerate(observed.get("hits", ())):
        rate = replayed(config, one["prompt"]) / one["prompt"]
        name = "hit_rate" if "hit_rate" in one else "hit_rate_about"
        found["hits", index, name] = rate
    if "cached" in observed:
        found["cached",] = replayed(config, observed["prompt"])
    if "shared_prefix" in observed:
        short, long = observed["prompt_tokens"]
        shared = observed["shared_prefix"]
        other = [*range(shared), *range(long, 2 * long - shared)]
        hit = second_hit(config, range(short), other)
        found["derived", "cached"] = hit
    return found


def ladder(case: Case) -> dict[Where, Any]:
    """Cached tokens of prompts of doubling length, for each block size of the thread."""
    settings, observed = settings_of(case), case["observed"]
    found: dict[Where, Any] = {}
    for index, one in enumerate(observed["ladder"]):
        plan, config = pool(_inferred(case, settings, one["block_size"]))
        found["ladder", index, "block_size"] = plan.block_tokens
        found["ladder", index, "cached"] = [replayed(config, n) for n in one["prompt"]]
    return found


def match_units(case: Case) -> dict[Where, Any]:
    """The thread's formula for several match units U, on three prompt lengths each."""
    settings, observed = settings_of(case), case["observed"]
    exact = block = 0
    for unit in observed["units"]:
        plan, config = pool(settings, unit)
        block = plan.block_tokens
        for n in (block - 1, 2 * block + 7, 3 * block + 300):
            formula = max((n - 1 - unit) // unit * unit, 0)
            exact += replayed(config, n) == formula
    return {("block_size",): block, ("configs_exact",): exact}


def lcm_of_groups(case: Case) -> dict[Where, Any]:
    """DeepSeek-V4: groups of several block sizes; a hit ends on their least common multiple."""
    observed = case["observed"]
    lcm, tokens = observed["lcm_block_size"], observed["hit_without_mtp"]
    found: dict[Where, Any] = {}
    for name, drops in (("hit_without_mtp", False), ("hit_with_mtp", True)):
        groups = (
            VllmGroup(GroupKind.MLA, lcm, is_draft=False, name="compressed"),
            VllmGroup(GroupKind.MLA, lcm // 128, is_draft=drops, name="dense"),
        )
        config = VllmCacheConfig(
            groups=groups,
            num_blocks=4096,
            version=REPLAYED_RULES,
            max_model_len=1 << 20,
            draft_tokens=1 if drops else 0,
            drop_draft_block=drops,
        )
        # One token more than the longest hit, because the last is always computed.
        found[name,] = replayed(config, tokens + 1)
    return found
