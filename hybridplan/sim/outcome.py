"""What a replay answers: one outcome per request and a summary, all frozen and typed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LossCause(str, Enum):
    """Why a reusable token was not a hit. Every lost token has exactly one."""

    LAST_TOKEN = "last_token_cap"
    BELOW_ONE_BLOCK = "below_one_block"
    FORK_INSIDE_BLOCK = "fork_inside_block"
    DRAFT_DROP = "draft_drop"
    EVICTED = "evicted"
    NOT_COMPUTED_YET = "not_computed_yet"
    PREEMPTED = "preempted"
    NO_CHUNK_END = "no_state_no_chunk_end"
    NOT_RETAINED = "no_state_not_retained"
    DECODE_STATE = "no_state_decode_not_retained"
    OVERWRITTEN = "no_state_overwritten"
    OUT_OF_WINDOW = "no_window"
    OUTSIDE_CACHE = "prefix_caching_off"

    @property
    def sentence(self) -> str:
        """What the cause means, for a reader."""
        return _SENTENCES[self]


_SENTENCES = {
    LossCause.LAST_TOKEN: "the last token of a prompt is always computed",
    LossCause.BELOW_ONE_BLOCK: "the shared prefix, or its tail, is shorter than one block",
    LossCause.FORK_INSIDE_BLOCK: "the prompts part inside a block",
    LossCause.DRAFT_DROP: "the draft model drops or looks past the last matched block",
    LossCause.EVICTED: "it was cached and evicted",
    LossCause.NOT_COMPUTED_YET: "the request that showed it first had not computed it",
    LossCause.PREEMPTED: "the request that showed it first was preempted before computing it",
    LossCause.NO_CHUNK_END: "no chunk ended there, so no state existed",
    LossCause.NOT_RETAINED: "a state existed there and the retention interval dropped it",
    LossCause.DECODE_STATE: "a state existed there while decoding and retention dropped it",
    LossCause.OVERWRITTEN: "the state's block was overwritten by the running state",
    LossCause.OUT_OF_WINDOW: "a sliding-window group no longer held the window before it",
    LossCause.OUTSIDE_CACHE: "prefix caching is off",
}


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request, finished or refused. Counts are tokens unless the name says otherwise.

    ``hit_tokens`` needed no prefill at the first admission; ``kv_hit_tokens`` is what KV alone
    would have allowed; ``ceiling_tokens`` what an infinite cache would have (None if not tracked).
    ``lost`` sums to ``ceiling_tokens - hit_tokens``. ``recomputed_tokens`` were computed twice
    because of preemptions. Steps count engine steps; seconds are those of the replay's clock and
    None without one: ``arrival_s`` as the trace has it, ``waited_s`` from there to the first
    admission, ``sent_s`` when it reached the engine (later where it waited for an earlier turn),
    and from there ``queued_s`` to the first admission, ``ttft_s`` to the first output token,
    ``e2e_s`` to the last; ``tpot_s`` is the mean time between output tokens, None for one token.
    ``refused`` says why the engine would not take the request.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int = 0
    kv_hit_tokens: int = 0
    ceiling_tokens: int | None = None
    lost: tuple[tuple[LossCause, int], ...] = ()
    junction_tokens: int = 0
    prefill_chunks: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    arrival_step: int = 0
    first_step: int = 0
    finish_step: int = 0
    arrival_s: float | None = None
    waited_s: float | None = None
    finish_s: float | None = None
    sent_s: float | None = None
    queued_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    session: str | None = None
    turn: int | None = None
    refused: str | None = None

    @property
    def waited_steps(self) -> int:
        return self.first_step - self.arrival_step


@dataclass(frozen=True, slots=True)
class GroupUse:
    """Blocks of one group in use by requests; means are over engine steps."""

    name: str
    kind: str
    peak_blocks: int
    mean_blocks: float
    allocated_blocks: int


@dataclass(frozen=True, slots=True)
class StateUse:
    """Recurrent states kept for reuse. One state is one position, in every group of its kind."""

    kept: int
    ever_hit: int
    bytes_per_state: int
    """0 where the configuration does not say."""

    @property
    def kept_bytes(self) -> int:
        return self.kept * self.bytes_per_state

    @property
    def useless(self) -> int:
        return self.kept - self.ever_hit


@dataclass(frozen=True, slots=True)
class EngineUse:
    """What an engine did over a replay."""

    engine: str
    num_blocks: int
    groups: tuple[GroupUse, ...]
    states: StateUse
    evictions: int
    cached_blocks: int
    """Free blocks that still carry a key at the end."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals of a replay. Rates are fractions of the prompt tokens of the requests replayed.

    ``partial`` is True when the trace was not read to its end, ``interrupted`` when the user
    stopped it. ``assumptions`` are sentences that say what was not in the trace.
    ``exact_identity`` is False where the trace's unit is coarser than what the engine hashes, so
    that ``hit_tokens`` is the ``reading`` ("lower" or "upper") bound.
    """

    requests: int
    refused: int
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    kv_hit_tokens: int
    ceiling_tokens: int | None
    lost: tuple[tuple[LossCause, int], ...]
    requests_hit: int
    preemptions: int
    recomputed_tokens: int
    requests_waited: int
    waited_steps: int
    waited_s: float | None
    steps: int
    elapsed_s: float | None
    peak_running: int
    peak_waiting: int
    use: EngineUse
    arrival: str
    reading: str
    exact_identity: bool
    assumptions: tuple[str, ...] = ()
    partial: bool = False
    interrupted: bool = False

    def _rate(self, tokens: int) -> float:
        return tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def hit_rate(self) -> float:
        return self._rate(self.hit_tokens)

    @property
    def kv_hit_rate(self) -> float:
        return self._rate(self.kv_hit_tokens)

    @property
    def ceiling_rate(self) -> float | None:
        return None if self.ceiling_tokens is None else self._rate(self.ceiling_tokens)

    @property
    def lost_tokens(self) -> int:
        return sum(tokens for _, tokens in self.lost)
