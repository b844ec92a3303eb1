"""The pools against a length distribution: how many requests run, and which setting runs most."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import gcd

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError
from hybridplan.ledger.crossover import attention_twin
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.lengths.distribution import Lengths
from hybridplan.ledger.lengths.fill import Concurrency, Pool, concurrency
from hybridplan.ledger.planning.ask import VllmAsk
from hybridplan.ledger.planning.result import Choice, LengthsResult
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.sglang.plan import SglangPlan, plan_sglang
from hybridplan.ledger.vllm.options import AUTO_FIT
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm

RESAMPLES = 200
DEFAULT = "default"
_BLOCK_SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
_WINDOWED = ("sliding", "chunked")


def _block_cost(pool: PoolPlan) -> Callable[[int], int]:
    """Blocks of a request of n tokens, remembered per whole unit of all groups' blocks."""
    windowed = any(group.kind in _WINDOWED for group in pool.groups)
    sizes = [group.block_tokens for group in pool.groups if group.kind in ("full", "mla")]
    unit = 1 if windowed or not sizes else gcd(*sizes)
    known: dict[int, int] = {}

    def cost(tokens: int) -> int:
        key = -(-tokens // unit)
        if key not in known:
            known[key] = sum(pool.request_blocks(key * unit))
        return known[key]

    return cost


def _vllm_run(lengths: Lengths, pool: PoolPlan, seqs: int | None, seed: int) -> Concurrency:
    blocks = Pool("blocks", pool.usable_blocks, _block_cost(pool))
    got = concurrency(lengths, (blocks,), max_requests=seqs, resamples=RESAMPLES, seed=seed)
    refused = got.binds.pop("blocks")
    larger = _larger_part(lengths, pool, seed)
    return replace(got, binds={larger: refused, **got.binds})


def _larger_part(lengths: Lengths, pool: PoolPlan, seed: int) -> str:
    """What most blocks hold when vLLM's one pool is full: states, or KV."""
    rng = random.Random(seed)
    state = kv = 0
    for _ in range(RESAMPLES):
        for group, blocks in zip(pool.groups, pool.request_blocks(lengths.draw(rng)), strict=True):
            if group.kind in ("full", "mla", "ring", *_WINDOWED):
                kv += blocks
            else:
                state += blocks
    return "state blocks" if state > kv else "KV blocks"


def _twin_vllm(ask: VllmAsk, lengths: Lengths, available_bytes: int) -> Concurrency | None:
    twin = attention_twin(ask.spec)
    if twin is None or twin.layers == ask.spec.layers:
        return None
    try:
        options = replace(ask.options, max_model_len=AUTO_FIT)
        pool = plan_vllm(twin, ask.deployment, options, available_bytes)
        return _vllm_run(lengths, pool, ask.max_num_seqs, ask.seed)
    except HybridplanError:
        return None


def vllm_lengths(ask: VllmAsk, pool: PoolPlan, available_bytes: int) -> LengthsResult:
    """Default against ``--block-size`` values, each on the same draws."""
    lengths = ask.lengths
    assert lengths is not None
    default = _vllm_run(lengths, pool, ask.max_num_seqs, ask.seed)
    choices = {pool.block_tokens: Choice(DEFAULT, default)}
    for size in _BLOCK_SIZES:
        try:
            options = replace(ask.options, block_tokens=size)
            other = plan_vllm(ask.spec, ask.deployment, options, available_bytes)
            if other.block_tokens not in choices:
                run = _vllm_run(lengths, other, ask.max_num_seqs, ask.seed)
                choices[other.block_tokens] = Choice(str(size), run)
        except HybridplanError:
            continue
    ordered = tuple(choices[tokens] for tokens in sorted(choices))
    return _result(
        lengths,
        default,
        "--block-size",
        DEFAULT,
        ordered,
        _twin_vllm(ask, lengths, available_bytes),
    )


def _sglang_run(lengths: Lengths, plan: SglangPlan, seed: int) -> Concurrency:
    held = plan.slots_per_request
    slots = Pool("state slots", plan.split.slots, lambda tokens: held)
    tokens = Pool("KV tokens", plan.split.kv_tokens, lambda n: n)
    return concurrency(
        lengths,
        (slots, tokens),
        max_requests=plan.options.max_running_requests,
        limit_name="max_running_requests",
        resamples=RESAMPLES,
        seed=seed,
    )


def sglang_lengths(
    spec: ModelSpec,
    deployment: Deployment,
    options: SglangOptions,
    rest_bytes: int,
    lengths: Lengths,
    seed: int,
) -> LengthsResult:
    """Default against other ``--mamba-full-memory-ratio`` values, each on the same draws.

    A coarse grid, then finer steps on both sides of its best; of the finer ones only the best is
    kept. Slots given by hand are the default and the ratios stand against them.
    """
    given = options.slots is not None
    default = _sglang_run(lengths, plan_sglang(spec, deployment, options, rest_bytes), seed)

    def at(ratio: Fraction) -> Concurrency | None:
        try:
            split = replace(options, ratio=ratio, slots=None)
            return _sglang_run(lengths, plan_sglang(spec, deployment, split, rest_bytes), seed)
        except HybridplanError:
            return None

    coarse = {ratio: run for ratio in _ratios() if (run := at(ratio)) is not None}
    if not given:
        coarse[options.ratio] = default
    finer = {ratio: run for ratio in _between(coarse) if (run := at(ratio)) is not None}
    if finer:
        top = max(finer, key=lambda ratio: finer[ratio].mean)
        if finer[top].mean > max(run.mean for run in coarse.values()):
            coarse[top] = finer[top]
    name = f"{options.slots} slots" if given else _written(options.ratio)
    ordered = [Choice(name, default)] if given else []
    ordered += [Choice(_written(ratio), coarse[ratio]) for ratio in sorted(coarse)]
    return _result(
        lengths,
        default,
        "--mamba-full-memory-ratio",
        name,
        tuple(ordered),
        _twin_sglang(spec, deployment, rest_bytes, lengths, options, seed),
    )


def _written(ratio: Fraction) -> str:
    return f"{float(ratio):g}"


def _ratios() -> list[Fraction]:
    """From 1/64 to 8, two to an octave."""
    steps = [Fraction(1, 64) * 2**octave for octave in range(10)]
    return sorted([*steps, *(step * Fraction(3, 2) for step in steps[:-1])])


def _between(runs: dict[Fraction, Concurrency]) -> list[Fraction]:
    """Eighths of the way from the best ratio to its neighbours on either side."""
    if not runs:
        return []
    ratios = sorted(runs)
    best = ratios.index(max(ratios, key=lambda ratio: runs[ratio].mean))
    near = ratios[max(best - 1, 0) : best + 2]
    return [
        low + (high - low) * Fraction(k, 8) for low, high in pairwise(near) for k in range(1, 8)
    ]


def _twin_sglang(
    spec: ModelSpec,
    deployment: Deployment,
    rest_bytes: int,
    lengths: Lengths,
    options: SglangOptions,
    seed: int,
) -> Concurrency | None:
    from hybridplan.ledger.caches import model_caches
    from hybridplan.ledger.sglang.plan import kv_bytes_per_token

    twin = attention_twin(spec)
    if twin is None:
        return None
    per_token = kv_bytes_per_token(model_caches(twin, deployment), twin.name)
    pool = Pool("KV tokens", rest_bytes // per_token, lambda n: n)
    return concurrency(
        lengths,
        (pool,),
        max_requests=options.max_running_requests,
        limit_name="max_running_requests",
        resamples=RESAMPLES,
        seed=seed,
    )


def _result(
    lengths: Lengths,
    default: Concurrency,
    knob: str,
    default_value: str,
    choices: tuple[Choice, ...],
    twin: Concurrency | None,
) -> LengthsResult:
    top = max(choice.concurrency.mean for choice in choices)
    best = default_value
    if top > default.mean:
        best = next(choice.value for choice in choices if choice.concurrency.mean == top)
    gain = top / default.mean if default.mean else 0.0
    return LengthsResult(lengths.name, default, knob, choices, best, gain, twin)
