"""What a trace amounts to: lengths, rate, sessions, and the reuse an unlimited cache would see.

Reuse is counted at the trace's own resolution: a prompt reuses its leading units that an earlier
prompt had, in the order the requests come, capped at its length. With the last-token cap a fully
reused prompt computes its last unit, as an engine must to have logits. This is a ceiling for KV
caches; a hybrid model reuses less (a state must exist at the position). Ids cover prompts only,
so an answer counts as new when it first comes back in a prompt.

Memory is proportional to the distinct ids, lengths and sessions of the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hybridplan.errors import InputError
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Distribution:
    """Exact statistics of whole numbers; percentile p is the sorted value nearest to
    position p (n - 1), counted from 0."""

    count: int
    total: int
    mean: float
    minimum: int
    p50: int
    p90: int
    p99: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """Tokens an unlimited cache of prompts would not compute again.

    Fractions are of all input tokens. ``capped`` leaves the last unit of a fully reused prompt to
    be computed. ``unique_units`` is the cache's footprint in trace units, ``unique_tokens`` the
    tokens they cover.
    """

    reusable_tokens: int
    reusable_fraction: float
    capped_tokens: int
    capped_fraction: float
    unique_units: int
    unique_tokens: int


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Statistics of one pass. Times are s; None where the trace has no such thing."""

    requests: int
    warmup_requests: int
    input: Distribution
    output: Distribution
    empty_prompts: int
    empty_outputs: int
    duration_s: float | None
    requests_per_s: float | None
    input_tokens_per_s: float | None
    sessions: int | None
    turns: Distribution | None
    linked_outputs: int
    reuse: Reuse | None


def distribution(counts: Counter[int]) -> Distribution:
    """Statistics of a non-empty multiset given as value -> multiplicity."""
    count = counts.total()
    total = sum(value * times for value, times in counts.items())
    ranks = {name: _nearest(percent * (count - 1)) for name, percent in _PERCENTS}
    found: dict[str, int] = {}
    seen = 0
    ordered = sorted(counts)
    for value in ordered:
        seen += counts[value]
        for name, rank in ranks.items():
            if name not in found and seen > rank:
                found[name] = value
    return Distribution(
        count=count,
        total=total,
        mean=total / count,
        minimum=ordered[0],
        maximum=ordered[-1],
        p50=found["p50"],
        p90=found["p90"],
        p99=found["p99"],
    )


_PERCENTS = (("p50", 50), ("p90", 90), ("p99", 99))


def _nearest(hundredths: int) -> int:
    """hundredths / 100 to the nearest whole number, halves to even."""
    whole, rest = divmod(hundredths, 100)
    return whole + (rest > 50 or (rest == 50 and whole % 2 == 1))


class PrefixIndex:
    """Every prefix seen so far, by namespace and unit; an unlimited cache at trace resolution."""

    def __init__(self) -> None:
        self._chained: dict[tuple[str, int], set[int]] = {}
        self._trees: dict[tuple[str, int], dict[tuple[int, int], int]] = {}

    def admit(self, prompt: Prompt) -> int:
        """Leading units of a prompt seen before; its units are known from now on."""
        place = (prompt.scope, prompt.unit_tokens)
        ids = prompt.ids
        if prompt.chained:
            seen = self._chained.setdefault(place, set())
            units = 0
            for item in ids:
                if item not in seen:
                    break
                units += 1
            seen.update(ids[units:])
            return units
        tree = self._trees.setdefault(place, {})
        node = units = 0
        for item in ids:
            below = tree.get((node, item))
            if below is None:
                break
            node, units = below, units + 1
        for item in ids[units:]:
            tree[node, item] = node = len(tree) + 1
        return units

    @property
    def units(self) -> int:
        """Distinct prefixes known."""
        return sum(map(len, self._chained.values())) + sum(map(len, self._trees.values()))


def trace_statistics(trace: Trace, *, warmup_requests: int = 0) -> TraceStatistics:
    """Read a trace once and describe it.

    ``warmup_requests`` first requests fill the cache without being counted: a window cut out of
    a service understates reuse at its start. Raises InputError like ``Trace.requests``, and when
    the warm-up leaves nothing.
    """
    per_session_clock = trace.info.clock_scope.value == "session"
    return request_statistics(
        trace.requests(), warmup_requests=warmup_requests, one_clock=not per_session_clock
    )


def request_statistics(
    requests: Iterable[Request], *, warmup_requests: int = 0, one_clock: bool = True
) -> TraceStatistics:
    """``trace_statistics`` of any requests; without ``one_clock`` there is no rate."""
    inputs: Counter[int] = Counter()
    outputs: Counter[int] = Counter()
    sessions: Counter[str] = Counter()
    index = PrefixIndex()
    reusable = capped = known_tokens = linked = 0
    first_s: float | None = None
    last_s: float | None = None
    warmup_units = 0
    with_ids = False
    for number, request in enumerate(requests):
        prompt = request.prompt
        units = index.admit(prompt) if prompt.ids else 0
        if number < warmup_requests:
            warmup_units = index.units
            continue
        with_ids = with_ids or bool(prompt.ids)
        inputs[prompt.length_tokens] += 1
        outputs[request.output_tokens] += 1
        linked += request.sequence is not None
        if request.session is not None:
            sessions[request.session] += 1
        arrival_s = request.arrival_s
        if arrival_s is not None:
            first_s = arrival_s if first_s is None else min(first_s, arrival_s)
            last_s = arrival_s if last_s is None else max(last_s, arrival_s)
        hit = min(units * prompt.unit_tokens, prompt.length_tokens)
        reusable += hit
        known_tokens += prompt.known_tokens
        if hit and hit == prompt.length_tokens:
            hit = (hit - 1) // prompt.unit_tokens * prompt.unit_tokens
        capped += hit
    count = inputs.total()
    if not count:
        raise InputError(f"the warm-up of {warmup_requests} requests leaves none to describe")
    total = sum(length * times for length, times in inputs.items())
    duration_s = (
        last_s - first_s if one_clock and first_s is not None and last_s is not None else None
    )
    timed = duration_s is not None and duration_s > 0
    return TraceStatistics(
        requests=count,
        warmup_requests=warmup_requests,
        input=distribution(inputs),
        output=distribution(outputs),
        empty_prompts=inputs[0],
        empty_outputs=outputs[0],
        duration_s=duration_s,
        requests_per_s=count / duration_s if timed and duration_s else None,
        input_tokens_per_s=total / duration_s if timed and duration_s else None,
        sessions=len(sessions) or None,
        turns=distribution(Counter(sessions.values())) if sessions else None,
        linked_outputs=linked,
        reuse=Reuse(
            reusable_tokens=reusable,
            reusable_fraction=reusable / total if total else 0.0,
            capped_tokens=capped,
            capped_fraction=capped / total if total else 0.0,
            unique_units=index.units - warmup_units,
            unique_tokens=known_tokens - reusable,
        )
        if with_ids
        else None,
    )
