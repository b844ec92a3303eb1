"""What ``hybridplan simulate`` answers. Tokens and bytes are whole numbers, rates are fractions of
the prompt tokens of the requests replayed, bytes are per rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.planning.result import Memory
from hybridplan.sim.outcome import LossCause, Summary
from hybridplan.sim.time.result import TimeResult
from hybridplan.sim.traces.facts import TraceInfo

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """A cache group before the replay: what it holds and the size of its blocks."""

    kind: str
    layers: int
    block_tokens: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Setup:
    """The engine that was replayed, echoed so that a saved result can be run again.

    ``rules`` names engine and version, ``policy`` what decides where states are kept
    ("engine", or "all": a state at every block, which no present vLLM does). ``num_blocks`` is
    None for an unlimited pool, and ``memory`` None where no bytes were given. ``settings`` are the
    engine's own limits and switches in force, by its own names.
    """

    model: str
    deployment: Deployment
    rules: str
    policy: str
    memory: Memory | None
    num_blocks: int | None
    bytes_per_block: int
    block_tokens: int
    hash_block_tokens: int
    hit_alignment_tokens: int
    groups: tuple[PoolGroup, ...]
    settings: dict[str, int | float | bool | str | None]
    assumptions: tuple[str, ...] = ()

    @property
    def work_tokens(self) -> int:
        """Tokens a replay handles in one go: a hash block, or SGLang's grid of states."""
        return self.hit_alignment_tokens if self.block_tokens == 1 else self.hash_block_tokens

    @property
    def has_states(self) -> bool:
        """Whether any group holds recurrent states."""
        return any(group.kind.startswith(("mamba", "state")) for group in self.groups)


@dataclass(frozen=True, slots=True)
class Loss:
    """One cause and the tokens it cost; ``share`` is of everything lost."""

    cause: LossCause
    tokens: int
    share: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Hits:
    """Prompt tokens that needed no prefill.

    ``kv`` is what KV alone would have allowed, ``ceiling`` what an infinite cache would have at
    the trace's resolution. Where the trace's unit is coarser than the block, ``usable`` is the
    lower bound (prompts part at the start of the unit they part in) and ``upper`` the other
    reading; elsewhere ``exact`` is True and ``upper`` None.
    """

    usable_tokens: int
    usable_rate: float
    kv_tokens: int
    kv_rate: float
    ceiling_tokens: int | None
    ceiling_rate: float | None
    exact: bool
    upper_tokens: int | None
    upper_rate: float | None


@dataclass(frozen=True, slots=True)
class States:
    """Recurrent states kept for reuse; a state counts once over all layers."""

    kept: int
    ever_hit: int
    useless: int
    bytes_per_state: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class Use:
    """Blocks of one group that requests held: peak and mean over engine steps, and all taken."""

    kind: str
    name: str
    peak_blocks: int
    mean_blocks: float
    allocated_blocks: int


@dataclass(frozen=True, slots=True)
class Queue:
    """Waiting and preemption. ``waited_s`` and ``elapsed_s`` exist on a clock only."""

    requests_waited: int
    waited_steps: int
    waited_s: float | None
    elapsed_s: float | None
    steps: int
    peak_running: int
    peak_waiting: int
    preemptions: int
    recomputed_tokens: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Requests the engine would not take, by reason, and the first of them."""

    reason: str
    requests: int
    first: str


@dataclass(frozen=True, slots=True)
class Point:
    """One stretch of the replay: ``finished`` requests at its end, tokens within it, and the mean
    blocks in use by group, in the order of ``SimulateResult.use``."""

    finished: int
    prompt_tokens: int
    hit_tokens: int
    mean_blocks: tuple[float, ...]
    cached_blocks: int
    evictions: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change of flags and the hit rate it gives when re-run.

    ``requests`` first requests of the trace were re-run, with the change and without
    (``base_rate``). ``recovered`` is the share of those requests' loss that it wins back.
    ``price`` says what the flag costs, "" where nothing is known to.
    """

    flags: tuple[str, ...]
    why: str
    price: str
    requests: int
    base_rate: float
    hit_rate: float
    gained_tokens: int
    recovered: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """The best changes found, best first. ``tried`` counts re-runs, ``refused`` are changes the
    engine would not start with, ``whole_trace`` tells whether all requests were re-run and
    ``note`` what could not be tried."""

    suggestions: tuple[Suggestion, ...]
    tried: tuple[Suggestion, ...]
    refused: tuple[str, ...]
    requests: int
    whole_trace: bool
    note: str


@dataclass(frozen=True, slots=True)
class SimulateResult:
    """Everything ``hybridplan simulate`` prints. The tokens of ``losses`` sum to ceiling - usable.

    ``partial`` is True when the trace was not replayed to its end (Ctrl-C); ``interrupted`` names
    what Ctrl-C cut short: "replay", "upper bound", "advice",
    "baseline" or "rate search". ``held_blocks`` still carry a key
    at the end, free for reuse; ``held_bytes`` is what they take. ``time`` exists with a
    calibration, and with timed arrival where an SLO was asked for.
    """

    schema_version: int
    trace: TraceInfo
    setup: Setup
    arrival: str
    requests: int
    refused: tuple[Refused, ...]
    requests_hit: int
    prompt_tokens: int
    output_tokens: int
    hits: Hits
    lost_tokens: int
    losses: tuple[Loss, ...]
    states: States | None
    use: tuple[Use, ...]
    num_blocks: int | None
    held_blocks: int
    held_bytes: int
    evictions: int
    queue: Queue
    timeline: tuple[Point, ...]
    advice: Advice | None
    assumptions: tuple[str, ...]
    partial: bool
    interrupted: str | None
    time: TimeResult | None = None


def count_refused(found: dict[str, Refused], more: Refused) -> None:
    """Add refusals to those known; reasons that differ in numbers only are one."""
    kind = re.sub(r"\d+", "", more.reason)
    known = found.get(kind) or Refused(more.reason, 0, more.first)
    found[kind] = Refused(known.reason, known.requests + more.requests, known.first)


def hits_of(lower: Summary, upper: Summary | None) -> Hits:
    """Both readings of one replay."""
    return Hits(
        usable_tokens=lower.hit_tokens,
        usable_rate=lower.hit_rate,
        kv_tokens=lower.kv_hit_tokens,
        kv_rate=lower.kv_hit_rate,
        ceiling_tokens=lower.ceiling_tokens,
        ceiling_rate=lower.ceiling_rate,
        exact=lower.exact_identity,
        upper_tokens=upper.hit_tokens if upper else None,
        upper_rate=upper.hit_rate if upper else None,
    )


def losses_of(summary: Summary) -> tuple[Loss, ...]:
    """Causes, largest first; equal ones in the order of LossCause."""
    total = summary.lost_tokens
    ordered = sorted(summary.lost, key=lambda pair: -pair[1])
    return tuple(
        Loss(cause, tokens, tokens / total if total else 0.0, cause.sentence)
        for cause, tokens in ordered
    )
