"""How many requests fit at once: draw lengths until a pool is full, many times over."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from hybridplan.errors import RefusalError
from hybridplan.ledger.lengths.distribution import Lengths

MAX_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class Pool:
    """``capacity`` in the pool's own unit, and what a request of n tokens takes of it."""

    name: str
    capacity: int
    cost: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Requests in flight over the resamples, each at its full length.

    ``binds`` is the share of resamples in which each pool (or "max_num_seqs") refused the next
    request; ``used_share`` the mean fill of each pool at that moment. ``tokens`` is the mean number
    of tokens then cached.
    """

    mean: float
    p5: int
    p95: int
    tokens: float
    binds: dict[str, float]
    used_share: dict[str, float]
    resamples: int
    seed: int


def concurrency(
    lengths: Lengths,
    pools: tuple[Pool, ...],
    *,
    max_requests: int | None = None,
    limit_name: str = "max_num_seqs",
    resamples: int = 400,
    seed: int = 0,
) -> Concurrency:
    """Fill the pools with requests drawn from ``lengths`` until one refuses, ``resamples`` times.

    The same seed gives the same draws for any pools, so two settings are compared on the same
    requests. Raises RefusalError if a pool cannot hold even one request in any resample.
    """
    counts: list[int] = []
    tokens = 0
    binds = {pool.name: 0 for pool in pools} | {limit_name: 0}
    fills = {pool.name: 0.0 for pool in pools}
    limit = min(max_requests or MAX_REQUESTS, MAX_REQUESTS)
    for index in range(resamples):
        rng = random.Random(seed * 1_000_003 + index)
        used = [0] * len(pools)
        count = 0
        refused = limit_name
        while count < limit:
            length = lengths.draw(rng)
            costs = [pool.cost(length) for pool in pools]
            short = next(
                (
                    pool.name
                    for pool, have, cost in zip(pools, used, costs, strict=True)
                    if have + cost > pool.capacity
                ),
                None,
            )
            if short is not None:
                refused = short
                break
            used = [have + cost for have, cost in zip(used, costs, strict=True)]
            count += 1
            tokens += length
        counts.append(count)
        binds[refused] += 1
        for pool, have in zip(pools, used, strict=True):
            fills[pool.name] += have / pool.capacity
    if not any(counts):
        names = ", ".join(f"{pool.name} {pool.capacity:,}" for pool in pools)
        raise RefusalError(
            f"not one request drawn from {lengths.name} fits ({names}); raise the memory or the "
            "number of GPUs"
        )
    ordered = sorted(counts)
    return Concurrency(
        mean=sum(counts) / resamples,
        p5=ordered[int(0.05 * (resamples - 1))],
        p95=ordered[int(0.95 * (resamples - 1))],
        tokens=tokens / resamples,
        binds={name: times / resamples for name, times in binds.items()},
        used_share={name: fill / resamples for name, fill in fills.items()},
        resamples=resamples,
        seed=seed,
    )
