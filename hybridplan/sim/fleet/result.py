"""What a fleet answers. Tokens and bytes are whole numbers, bytes are per rank, rates are fractions
of the prompt tokens of the requests served."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.sim.fleet.routers import RouterAsk
from hybridplan.sim.result import Refused, Setup
from hybridplan.sim.time.result import Attained, ClockInfo, Latencies, Quantiles
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.traces.facts import TraceInfo

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReplicaResult:
    """What one replica did, or all of them together.

    ``computed_tokens`` are prompt tokens that were no hit. ``host_tokens`` are the hits that came
    from the host tier; they are part of ``hit_tokens``. ``ceiling_tokens`` is what an infinite
    cache at this replica would have given. ``busy_share`` is the time spent in steps over that
    from the fleet's first request to its last token, None without a clock. A decode instance has
    no hits: prompts arrive computed.
    """

    name: str
    role: str
    requests: int
    refused: int
    requests_hit: int
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    host_tokens: int
    kv_hit_tokens: int
    ceiling_tokens: int | None
    computed_tokens: int
    evictions: int
    states_kept: int
    states_hit: int
    preemptions: int
    steps: int
    peak_running: int
    peak_waiting: int
    busy_share: float | None
    latencies: Latencies | None

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The busiest replica over the mean one: 1 is even, the number of replicas is all on one."""

    requests: float
    prompt_tokens: float
    computed_tokens: float
    busy: float | None


@dataclass(frozen=True, slots=True)
class FleetLoss:
    """A cause and the tokens it cost. ``other_replica``: the prefix was seen by the fleet, and not
    by the replica that the request was sent to."""

    cause: str
    tokens: int
    share: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Reference:
    """What to hold the fleet's hits against; ``pool`` says whose memory it is."""

    name: str
    pool: str
    hit_tokens: int
    prompt_tokens: int
    hit_rate: float


@dataclass(frozen=True, slots=True)
class HostResult:
    """The host tiers of all replicas together; bytes and blocks of one rank of each.

    ``loads`` were taken, ``declined`` ones would have taken longer than computing. Loaded bytes
    pay for ``host_tokens`` of hits. ``stateless_tokens`` of prompts had KV on device or host and
    no state to start from. ``link_busy_share`` is the busiest link's.
    """

    capacity_bytes: int
    bytes_per_s: int | None
    loads: int
    declined: int
    loaded_bytes: int
    stored_bytes: int
    evicted_blocks: int
    host_tokens: int
    stateless_tokens: int
    link_busy_share: float | None


@dataclass(frozen=True, slots=True)
class TransferResult:
    """Prefill to decode: bytes of one rank, seconds a request waited for links and for bytes.

    ``most_bytes`` is the largest request's. ``link_busy_share`` is the busiest sender's and the
    busiest receiver's. ``decode_blocks`` bound how many requests decode at once, and the fullest
    decoder held no more than ``decode_peak_blocks`` of them (the sum of its groups' peaks).
    """

    prefill_replicas: int
    decode_replicas: int
    bytes_per_s: int | None
    requests: int
    moved_bytes: int
    mean_bytes: float
    most_bytes: int
    state_bytes: int
    waited_s: Quantiles | None
    moving_s: Quantiles | None
    sender_busy_share: float | None
    receiver_busy_share: float | None
    decode_blocks: int | None
    decode_peak_blocks: int
    decode_peak_running: int
    decode_peak_waiting: int
    decode_preemptions: int


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Everything a fleet prints. ``replicas`` sum to ``total`` in every count.

    ``setup`` is one replica's. ``believed_tokens`` is what the router took for cached where it
    sent requests (prefix-aware only). ``losses`` sum to the fleet's ceiling less its hits.
    ``ceiling_tokens`` is what one infinite cache for the whole fleet would have given. ``gpus`` are
    the ranks of all instances. ``interrupted`` names what Ctrl-C ended: in the replay only requests
    that were answered count, and there is no ceiling.
    """

    schema_version: int
    trace: TraceInfo
    setup: Setup
    arrival: str
    router: RouterAsk
    replicas: tuple[ReplicaResult, ...]
    decoders: tuple[ReplicaResult, ...]
    total: ReplicaResult
    imbalance: Imbalance
    ceiling_tokens: int | None
    losses: tuple[FleetLoss, ...]
    believed_tokens: int | None
    references: tuple[Reference, ...]
    clock: ClockInfo | None
    elapsed_s: float | None
    requests_per_s: float | None
    output_tokens_per_s: float | None
    gpus: int
    attained: Attained | None
    host: HostResult | None
    transfer: TransferResult | None
    refused: tuple[Refused, ...]
    assumptions: tuple[str, ...]
    interrupted: str | None


@dataclass(frozen=True, slots=True)
class FleetProbe:
    """One fleet that was replayed. ``busy_share`` is the mean replica's."""

    replicas: int
    share_met: float
    kept: bool
    hit_rate: float
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    busy_share: float | None


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The smallest fleet found that keeps an SLO, None where not even ``most`` replicas do.

    ``probes`` by size. All sizes below ``replicas`` that were tried do not keep it. ``monotonic``
    is False where a larger fleet that was tried does not keep it either; then sizes that were not
    tried may keep it too. ``answer`` is that fleet's (or the largest one's), in full. Where Ctrl-C
    ended the search (``interrupted``) ``replicas`` is None, whatever ``probes`` kept.
    """

    schema_version: int
    slo: Slo
    replicas: int | None
    most: int
    monotonic: bool
    probes: tuple[FleetProbe, ...]
    answer: FleetResult
    interrupted: bool


@dataclass(frozen=True, slots=True)
class RouterComparison:
    """The same fleet under every router; the first answer has the reference of one pool.

    ``interrupted``: Ctrl-C ended it, and routers that were not done are missing.
    """

    schema_version: int
    answers: tuple[FleetResult, ...]
    interrupted: bool
