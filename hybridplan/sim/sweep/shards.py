"""Small replays that stand for a large one: SHARDS' spatial sampling, over prefix trees.

SHARDS (Waldspurger et al., FAST 2015) keeps the objects whose hash falls below a rate and shrinks
the cache by it. Prompts reuse whole prefixes, so the objects here are subtrees: requests that
share their first units are kept or left out together. What every request shares above that depth
is held in full by each sample, and a running request does not shrink either; so estimates carry a
bias beside their error bars, which full runs have to show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import sqrt

from hybridplan.sim.marconi.replayed import ReplayedMarconi
from hybridplan.sim.outcome import EngineUse
from hybridplan.sim.replay import Engine
from hybridplan.sim.request import Request
from hybridplan.sim.sglang.replayed import ReplayedSglang
from hybridplan.sim.vllm.keys import identity_of
from hybridplan.sim.vllm.replayed import ReplayedVllm

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
LARGEST_TREE = 0.02
"""Share of the prompt tokens one sampled tree may hold, where the depths allow it."""
SAMPLES = 4
_STUDENT_95 = 3.182  # t of three degrees of freedom, two-sided


@dataclass(frozen=True, slots=True)
class Estimate:
    """A hit rate and the half width of its 95 % interval, from disjoint samples."""

    hit_rate: float
    half_width: float


def sampling_depth(requests: Iterable[Request]) -> int:
    """Units of prefix that name a tree: the fewest of DEPTHS with no tree above LARGEST_TREE."""
    trees: list[Counter[bytes]] = [Counter() for _ in DEPTHS]
    total = 0
    for request in requests:
        total += request.prompt.length_tokens
        for depth, counter in zip(DEPTHS, trees, strict=True):
            counter[_tree(request, depth)] += request.prompt.length_tokens
    for depth, counter in zip(DEPTHS, trees, strict=True):
        if max(counter.values(), default=0) <= LARGEST_TREE * total:
            return depth
    return DEPTHS[-1]


def _tree(request: Request, depth: int) -> bytes:
    identity = identity_of(request)
    if not identity.ids:
        return b"alone " + request.request_id.encode()
    first = tuple(identity.ids[:depth])
    name = first[-1:] if identity.chained else first
    # A scope is "FILE/SESSION": without the file's name a copy of it gives the same samples.
    session = identity.scope.partition("/")[2]
    return blake2b(repr((session, name)).encode(), digest_size=8).digest()


def sample(requests: Iterable[Request], depth: int, parts: int, number: int) -> Iterator[Request]:
    """Sample ``number`` of ``parts`` disjoint ones, in trace order."""
    for request in requests:
        spot = blake2b(_tree(request, depth), digest_size=8, key=b"shards").digest()
        if int.from_bytes(spot, "big") * parts >> 64 == number:
            yield request


def estimate(most: float, lost: Sequence[tuple[int, int]], parts: int) -> Estimate:
    """The rate with unlimited memory, ``most``, less what samples lose to a small one.

    ``lost`` holds (hit tokens lost, prompt tokens) of at least two samples, each one of ``parts``.
    Samples differ far more in what they reuse at all than in what eviction takes from it.
    """
    total = sum(prompt for _, prompt in lost)
    if not total:
        return Estimate(most, 1.0)
    rate = sum(tokens for tokens, _ in lost) / total
    spread = sum((tokens - rate * prompt) ** 2 for tokens, prompt in lost)
    count = len(lost)
    error = sqrt(spread * count / (count - 1) * (1 - count / parts)) / total
    return Estimate(max(most - rate, 0.0), min(_STUDENT_95 * error, 1.0))


def shrunk(engine: Engine, parts: int, whole: EngineUse) -> Engine | None:
    """The same engine with 1/``parts`` of the pool that running requests leave.

    ``whole`` is the use over an unlimited run: what a request holds at most and on average. None
    where the small pool would not hold three of the largest requests.
    """
    if isinstance(engine, ReplayedMarconi):
        capacity = engine.config.capacity_bytes // parts
        return ReplayedMarconi(
            replace(engine.config, capacity_bytes=capacity), attribute_losses=False
        )
    means = [group.mean_blocks for group in whole.groups]
    peaks = [group.peak_blocks for group in whole.groups]
    if isinstance(engine, ReplayedSglang):
        config = engine.config
        page = config.page_tokens
        pages = _left(config.kv_tokens // page, means[0], parts)
        slots = _left(config.state_slots, means[1], parts)
        if pages < 3 * (peaks[0] + 1) or slots < 3 * config.slots_per_request:
            return None
        return ReplayedSglang(
            replace(config, kv_tokens=pages * page, state_slots=slots),
            max_running_requests=engine.max_running_requests,
            context_tokens=engine.context_tokens,
            attribute_losses=False,
        )
    if isinstance(engine, ReplayedVllm):
        blocks = 1 + _left(engine.config.num_blocks - 1, sum(means), parts)
        if blocks < 3 * (sum(peaks) + 1):
            return None
        small = replace(engine.config, num_blocks=blocks)
        return ReplayedVllm(small, attribute_losses=False)
    return None


def _left(pool: int, running: float, parts: int) -> int:
    return round((pool - running) / parts + running)
