"""Identity of a request's prefixes at hash-block boundaries, computed as they are asked for.

vLLM chains a hash over each hash block (``hash_request_tokens``). A simulator only needs equality:
a chained trace id already names a whole prefix, so a key is an int made of the id and the position
inside its unit; other ids are digested as vLLM does. Where the trace's unit is coarser than the
question, the *lower* reading calls two prefixes equal only if the whole unit around the boundary is
equal, the *upper* reading if every unit wholly inside is (``hybridplan.sim.request``).
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Protocol

from hybridplan.sim.request import Prompt, Request

Key = Hashable


class Reading(str, Enum):
    """Which side the simulator errs on where the trace cannot tell."""

    LOWER = "lower"
    UPPER = "upper"


class PrefixKeys(Protocol):
    """Keys of one sequence; ``keys[i]`` names its first ``(i + 1) * hash_tokens`` tokens."""

    keys: list[Key]

    def extend(self, count: int) -> None:
        """Make ``keys`` at least ``count`` long. Never shortens it."""


def identity_of(request: Request) -> Prompt:
    """Prompt plus output where a later turn shows it, else the prompt alone."""
    sequence = request.sequence
    if sequence is not None and sequence.length_tokens >= request.prompt.length_tokens:
        return sequence
    return request.prompt


def prefix_keys(
    prompt: Prompt, serial: int, hash_tokens: int, lookahead_tokens: int, reading: Reading
) -> PrefixKeys:
    """Choose how the prefixes of ``prompt`` are named.

    ``serial`` is unique to the request: it names what the trace leaves unknown.
    """
    if prompt.chained:
        return _ChainedKeys(prompt, serial, hash_tokens, lookahead_tokens, reading)
    if prompt.unit_tokens == 1:
        return _TokenKeys(prompt, serial, hash_tokens, lookahead_tokens)
    return _UnitKeys(prompt, serial, hash_tokens, lookahead_tokens, reading)


class _ChainedKeys:
    """Ids that stand for everything before them: (id, offset in unit) is the whole identity."""

    __slots__ = (
        "_hash_tokens", "_ids", "_known", "_lookahead", "_scope", "_serial", "_unit", "_upper",
        "keys",
    )  # fmt: skip

    def __init__(
        self, prompt: Prompt, serial: int, hash_tokens: int, lookahead: int, reading: Reading
    ) -> None:
        self.keys: list[Key] = []
        self._ids, self._unit, self._scope = prompt.ids, prompt.unit_tokens, prompt.scope
        self._known, self._serial = prompt.known_tokens, serial
        self._hash_tokens, self._lookahead = hash_tokens, lookahead
        self._upper = reading is Reading.UPPER

    def extend(self, count: int) -> None:
        keys, ids, unit, step = self.keys, self._ids, self._unit, self._hash_tokens
        for index in range(len(keys), count):
            at = (index + 1) * step + self._lookahead
            if at > self._known:
                keys.append((self._serial, index))
                continue
            whole, inside = divmod(at, unit)
            key: Key
            if not inside:
                key = ids[whole - 1] * unit
            elif not self._upper:
                key = ids[whole] * unit + inside
            else:
                key = ("", ids[whole - 1] if whole else None, at)
            keys.append((self._scope, key) if self._scope else key)


class _TokenKeys:
    """Explicit tokens: a digest chained over hash blocks, lookahead tokens included in the key."""

    __slots__ = (
        "_digest", "_hash_tokens", "_ids", "_known", "_lookahead", "_serial", "keys",
    )  # fmt: skip

    def __init__(self, prompt: Prompt, serial: int, hash_tokens: int, lookahead: int) -> None:
        self.keys: list[Key] = []
        self._ids, self._known, self._serial = prompt.ids, prompt.known_tokens, serial
        self._hash_tokens, self._lookahead = hash_tokens, lookahead
        self._digest = blake2b(prompt.scope.encode(), digest_size=16).digest()

    def extend(self, count: int) -> None:
        keys, step, ahead = self.keys, self._hash_tokens, self._lookahead
        for index in range(len(keys), count):
            start, end = index * step, (index + 1) * step
            if end + ahead > self._known:
                keys.append((self._serial, index))
                continue
            before = self._digest
            self._digest = _digest(before, self._ids[start:end])
            keys.append(_digest(before, self._ids[start : end + ahead]) if ahead else self._digest)


class _UnitKeys:
    """Ids of a unit's own content: a digest chained over units, cut where the question falls."""

    __slots__ = (
        "_chain", "_hash_tokens", "_ids", "_known", "_lookahead", "_serial", "_unit", "_upper",
        "keys",
    )  # fmt: skip

    def __init__(
        self, prompt: Prompt, serial: int, hash_tokens: int, lookahead: int, reading: Reading
    ) -> None:
        self.keys: list[Key] = []
        self._ids, self._unit = prompt.ids, prompt.unit_tokens
        self._known, self._serial = prompt.known_tokens, serial
        self._hash_tokens, self._lookahead = hash_tokens, lookahead
        self._upper = reading is Reading.UPPER
        self._chain = [blake2b(prompt.scope.encode(), digest_size=16).digest()]

    def extend(self, count: int) -> None:
        keys, unit = self.keys, self._unit
        for index in range(len(keys), count):
            at = (index + 1) * self._hash_tokens + self._lookahead
            if at > self._known:
                keys.append((self._serial, index))
                continue
            whole, inside = divmod(at, unit)
            units = whole + (1 if inside and not self._upper else 0)
            chain = self._chain
            while len(chain) <= units:
                chain.append(_digest(chain[-1], self._ids[len(chain) - 1 : len(chain)]))
            keys.append((chain[units], at))


def _digest(before: bytes, ids: Sequence[int]) -> bytes:
    try:
        content = array("q", ids).tobytes()
    except OverflowError:
        content = repr(tuple(ids)).encode()
    return blake2b(content, digest_size=16, key=before).digest()
