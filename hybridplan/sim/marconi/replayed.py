"""Marconi and its baselines as ``hybridplan.sim.replay`` drives them.

Requests are served one at a time in the order they arrive, each in one step, as in the published
loop: look the prompt up, insert prompt and output. Nothing is locked and no time passes in
between. A hit may be the whole prompt: neither the paper nor the artifact keeps the last token
back. Prompts at a unit above one token give the lower bound of `sim.request`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.marconi.artifact import ArtifactCache
from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.losses import BOUNDLESS, Losses, LossLedger, Server
from hybridplan.sim.marconi.paper import PaperCache, PaperMarconi
from hybridplan.sim.marconi.tuning import ArtifactMarconi
from hybridplan.sim.marconi.vllm_plus import VllmPlusCache
from hybridplan.sim.outcome import EngineUse, RequestOutcome, StateUse
from hybridplan.sim.request import Request
from hybridplan.sim.sequence import SequenceReader
from hybridplan.sim.time.clock import Pass

Mode = Literal["paper", "artifact"]
Policy = Literal["marconi", "static_alpha", "sglang+", "vllm+"]
POLICIES: tuple[Policy, ...] = ("marconi", "static_alpha", "sglang+", "vllm+")


class _Tree(Protocol):
    """States kept in all, and how many of them were hit."""

    states_kept: int
    states_hit: int


class _Cache(Protocol):
    """What a cache holds: states, KV tokens and bytes now, evictions and refusals so far."""

    alpha: float
    evictions: int
    refused: int
    matched_tokens: int

    @property
    def states(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class MarconiConfig:
    """Policy, mode and memory of one run.

    ``alpha`` is for `static_alpha`. ``bootstrap_multiplier`` is 5 in the artifact (15 for LMSys).
    ``block_tokens`` is vLLM+'s block. ``chunk_tokens`` (paper mode) rounds branch states down to
    a prefill chunk; None takes them at the exact split. The baselines exist as the artifact runs
    them only.
    """

    costs: ModelCosts
    capacity_bytes: int
    policy: Policy = "marconi"
    mode: Mode = "paper"
    alpha: float = 0.0
    bootstrap_multiplier: int = 5
    block_tokens: int = 32
    chunk_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(f"policy {self.policy!r} is not one of {', '.join(POLICIES)}")
        if self.mode not in ("paper", "artifact"):
            raise InputError(f"mode {self.mode!r} is neither paper nor artifact")
        if self.mode == "paper" and self.policy in ("sglang+", "vllm+"):
            raise InputError(
                f"the baseline {self.policy} is only defined by the artifact; ask for mode artifact"
            )
        if self.mode == "artifact" and self.chunk_tokens is not None:
            raise InputError(
                f"the artifact has no chunk rule, asked for chunks of {self.chunk_tokens};"
                " ask for mode paper"
            )
        smallest = min(self.capacity_bytes, self.block_tokens, self.bootstrap_multiplier)
        if smallest < 1 or (self.chunk_tokens is not None and self.chunk_tokens < 1):
            raise InputError(
                f"capacity {self.capacity_bytes} B, blocks of {self.block_tokens}, multiplier"
                f" {self.bootstrap_multiplier}, chunks of {self.chunk_tokens}: all must be at"
                " least 1"
            )


@dataclass(frozen=True, slots=True)
class MarconiTotals:
    """The cache after a replay. ``alpha`` is the weight in use, ``flops_saved`` those of all hits
    (deviation 12: per request for attention, which is what one sum a hit gives)."""

    requests: int
    requests_hit: int
    prompt_tokens: int
    hit_tokens: int
    flops_saved: int
    states: int
    kv_tokens: int
    bytes: int
    peak_bytes: int
    evictions: int
    refused: int
    alpha: float
    requests_before_first_eviction: int | None
    bootstrap_window: int | None

    @property
    def hit_rate(self) -> float:
        """Hit tokens of all prompt tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class ReplayedMarconi:
    """Marconi under a stream of requests; see ``replay.Engine`` for the contract.

    ``attribute_losses`` tracks the infinite-cache ceiling and where the rest was lost, which serves
    every request a second time.
    """

    reading = "lower"
    running = 0
    steps_in_flight = 0

    def __init__(self, config: MarconiConfig, *, attribute_losses: bool = True) -> None:
        self.config = config
        self.name = f"marconi {config.mode}"
        if config.policy != "marconi":
            self.name += f" {config.policy}"
        self.exact_identity = True
        self.step_index = 0
        self._reader = SequenceReader()
        self._server, self._cache, self._tree = _build(config)
        self._losses: LossLedger | None = None
        if attribute_losses:
            boundless, *_ = _build(replace(config, capacity_bytes=BOUNDLESS))
            blocks = config.policy == "vllm+"
            self._losses = LossLedger(boundless, config.block_tokens if blocks else 1)
        self._waiting: deque[tuple[int, Request, int]] = deque()
        self._orders = 0
        self._requests = self._requests_hit = self._prompt_tokens = self._hit_tokens = 0
        self._flops_saved = self._peak_bytes = 0
        self._passes: list[Pass] | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def refusal(self, request: Request) -> str | None:
        """Why the request is not served; the published loop takes all but empty prompts."""
        return None if request.prompt.length_tokens > 0 else "the prompt is empty"

    def add(self, request: Request) -> int:
        """Queue a request; returns its order number."""
        if request.prompt.ids and request.prompt.unit_tokens > 1:
            self.exact_identity = False
        self._waiting.append((self._orders, request, self.step_index))
        self._orders += 1
        return self._orders - 1

    def step(self) -> tuple[int, list[int], list[tuple[int, RequestOutcome]]]:
        """Serve the first of the queue: tokens computed, its number, its outcome."""
        if not self._waiting:
            return 0, [], []
        order, request, arrival_step = self._waiting.popleft()
        prompt_tokens = request.prompt.length_tokens
        hit_tokens = self._server.serve(self._reader.read(request), prompt_tokens)
        kv_hit_tokens = max(hit_tokens, self._cache.matched_tokens)
        ceiling: int | None = None
        lost: Losses = ()
        if self._losses is not None:
            ceiling, lost = self._losses.of(request, hit_tokens)
        self._requests += 1
        self._requests_hit += hit_tokens > 0
        self._prompt_tokens += prompt_tokens
        self._hit_tokens += hit_tokens
        self._flops_saved += self.config.costs.prefill_flops(hit_tokens)
        self._peak_bytes = max(self._peak_bytes, self._cache.bytes)
        outcome = RequestOutcome(
            request_id=request.request_id,
            prompt_tokens=prompt_tokens,
            output_tokens=request.output_tokens,
            hit_tokens=hit_tokens,
            kv_hit_tokens=kv_hit_tokens,
            ceiling_tokens=ceiling,
            lost=lost,
            prefill_chunks=1,
            arrival_step=arrival_step,
            first_step=self.step_index,
            finish_step=self.step_index,
            session=request.session,
            turn=request.turn,
        )
        if self._passes is not None:
            self._passes = _served(order, prompt_tokens, hit_tokens, request.output_tokens)
        self.step_index += 1
        tokens = prompt_tokens - hit_tokens + request.output_tokens
        return tokens, [order], [(order, outcome)]

    def skippable_steps(self) -> int:
        return 0

    def skip(self, steps: int) -> None:
        """Never due: each step serves a request."""

    def record_work(self) -> None:
        """Note what each step computes; see ``sim.time.server.TimedEngine``."""
        self._passes = []

    def passes(self) -> list[Pass]:
        """The request served last: its prefill in one pass, then its decode steps, alone."""
        return self._passes or [Pass(StepWork())]

    def next_work(self) -> StepWork:
        """Never due: no step is skipped."""
        return StepWork()

    def blocked(self) -> RefusalError:
        """Never due: whatever is queued is served."""
        return RefusalError("Marconi's loop does not block")

    def use(self) -> EngineUse:
        """States and evictions so far. There are no blocks: a cached block is a token of KV."""
        per_token = self.config.costs.kv_bytes_per_token
        return EngineUse(
            engine=self.name,
            num_blocks=self.config.capacity_bytes // per_token if per_token else 0,
            groups=(),
            states=StateUse(
                self._tree.states_kept, self._tree.states_hit, self.config.costs.state_bytes
            ),
            evictions=self._cache.evictions,
            cached_blocks=self._cache.kv_tokens,
        )

    def totals(self) -> MarconiTotals:
        """Sums over what was served, and what the cache holds now."""
        server, cache = self._server, self._cache
        tuned = server if isinstance(server, (ArtifactMarconi, PaperMarconi)) else None
        return MarconiTotals(
            requests=self._requests,
            requests_hit=self._requests_hit,
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            flops_saved=self._flops_saved,
            states=cache.states,
            kv_tokens=cache.kv_tokens,
            bytes=cache.bytes,
            peak_bytes=self._peak_bytes,
            evictions=cache.evictions,
            refused=cache.refused,
            alpha=cache.alpha,
            requests_before_first_eviction=(
                tuned.requests_before_first_eviction if tuned else None
            ),
            bootstrap_window=tuned.bootstrap_window if tuned else None,
        )


