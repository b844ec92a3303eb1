"""Where the tokens went that an infinite cache would have hit and SGLang's did not.

The same cache with boundless pools runs beside the real one. What it hits more was lost to
eviction. Of the rest, what its KV does not even hold while another request runs had not been
computed; everything else is KV without a state: no extend ended there.
"""

from __future__ import annotations

from dataclasses import replace

from hybridplan.sim.ceiling import InfiniteCache
from hybridplan.sim.outcome import LossCause
from hybridplan.sim.request import Request
from hybridplan.sim.sequence import TokenSequence
from hybridplan.sim.sglang.cache import SglangCache
from hybridplan.sim.sglang.config import SglangCacheConfig

_BOUNDLESS = 1 << 62

Losses = tuple[tuple[LossCause, int], ...]


class LossLedger:
    """Follows every request from ``start`` to ``finish``. Memory grows with the trace's content."""

    def __init__(self, config: SglangCacheConfig) -> None:
        self._twin = SglangCache(
            replace(
                config,
                kv_tokens=_BOUNDLESS,
                state_slots=_BOUNDLESS,
                host_kv_tokens=0,
                host_state_slots=0,
            )
        )
        self._seen = InfiniteCache()
        self._computed = InfiniteCache()
        self._open: dict[str, tuple[int, Losses]] = {}

    def start(self, key: str, request: Request, sequence: TokenSequence, hit_tokens: int) -> None:
        """A request was admitted with ``hit_tokens``."""
        prompt_tokens = request.prompt.length_tokens
        ceiling = self._seen.reusable_tokens(request)
        self._seen.remember(request)
        twin = self._twin.start(key, sequence, prompt_tokens)
        last = max(0, ceiling - (prompt_tokens - 1))
        rest = ceiling - last - hit_tokens
        evicted = min(rest, max(0, twin.hit_tokens - hit_tokens))
        known = max(self._computed.reusable_tokens(request), twin.kv_hit_tokens, hit_tokens)
        not_yet = min(rest - evicted, max(0, ceiling - last - known))
        causes = (
            (LossCause.LAST_TOKEN, last),
            (LossCause.EVICTED, evicted),
            (LossCause.NOT_COMPUTED_YET, not_yet),
            (LossCause.NO_CHUNK_END, rest - evicted - not_yet),
        )
        self._open[key] = ceiling, tuple((cause, tokens) for cause, tokens in causes if tokens)

    def finish(self, key: str, request: Request) -> tuple[int, Losses]:
        """The request's ceiling in tokens and its losses, which sum to ceiling - hit."""
        self._twin.decode(key, request.output_tokens)
        self._twin.finish(key)
        self._computed.remember(request)
        return self._open.pop(key)
