"""What a running request does to the tree and the pools, from admission to finish.

SGLang 0.5.23: admission with copy-on-write, tracking in prefill and decode, checkpoints, finish
(spec sections 4.6 to 6, allocation in 8). One request per batch, as `Req`, `checkpoint_kv_cache`
and `release_kv_cache` see it. Decode is not stepped: between two shortages all steps are alike.
Overlap look-ahead is left out: no request has decoded past its last token when it finishes, so
the second tracking slot is held but its older state is never the one to keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.sim.sequence import TokenSequence
from hybridplan.sim.sglang.config import PoolExhaustedError, SglangCacheConfig
from hybridplan.sim.sglang.host import HostTier
from hybridplan.sim.sglang.node import Node
from hybridplan.sim.sglang.tree import StateTree


@dataclass(frozen=True, slots=True)
class Admitted:
    """A prompt was matched and prefilled.

    ``tracked`` has one entry per extend: the position whose state was kept, or None.
    ``copied``: a cached state was copied into the request's own slot.
    ``restored_tokens`` of the hit came back from the host tier.
    """

    hit_tokens: int
    kv_hit_tokens: int
    branch_tokens: int | None
    copied: bool
    tracked: tuple[int | None, ...]
    evicted_states: int
    evicted_kv_tokens: int
    restored_tokens: int
    prefill_chunks: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """``committed_tokens`` have KV now; ``tracked`` positions went to a tracking slot."""

    committed_tokens: int
    tracked: tuple[int, ...]
    evicted_states: int
    evicted_kv_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The request's memory went to the tree, which has ``kept_tokens`` of it, or back to the
    pools."""

    kept_tokens: int
    evicted_states: int
    evicted_kv_tokens: int


class _Running:
    """Book-keeping of one admitted request."""

    __slots__ = (
        "decoded",
        "kv_end",
        "last_tracked",
        "node",
        "owned_from",
        "sequence",
        "slots",
        "state_locked",
    )

    def __init__(self, sequence: TokenSequence, node: Node, hit_tokens: int, slots: int) -> None:
        self.sequence = sequence
        self.node = node
        self.kv_end = hit_tokens
        self.owned_from = hit_tokens
        self.slots = slots
        self.last_tracked = 0
        self.state_locked = True
        self.decoded = 0


