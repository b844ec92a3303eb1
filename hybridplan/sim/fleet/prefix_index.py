"""What a router believes one replica has cached: the prompts it sent there, the oldest forgotten.

An approximate index, as gateways keep that get no cache events from their engines (the SGLang
gateway's and vLLM router's tree, the estimation mode of the Gateway API inference extension): a
prompt counts as cached from the moment it is routed, whatever the engine evicted or never kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from hybridplan.errors import InputError
from hybridplan.sim.request import Prompt
from hybridplan.sim.vllm.keys import Key, Reading, prefix_keys

LEAST_BLOCK_TOKENS = 16


def block_tokens_of(prompt: Prompt) -> int:
    """Tokens an entry stands for: the trace's unit, or units together worth 16 tokens."""
    unit = prompt.unit_tokens
    return unit * max(1, -(-LEAST_BLOCK_TOKENS // unit))


def prefix_chain(prompt: Prompt) -> Sequence[Key]:
    """Names of the prompt's prefixes of 1, 2, ... whole blocks; equal names are equal prefixes."""
    block = block_tokens_of(prompt)
    keys = prefix_keys(prompt, 0, block, 0, Reading.LOWER)
    keys.extend(prompt.known_tokens // block)
    return keys.keys


class PrefixIndex:
    """Prefix blocks of one replica in the order they were last sent, deeper ones first.

    Whatever touches a block touches everything before it later, so the oldest entry is always a
    leaf and the blocks of a prompt that are left are its first ones: a match is a bisection.

    Args:
        capacity_tokens: forget the oldest blocks beyond this; None forgets nothing.
    """

    def __init__(self, capacity_tokens: int | None = None) -> None:
        if capacity_tokens is not None and capacity_tokens < 1:
            raise InputError(f"a prefix index of {capacity_tokens} tokens holds nothing; give 1+")
        self.capacity_tokens = capacity_tokens
        self.tokens = 0
        self._entries: OrderedDict[Key, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, chain: Sequence[Key]) -> int:
        """How many leading blocks of a chain are in the index. Touches nothing."""
        entries = self._entries
        return bisect_left(chain, True, key=lambda key: key not in entries)

    def insert(self, chain: Sequence[Key], block_tokens: int) -> None:
        """Note a prompt sent here, its first block as the most recent; forget beyond capacity."""
        entries = self._entries
        for key in reversed(chain):
            if key in entries:
                entries.move_to_end(key)
            else:
                entries[key] = block_tokens
                self.tokens += block_tokens
        if self.capacity_tokens is not None:
            while self.tokens > self.capacity_tokens:
                self.tokens -= entries.popitem(last=False)[1]
