"""Where the tokens went that an infinite cache would have hit and Marconi's did not.

The same policy with boundless memory runs beside the real one. What it hits more was lost to
eviction, of KV or of a state; what it misses too never had a state. vLLM+ knows whole blocks only.
"""

from __future__ import annotations

from typing import Protocol

from hybridplan.sim.ceiling import InfiniteCache
from hybridplan.sim.outcome import LossCause
from hybridplan.sim.request import Request
from hybridplan.sim.sequence import SequenceReader, TokenSequence

BOUNDLESS = 1 << 62
Losses = tuple[tuple[LossCause, int], ...]


class Server(Protocol):
    """A cache that serves one request after another."""

    def serve(self, sequence: TokenSequence, prompt_tokens: int) -> int: ...


class LossLedger:
    """Serves every request again on ``boundless``, the same policy with `BOUNDLESS` bytes.

    ``block_tokens`` is 1 where hits may end anywhere. Memory grows with the trace's content.
    """

    def __init__(self, boundless: Server, block_tokens: int) -> None:
        self._boundless = boundless
        self._block_tokens = block_tokens
        self._reader = SequenceReader()
        self._ceiling = InfiniteCache()

    def of(self, request: Request, hit_tokens: int) -> tuple[int, Losses]:
        """The ceiling in tokens of the next request and its losses, which sum to ceiling - hit."""
        most = self._boundless.serve(self._reader.read(request), request.prompt.length_tokens)
        ceiling = self._ceiling.reusable_tokens(request)
        self._ceiling.remember(request)
        lost = max(0, ceiling - hit_tokens)
        inside = min(lost, ceiling % self._block_tokens)
        evicted = min(lost - inside, max(0, most - hit_tokens))
        causes = (
            (LossCause.FORK_INSIDE_BLOCK, inside),
            (LossCause.EVICTED, evicted),
            (LossCause.NO_CHUNK_END, lost - inside - evicted),
        )
        return ceiling, tuple((cause, tokens) for cause, tokens in causes if tokens)
