"""A request inside the engine: its counters, its keys and its block tables."""

from __future__ import annotations

from hybridplan.sim.request import Request
from hybridplan.sim.vllm.keys import Key, PrefixKeys, Reading, identity_of, prefix_keys


class BlockTable:
    """One group's blocks of one request, with what its manager remembers.

    ``num_published`` is vLLM's ``num_cached_block``: None until the request has published or hit
    a block. The last five fields are used by Mamba managers only: the pending copy-on-write
    ``(column, source block)``, the column of the previous step's state, the first column not yet
    retired, whether blocks were ever allocated, and the ``(position, column)`` of the state the
    current chunk exports from its inside.
    """

    __slots__ = (
        "allocated", "blocks", "checkpoint", "last_state", "num_published", "partial", "retired",
    )  # fmt: skip

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.blocks: list[int] = []
        self.num_published: int | None = None
        self.partial: tuple[int, int] | None = None
        self.last_state: int | None = None
        self.retired = 0
        self.allocated = False
        self.checkpoint: tuple[int, int] | None = None


class Sequence:
    """A request with the counters vLLM's ``Request`` keeps. All counts are tokens."""

    __slots__ = (
        "accept_calls",
        "arrival_step",
        "computed",
        "drafts",
        "finished",
        "hash_tokens",
        "in_flight",
        "is_prefill_chunk",
        "junction",
        "keys",
        "lookahead",
        "max_tokens",
        "num_keys",
        "num_prompt",
        "num_tokens",
        "offered",
        "placeholders",
        "preemptions",
        "prefill_chunks",
        "prefix",
        "prompt_tail",
        "quiet_end",
        "recomputed",
        "request",
        "running",
        "serial",
        "stale",
        "stop_at",
        "tables",
    )

    def __init__(
        self,
        request: Request,
        serial: int,
        num_groups: int,
        *,
        hash_tokens: int,
        lookahead: int,
        max_model_len: int,
        reading: Reading,
    ) -> None:
        self.request = request
        self.serial = serial
        self.num_prompt = request.prompt.length_tokens
        self.max_tokens = max(1, request.output_tokens)
        self.stop_at = min(self.num_prompt + self.max_tokens, max_model_len)
        self.num_tokens = self.num_prompt
        self.computed = 0
        self.in_flight = 0
        self.placeholders = 0
        self.drafts = 0
        self.stale = 0
        self.junction = 0
        self.running = False
        self.finished = False
        self.is_prefill_chunk = False
        self.preemptions = 0
        self.recomputed = 0
        self.accept_calls = 0
        self.quiet_end = -1
        self.offered = -1
        self.prompt_tail = -1
        self.arrival_step = 0
        self.prefill_chunks = 0
        self.tables = tuple(BlockTable() for _ in range(num_groups))
        self.hash_tokens = hash_tokens
        self.lookahead = lookahead
        self.prefix: PrefixKeys = prefix_keys(
            identity_of(request), serial, hash_tokens, lookahead, reading
        )
        self.keys: list[Key] = self.prefix.keys
        self.num_keys = 0
        self.update_keys()

    @property
    def prefill_end(self) -> int:
        """Chunks are split below this; past the prompt it covers a resumed request's output."""
        return max(self.num_prompt, self.num_tokens - 1)

    @property
    def outputs(self) -> int:
        return self.num_tokens - self.num_prompt

    def update_keys(self) -> None:
        """Hashes exist for whole hash blocks whose lookahead tokens exist too."""
        self.num_keys = max((self.num_tokens - self.lookahead) // self.hash_tokens, 0)
        if self.num_keys > len(self.keys):
            self.prefix.extend(self.num_keys)
