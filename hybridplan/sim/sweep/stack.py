"""The whole miss-ratio curve of an LRU block pool from one pass over the trace (Mattson's stack).

Exact for vLLM's pool when a model is all full attention and requests run one at a time without
drafts: a block's place in the free queue then does not depend on the pool's size. A finished
request's blocks are freed tail first, so the queue is one row of requests, newest last, each with
a suffix of its chain; whoever returns takes a prefix. A block is still there if the pool held,
beside it, everything used since, and at each moment the running request's last, keyless block.

Not exact where a request computes a block that is still cached (a prompt repeated to its last
full block, an output repeated): vLLM then holds it twice. ``Stack.twins`` counts such requests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from hybridplan.errors import InputError
from hybridplan.sim.request import Request
from hybridplan.sim.vllm.keys import Key, Reading, identity_of, prefix_keys
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig


@dataclass(frozen=True, slots=True)
class Stack:
    """Hit tokens for every pool size at once.

    ``sizes`` ascend; a pool of ``sizes[i]`` blocks (null block included) hits ``hits_tokens[i]``.
    ``least_blocks`` is the smallest pool that serves every request.
    """

    sizes: tuple[int, ...]
    hits_tokens: tuple[int, ...]
    prompt_tokens: int
    requests: int
    refused: int
    twins: int
    exact_identity: bool
    least_blocks: int

    def hit_tokens(self, num_blocks: int) -> int:
        """Hit tokens of a pool of that many blocks, at least ``least_blocks``."""
        index = bisect_right(self.sizes, num_blocks)
        return self.hits_tokens[index - 1] if index else 0


def is_stack(config: VllmCacheConfig) -> bool:
    """Whether the pool's evictions do not depend on its size."""
    return (
        len(config.groups) == 1
        and config.groups[0].kind in (GroupKind.FULL, GroupKind.MLA)
        and config.prefix_caching
        and not config.draft_tokens
        and not config.hash_lookahead_tokens
        and not config.watermark_blocks
    )


def lru_curve(
    requests: Iterable[Request], config: VllmCacheConfig, reading: Reading = Reading.LOWER
) -> Stack:
    """One pass: the pool size from which on each block of each prompt is a hit.

    Requests run one after another. Raises InputError where ``is_stack`` does not hold.
    """
    if not is_stack(config):
        raise InputError("the pool is no stack: it has several groups, states, windows or drafts")
    state = _Pass(config)
    for serial, request in enumerate(requests):
        state.serve(serial, request, reading)
    return state.stack()


class _Row:
    """Blocks in the free queue by the request that used them last: counts, and prefix sums of
    those of newer requests (a Fenwick tree over request numbers)."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        """Leading blocks of each request that a later one has taken over."""
        self._tree: list[int] = [0]
        self._total = 0

    def push(self, blocks: int) -> None:
        """The next request leaves ``blocks`` blocks."""
        self.taken.append(0)
        index = len(self._tree)
        low = index & -index
        below, step = 0, 1
        while step < low:
            below += self._tree[index - step]
            step <<= 1
        self._tree.append(blocks + below)
        self._total += blocks

    def take(self, number: int, upto: int) -> None:
        """A later request takes over the blocks of request ``number`` up to depth ``upto``."""
        blocks = upto - self.taken[number]
        self.taken[number] = upto
        self._total -= blocks
        index = number + 1
        while index < len(self._tree):
            self._tree[index] -= blocks
            index += index & -index

    def newer(self, number: int) -> int:
        """Blocks last used after request ``number``."""
        upto, index = 0, number + 1
        while index:
            upto += self._tree[index]
            index -= index & -index
        return self._total - upto


class _Pass:
    def __init__(self, config: VllmCacheConfig) -> None:
        self._config = config
        self._block = config.groups[0].block_tokens
        self._last: dict[Key, int] = {}
        self._now, self._lag = _Row(), _Row()
        # The row as it was when a request with a keyless block last ended, and what came since.
        self._since: list[tuple[int, list[tuple[int, int]]]] = []
        self._lag_end = -1
        self._changes: dict[int, int] = {}
        self._served = self._refused = self._twins = self._prompt_tokens = 0
        self._exact = True
        self._least = 2

    def serve(self, serial: int, request: Request, reading: Reading) -> None:
        prompt, block = request.prompt, self._block
        most = self._config.max_model_len
        if not 0 < prompt.length_tokens < most:
            self._refused += 1
            return
        if prompt.ids and block % prompt.unit_tokens:
            self._exact = False
        outputs = min(request.output_tokens, most - prompt.length_tokens)
        kv_tokens = prompt.length_tokens + max(outputs - 1, 0)
        full = kv_tokens // block
        table = -(-kv_tokens // block)
        self._least = max(self._least, table + 1)
        names = prefix_keys(identity_of(request), serial, block, 0, reading)
        names.extend(full)
        keys = names.keys[:full]
        runs = self._runs(keys)
        known = runs[-1][2] if runs else 0
        cap = (prompt.length_tokens - 1) // block
        self._twins += known > cap
        for number, first, last in runs:
            self._note(number, first, min(last, cap))
        self._prompt_tokens += prompt.length_tokens
        taken = [(number, last) for number, _, last in runs]
        for number, last in taken:
            self._now.take(number, last)
        self._now.push(full)
        self._since.append((full, taken))
        for key in keys:
            self._last[key] = self._served
        if table > full:
            for blocks, took in self._since:
                for number, last in took:
                    self._lag.take(number, last)
                self._lag.push(blocks)
            self._since.clear()
            self._lag_end = self._served
        self._served += 1

    def _runs(self, keys: list[Key]) -> list[tuple[int, int, int]]:
        """Known leading blocks as (request that used them last, first depth, last depth)."""
        runs: list[tuple[int, int, int]] = []
        last = self._last
        for depth, key in enumerate(keys, 1):
            number = last.get(key)
            if number is None:
                break
            if runs and runs[-1][0] == number:
                runs[-1] = (number, runs[-1][1], depth)
            else:
                runs.append((number, depth, depth))
        return runs

    def _note(self, number: int, first: int, last: int) -> None:
        """Blocks ``first`` to ``last`` are hits from a pool size on that grows with the depth."""
        if last < first:
            return
        above = self._now.newer(number) - self._now.taken[number]
        if number < self._lag_end:
            above = max(above, self._lag.newer(number) - self._lag.taken[number] + 1)
        changes = self._changes
        changes[above + first + 1] = changes.get(above + first + 1, 0) + 1
        changes[above + last + 2] = changes.get(above + last + 2, 0) - 1

    def stack(self) -> Stack:
        """Second sums of the changes: blocks hit at exactly a size, then at that size or less."""
        if not self._changes:
            sizes: list[int] = []
            hits: list[int] = []
        else:
            top = max(self._changes)
            rates = list(accumulate(self._changes.get(size, 0) for size in range(top + 1)))
            hits = [blocks * self._block for blocks in accumulate(rates)]
            sizes = [size for size in range(1, top + 1) if hits[size] != hits[size - 1]]
            hits = [hits[size] for size in sizes]
        return Stack(
            sizes=tuple(sizes),
            hits_tokens=tuple(hits),
            prompt_tokens=self._prompt_tokens,
            requests=self._served,
            refused=self._refused,
            twins=self._twins,
            exact_identity=self._exact,
            least_blocks=self._least,
        )