class SglangCache:
    """The cache of one SGLang server. Every call changes it; none may be retried after an error.

    ``start``, ``decode`` and ``finish`` follow a request under its id. ``states_kept`` counts the
    states given to the tree and ``states_hit`` those of them that served at least one hit;
    ``kv_taken_tokens`` and ``slots_taken`` what requests took from the pools. Raises
    PoolExhaustedError where the engine's allocators assert.
    """

    def __init__(self, config: SglangCacheConfig) -> None:
        self.config = config
        self.tree = StateTree(
            config.kv_tokens,
            config.state_slots,
            config.page_tokens,
            config.checkpoint_grid,
            config.max_states_per_path,
        )
        self.host: HostTier | None = None
        if config.host_kv_tokens:
            self.host = HostTier(self.tree, config)
        self.running: dict[str, _Running] = {}
        self.states_kept = self.states_hit = 0
        self.kv_taken_tokens = self.slots_taken = 0

    def start(self, request_id: str, sequence: TokenSequence, prompt_tokens: int) -> Admitted:
        """Match, copy the state, make room, prefill and checkpoint ``sequence[:prompt_tokens]``."""
        config, tree = self.config, self.tree
        states_before, kv_before = tree.evicted_states, tree.evicted_kv_tokens
        found = tree.match(sequence, prompt_tokens - 1)
        device_hit_tokens = found.hit_tokens
        if self.host is not None:
            found = self.host.restore(sequence, prompt_tokens - 1, found)
        copied = found.node.state
        if copied:
            self._take_copy(found.node)
            self.states_hit += not found.node.state_used
            found.node.state_used = True
        request = _Running(sequence, found.node, found.hit_tokens, 1 + config.tracking_slots)
        tree.lock(found.node)
        need = request.slots - copied
        if need > tree.slots_free:
            tree.evict_states(need - tree.slots_free)
        if need > tree.slots_free:
            raise PoolExhaustedError(
                f"request {request_id} needs {need} state slots at admission and"
                f" {tree.slots_free} of {tree.state_slots} are free with nothing left to evict;"
                " run fewer requests at once or give more slots"
            )
        tree.slots_free -= need
        self.slots_taken += request.slots
        chunks, tracked = self._prefill(request, request_id, prompt_tokens, found.branch_tokens)
        self.running[request_id] = request
        return Admitted(
            found.hit_tokens,
            found.kv_tokens,
            found.branch_tokens,
            copied,
            tracked,
            tree.evicted_states - states_before,
            tree.evicted_kv_tokens - kv_before,
            found.hit_tokens - device_hit_tokens,
            chunks,
        )

    def decode(self, request_id: str, output_tokens: int) -> Decoded:
        """Append output tokens. The first one of a request was sampled by its prefill, and no
        token has KV before the step after it."""
        tree, request = self.tree, self.running[request_id]
        states_before, kv_before = tree.evicted_states, tree.evicted_kv_tokens
        steps = output_tokens if request.decoded else max(0, output_tokens - 1)
        request.decoded += output_tokens
        begin = request.kv_end
        self._grow(request, request_id, begin + steps)
        tracked: tuple[int, ...] = ()
        if self.config.tracks:
            grid = self.config.track_grid
            first = begin // grid * grid + grid
            tracked = tuple(range(first, request.kv_end + 1, grid))
            if tracked:
                request.last_tracked = tracked[-1]
        return Decoded(
            request.kv_end,
            tracked,
            tree.evicted_states - states_before,
            tree.evicted_kv_tokens - kv_before,
        )

    def finish(self, request_id: str) -> Finished:
        """Give what is worth keeping to the tree and everything else back to the pools."""
        tree, request = self.tree, self.running.pop(request_id)
        states_before, kv_before = tree.evicted_states, tree.evicted_kv_tokens
        end = request.last_tracked if self.config.tracks else request.kv_end
        kept = not self._give(request, end) if end else False
        tree.slots_free += request.slots - kept
        pages = -(-request.kv_end // self.config.page_tokens)
        tree.kv_free += pages * self.config.page_tokens - request.owned_from
        tree.unlock(request.node, request.state_locked)
        return Finished(
            request.owned_from,
            tree.evicted_states - states_before,
            tree.evicted_kv_tokens - kv_before,
        )

    # Parts

    def _prefill(
        self, request: _Running, request_id: str, prompt_tokens: int, branch: int | None
    ) -> tuple[int, tuple[int | None, ...]]:
        """Number of extends, and what each tracked."""
        config = self.config
        page = config.page_tokens
        step = config.chunked_prefill_tokens or prompt_tokens
        chunks, position, tracked = 0, request.kv_end, []
        while position < prompt_tokens:
            end = min(position + step, prompt_tokens)
            if end < prompt_tokens:
                end = (position + step // page * page) // page * page
            self._extend_kv(request, request_id, end)
            keep: int | None = end
            if config.tracks:
                keep = self._tracked_in_extend(position, end, branch)
                tracked.append(keep)
            if keep is not None:
                self._checkpoint(request, request_id, keep)
            chunks, position = chunks + 1, end
        return chunks, tuple(tracked)

    def _tracked_in_extend(self, begin: int, end: int, branch: int | None) -> int | None:
        """The one position whose state an extend keeps (`req_prepare_for_extend`)."""
        grid = self.config.checkpoint_grid
        if end - begin < grid:
            return None
        if branch is not None and begin < branch < end:
            distance = branch - begin
            if distance % self.config.chunk == 0:
                return branch
        return begin + (end - begin) // grid * grid

    def _checkpoint(self, request: _Running, request_id: str, end: int) -> None:
        """Give the state at ``end`` to the tree during prefill; a new slot replaces it."""
        tree = self.tree
        if tree.slots_free == 0:
            if self.config.lazy and request.state_locked:
                tree.unlock_state(request.node)
                request.state_locked = False
            tree.evict_states(1)
            if tree.slots_free == 0:
                raise PoolExhaustedError(
                    f"request {request_id} needs a state slot for its checkpoint at {end} tokens"
                    f" and none of {tree.state_slots} can be freed; run fewer requests at once or"
                    " give more slots"
                )
        tree.slots_free -= 1
        self.slots_taken += 1
        if self._give(request, end):
            tree.slots_free += 1
        request.last_tracked = 0

    def _give(self, request: _Running, end: int) -> bool:
        """Insert ``sequence[:end]`` and move the lock there. True if the state was there."""
        tree = self.tree
        node, had_state = tree.insert(request.sequence, end, request.owned_from)
        hold_state = not self.config.skip_decode_lock
        tree.unlock(request.node, request.state_locked)
        tree.lock(node, hold_state)
        request.node, request.state_locked, request.owned_from = node, hold_state, end
        self.states_kept += not had_state
        if self.host is not None:
            self.host.write_through(request.sequence, end)
        return had_state

    def _take_copy(self, node: Node) -> None:
        """Copy-on-write: a slot of the request's own for the cached state."""
        tree = self.tree
        if tree.slots_free == 0:
            tree.lock(node)
            tree.evict_states(1)
            tree.unlock(node)
        if tree.slots_free == 0:
            raise PoolExhaustedError(
                f"no state slot of {tree.state_slots} can be freed to copy a cached state into;"
                " run fewer requests at once or give more slots"
            )
        tree.slots_free -= 1

    def _extend_kv(self, request: _Running, request_id: str, end: int) -> None:
        """KV of a prefill chunk. Pages ask for one page more than the tokens."""
        page = self.config.page_tokens
        tokens = end - request.kv_end
        ask = tokens if page == 1 else tokens + page
        if ask > self.tree.kv_free:
            self.tree.evict_kv(ask - self.tree.kv_free)
        self._take_kv(request, request_id, end)

    def _grow(self, request: _Running, request_id: str, end: int) -> None:
        """KV of decode steps up to ``end``, stopping only where eviction may be due.

        Every step asks for a page, needed or not, so a step with less than a page free evicts.
        """
        tree, page = self.tree, self.config.page_tokens
        while request.kv_end < end:
            if tree.kv_free < page:
                tree.evict_kv(page - tree.kv_free)
            pages_end = -(-request.kv_end // page) * page
            free_pages = tree.kv_free // page
            if free_pages:
                upto = pages_end + (free_pages - 1) * page + 1
            else:
                upto = max(pages_end, request.kv_end + 1)
            self._take_kv(request, request_id, min(end, upto))

    def _take_kv(self, request: _Running, request_id: str, end: int) -> None:
        page = self.config.page_tokens
        need = (-(-end // page) - -(-request.kv_end // page)) * page
        if need > self.tree.kv_free:
            raise PoolExhaustedError(
                f"request {request_id} needs {need} KV tokens to reach {end} and"
                f" {self.tree.kv_free} of {self.tree.kv_tokens} are free with nothing left to"
                " evict; run fewer requests at once or give more KV memory"
            )
        self.tree.kv_free -= need
        self.kv_taken_tokens += need
        request.kv_end = end
