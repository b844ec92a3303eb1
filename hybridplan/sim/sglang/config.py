"""What decides how SGLang caches a hybrid model: flags and pool sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hybridplan.errors import InputError, RefusalError

Strategy = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]
STRATEGIES: tuple[Strategy, ...] = ("no_buffer", "extra_buffer", "extra_buffer_lazy")


class PoolExhaustedError(RefusalError):
    """An allocation that eviction could not satisfy; the engine stops with an assertion."""

    kind = "pool-exhausted"


@dataclass(frozen=True, slots=True)
class SglangCacheConfig:
    """SGLang 0.5.23, `--mamba-radix-cache-strategy` and what goes with it.

    ``kv_tokens`` and ``state_slots`` are pool sizes (slot 0, the dummy, is not counted).
    ``chunk_tokens`` is the config's `mamba_chunk_size`, 64 where it has none.
    ``chunked_prefill_tokens`` None prefills a prompt in one extend.
    ``overlap`` gives extra_buffer two tracking slots instead of one.
    ``host_kv_tokens`` and ``host_state_slots`` add the host tier of `host`, which is a reading of
    HiCache that was never compared with the engine. ``state_bytes`` is one slot's size where it is
    known; no rule needs it.
    """

    kv_tokens: int
    state_slots: int
    strategy: Strategy = "extra_buffer"
    page_tokens: int = 1
    chunk_tokens: int = 64
    track_interval_tokens: int = 256
    chunked_prefill_tokens: int | None = None
    max_states_per_path: int = -1
    overlap: bool = True
    skip_decode_lock: bool = False
    host_kv_tokens: int = 0
    host_state_slots: int = 0
    state_bytes: int = 0

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise InputError(
                f"strategy {self.strategy!r} is not one of {', '.join(STRATEGIES)};"
                " resolve `auto` before the replay"
            )
        for name in ("kv_tokens", "state_slots", "page_tokens", "chunk_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_states_per_path < -1 or self.max_states_per_path == 0:
            raise InputError(
                f"max_states_per_path is {self.max_states_per_path}; it must be at least 1, or -1"
                " for no cap"
            )
        if self.track_interval_tokens < 1:
            raise InputError(
                f"track_interval_tokens is {self.track_interval_tokens}; it must be at least 1"
            )
        if self.strategy == "no_buffer" and self.page_tokens != 1:
            raise InputError(
                f"no_buffer needs page size 1, asked {self.page_tokens};"
                " take extra_buffer or page size 1"
            )
        if (self.host_kv_tokens > 0) != (self.host_state_slots > 0):
            raise InputError(
                f"a host tier needs room for both: {self.host_kv_tokens} KV tokens,"
                f" {self.host_state_slots} states"
            )
        small, large = sorted((self.chunk_tokens, self.page_tokens))
        if large % small:
            raise InputError(
                f"chunk {self.chunk_tokens} and page {self.page_tokens}: the smaller must divide"
                " the larger"
            )
        if self.kv_tokens % self.page_tokens:
            raise InputError(
                f"{self.kv_tokens} KV tokens are not whole pages of {self.page_tokens}; take"
                f" {self.kv_tokens // self.page_tokens * self.page_tokens}"
            )
        if self.chunked_prefill_tokens is not None and (
            self.chunked_prefill_tokens < self.page_tokens
        ):
            raise InputError(
                f"chunked prefill of {self.chunked_prefill_tokens} tokens is less than a page of"
                f" {self.page_tokens}"
            )

    @property
    def tracks(self) -> bool:
        """Whether states are taken into tracking slots (both extra_buffer strategies)."""
        return self.strategy != "no_buffer"

    @property
    def lazy(self) -> bool:
        return self.strategy == "extra_buffer_lazy"

    @property
    def chunk(self) -> int:
        """`mamba_cache_chunk_size`: the model's chunk, or the page if that is larger."""
        return max(self.chunk_tokens, self.page_tokens)

    @property
    def checkpoint_grid(self) -> int:
        """Grid in tokens of the states taken in prefill."""
        return math.lcm(self.chunk, self.page_tokens)

    @property
    def track_grid(self) -> int:
        """Grid in tokens of the states taken in decode (`mamba_track_grid`)."""
        return math.lcm(self.checkpoint_grid, self.track_interval_tokens)

    @property
    def slots_per_request(self) -> int:
        """State slots a request may need at most, `ratio` of the memory split: 5, 4 or 3."""
        return 3 + self.tracking_slots - (self.skip_decode_lock and self.tracks)

    @property
    def tracking_slots(self) -> int:
        """State slots a request takes at admission besides its live one."""
        if not self.tracks:
            return 0
        return 2 if self.overlap and not self.lazy else 1