def _served(order: int, prompt_tokens: int, hit_tokens: int, output_tokens: int) -> list[Pass]:
    """A request alone on the device. After a hit of the whole prompt the first token takes a decode
    step, as its last token is read again."""
    if hit_tokens < prompt_tokens:
        chunk = (hit_tokens, prompt_tokens - hit_tokens)
        first = StepWork(chunks=[chunk], head_rows=1)
    else:
        first = StepWork([prompt_tokens], head_rows=1)
    passes = [Pass(first, (order,))]
    if output_tokens > 1:
        rest = StepWork([prompt_tokens + 1], head_rows=1, repeats=output_tokens - 1)
        passes.append(Pass(rest))
    return passes


def _build(config: MarconiConfig) -> tuple[Server, _Cache, _Tree]:
    costs, capacity = config.costs, config.capacity_bytes
    if config.policy == "vllm+":
        blocks = VllmPlusCache(costs, capacity, config.block_tokens)
        return blocks, blocks, blocks
    if config.policy == "sglang+":
        leaves = ArtifactCache(costs, capacity, lru_leaves=True)
        return leaves, leaves, leaves.tree
    if config.mode == "artifact":
        if config.policy == "static_alpha":
            fixed = ArtifactCache(costs, capacity, config.alpha)
            return fixed, fixed, fixed.tree
        tuned = ArtifactMarconi(costs, capacity, config.bootstrap_multiplier)
        return tuned, tuned.cache, tuned.cache.tree
    if config.policy == "static_alpha":
        exact = PaperCache(costs, capacity, config.alpha, config.chunk_tokens)
        return exact, exact, exact.tree
    bootstrap = PaperMarconi(costs, capacity, config.bootstrap_multiplier, config.chunk_tokens)
    return bootstrap, bootstrap.cache, bootstrap.cache.tree
