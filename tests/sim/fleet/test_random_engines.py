"""A host tier and received prompts on random vLLM engines: windows, chunks, states, units."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridplan.errors import RefusalError
from hybridplan.sim.fleet.decode import receiving
from hybridplan.sim.fleet.host import HostTier
from hybridplan.sim.request import Request
from hybridplan.sim.vllm import invariants
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.scheduler import Step
from hybridplan.sim.vllm.sequence import Sequence
from hybridplan.sim.vllm.types import VllmCacheConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "vllm"))

import random_cases
import traced_cases

MANY = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ECHO = {"resolved": {"groups": []}}


class Checked:
    """Calls a check after every step of an engine."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def scheduled(self, step: int, plan: Step) -> None:
        self._check()

    def finished(self, step: int, seq: Sequence) -> None:
        self._check()


def scenario(seed: int) -> tuple[VllmCacheConfig, list[Request]]:
    case = random_cases.random_case(seed, drafts=False)
    version = Random(seed).choice(["0.32", "0.33"])
    config = traced_cases.config_of(case, ECHO, version)
    return config, traced_cases.requests_of(case)


def finish(engine: ReplayedVllm) -> list[int]:
    """Hit tokens of the requests that end."""
    hits = []
    for _ in range(5000):
        if not engine.has_work:
            return hits
        _, _, ended = engine.step()
        hits += [outcome.hit_tokens for _, outcome in ended]
    raise engine.blocked()


@MANY
@given(st.integers(0, 1_000_000), st.integers(1, 60))
def test_loads_keep_every_invariant(seed: int, host_blocks: int) -> None:
    config, requests = scenario(seed)
    engine = ReplayedVllm(config)
    host = HostTier(engine, host_blocks, 1)
    inner = engine.engine
    engine.engine.observers.append(Checked(partial(invariants.check, inner)))
    for request in [*requests, *requests]:
        if engine.refusal(request) is not None:
            continue
        load = host.find(request)
        if load is not None:
            host.loaded(load)
        engine.add(request)
        try:
            (hit,) = finish(engine)
        except RefusalError:
            return
        if load is not None:
            host.ended(load)
            assert hit <= load.hit_tokens
        invariants.check(inner)


@MANY
@given(st.integers(0, 1_000_000))
def test_received_prompts_keep_every_invariant(seed: int) -> None:
    config, requests = scenario(seed)
    engine = receiving(ReplayedVllm(config, attribute_losses=False))
    inner = engine.engine
    inner.observers.append(Checked(partial(invariants.check, inner)))
    taken = [request for request in requests if engine.refusal(request) is None]
    for request in taken:
        engine.add(request)
    try:
        assert len(finish(engine)) == len(taken)
    except RefusalError:
        return
    assert inner.pool.used == [0] * len(config.groups)


def test_random_traces_reach_loads_and_nearly_all_become_hits() -> None:
    loads = hits = 0
    for seed in range(100):
        config, requests = scenario(seed)
        engine = ReplayedVllm(config)
        host = HostTier(engine, 10_000, 1)
        for request in [*requests, *requests]:
            if engine.refusal(request) is not None:
                continue
            load = host.find(request)
            if load is not None:
                host.loaded(load)
            engine.add(request)
            try:
                (hit,) = finish(engine)
            except RefusalError:
                break
            if load is not None:
                host.ended(load)
                loads += 1
                hits += hit == load.hit_tokens
    assert loads > 40
    assert hits > 0.9 * loads
