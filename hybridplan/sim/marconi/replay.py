"""A trace of requests served by Marconi or one of its baselines, one outcome a request.

Requests come one at a time in trace order, as in the published loop: look the prompt up, insert
prompt and output. Nothing is locked and no time passes in between. A hit may be the whole prompt:
neither the paper nor the artifact keeps the last token back.

Prompts at a unit above one token give the lower bound of `sim.request`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from hybridplan.errors import InputError
from hybridplan.sim.marconi.artifact import ArtifactCache
from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.paper import PaperCache, PaperMarconi
from hybridplan.sim.marconi.tuning import ArtifactMarconi
from hybridplan.sim.marconi.vllm_plus import VllmPlusCache
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.request import Request
from hybridplan.sim.sequence import SequenceReader, TokenSequence

Mode = Literal["paper", "artifact"]
Policy = Literal["marconi", "static_alpha", "sglang+", "vllm+"]
POLICIES: tuple[Policy, ...] = ("marconi", "static_alpha", "sglang+", "vllm+")


class _Holdings(Protocol):
    """What a cache holds: states, KV tokens and bytes now, evictions and refusals so far."""

    alpha: float
    evictions: int
    refused: int

    @property
    def states(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class _Server(Protocol):
    def serve(self, sequence: TokenSequence, prompt_tokens: int) -> int: ...


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


class MarconiReplay:
    """Serves requests and yields their outcomes; ``totals`` can be asked at any time."""

    def __init__(self, config: MarconiConfig) -> None:
        self.config = config
        self._reader = SequenceReader()
        self._server, self._cache = _build(config)
        self._requests = self._requests_hit = self._prompt_tokens = self._hit_tokens = 0
        self._flops_saved = self._peak_bytes = 0

    def serve(self, requests: Iterable[Request]) -> Iterator[RequestOutcome]:
        """Outcomes in trace order. May be called again: the cache stays as it is."""
        for request in requests:
            prompt_tokens = request.prompt.length_tokens
            hit_tokens = self._server.serve(self._reader.read(request), prompt_tokens)
            self._requests += 1
            self._requests_hit += hit_tokens > 0
            self._prompt_tokens += prompt_tokens
            self._hit_tokens += hit_tokens
            self._flops_saved += self.config.costs.prefill_flops(hit_tokens)
            self._peak_bytes = max(self._peak_bytes, self._cache.bytes)
            yield RequestOutcome(
                request.request_id,
                prompt_tokens,
                request.output_tokens,
                hit_tokens,
                arrival_s=request.arrival_s,
                session=request.session,
                turn=request.turn,
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


def _build(config: MarconiConfig) -> tuple[_Server, _Holdings]:
    costs, capacity = config.costs, config.capacity_bytes
    if config.policy == "vllm+":
        blocks = VllmPlusCache(costs, capacity, config.block_tokens)
        return blocks, blocks
    if config.policy == "sglang+":
        leaves = ArtifactCache(costs, capacity, lru_leaves=True)
        return leaves, leaves
    if config.mode == "artifact":
        if config.policy == "static_alpha":
            fixed = ArtifactCache(costs, capacity, config.alpha)
            return fixed, fixed
        tuned = ArtifactMarconi(costs, capacity, config.bootstrap_multiplier)
        return tuned, tuned.cache
    if config.policy == "static_alpha":
        exact = PaperCache(costs, capacity, config.alpha, config.chunk_tokens)
        return exact, exact
    bootstrap = PaperMarconi(costs, capacity, config.bootstrap_multiplier, config.chunk_tokens)
    return bootstrap, bootstrap.cache
