"""Token sequences a radix tree can compare fast, at the resolution of their trace.

A sequence is a row of *elements*: whole units of U tokens, then perhaps a part of a unit and one
element for all tokens nobody knows. Each element is an 8-byte id, so that comparing two sequences
is comparing bytes, and a prompt of 100,000 tokens in units of 512 is 196 elements, never expanded.

Two sequences agree on their first k tokens if every element that holds one of those tokens is
equal. For U = 1 that is exact; for larger units it is the lower bound of `sim.request`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice

from hybridplan.errors import InputError
from hybridplan.sim.request import Request

ID_BYTES = 8
_TOP_BYTE = 7 if sys.byteorder == "little" else 0
_ODD = 1 << 63  # ids a trace gives outside [0, 2**63)
_UNKNOWN = _ODD | 1 << 62  # ids of tokens the trace does not show


class TokenSequence:
    """Elements of one request, prompt first. Immutable; nodes of a tree hold slices of it.

    ``tail_ends`` are the end positions in tokens of the elements after the ``whole`` full units.
    ``scope_key`` tells ids of different scopes apart; a tree adds it to the key of a first edge.
    """

    __slots__ = ("data", "length_tokens", "scope_key", "tail_ends", "unit_tokens", "whole")

    def __init__(
        self,
        data: bytes,
        unit_tokens: int,
        whole: int,
        tail_ends: tuple[int, ...] = (),
        scope_key: bytes = b"",
    ) -> None:
        self.data = data
        self.unit_tokens = unit_tokens
        self.whole = whole
        self.tail_ends = tail_ends
        self.scope_key = scope_key
        self.length_tokens = tail_ends[-1] if tail_ends else whole * unit_tokens

    @classmethod
    def of_tokens(cls, tokens: Iterable[int]) -> TokenSequence:
        """Explicit tokens, U = 1. Raises OverflowError on a negative token."""
        ids = array("Q", tokens)
        return cls(ids.tobytes(), 1, len(ids))

    def element(self, position: int) -> int:
        """Index of the element that holds the token at ``position``."""
        whole_tokens = self.whole * self.unit_tokens
        if position < whole_tokens:
            return position // self.unit_tokens
        index = self.whole
        for end in self.tail_ends:
            if position < end:
                break
            index += 1
        return index

    def element_end(self, index: int) -> int:
        """End position in tokens of an element."""
        if index < self.whole:
            return (index + 1) * self.unit_tokens
        return self.tail_ends[index - self.whole]

    def key(self, position: int, tokens: int) -> bytes:
        """Ids of the elements that hold ``tokens`` tokens from ``position``: an edge's name."""
        if self.unit_tokens == 1 and position + tokens <= self.whole:
            ids = self.data[position * ID_BYTES : (position + tokens) * ID_BYTES]
        else:
            first, last = self.element(position), self.element(position + tokens - 1)
            ids = self.data[first * ID_BYTES : (last + 1) * ID_BYTES]
        return ids if position else self.scope_key + ids

    def token_ids(self) -> tuple[int, ...]:
        """Element ids, for tests and messages."""
        ids = array("Q")
        ids.frombytes(self.data)
        return tuple(ids)


def common_tokens(
    a: TokenSequence, a_start: int, a_end: int, b: TokenSequence, b_start: int, b_end: int
) -> int:
    """How many tokens of ``a[a_start:a_end]`` and ``b[b_start:b_end]`` agree from the left."""
    most = min(a_end - a_start, b_end - b_start)
    if most <= 0:
        return 0
    if a is b and a_start == b_start:
        return most
    if (
        a_start + most <= a.whole
        and b_start + most <= b.whole
        and a.unit_tokens == b.unit_tokens == 1
    ):
        return _equal_elements(a.data, a_start, b.data, b_start, most)
    first_a, first_b = a.element(a_start), b.element(b_start)
    count = min(
        a.element(a_start + most - 1) + 1 - first_a,
        b.element(b_start + most - 1) + 1 - first_b,
    )
    equal = _equal_elements(a.data, first_a, b.data, first_b, count)
    if equal == 0:
        return 0
    last_a, last_b = first_a + equal - 1, first_b + equal - 1
    return min(most, a.element_end(last_a) - a_start, b.element_end(last_b) - b_start)


def _equal_elements(a: bytes, a_first: int, b: bytes, b_first: int, count: int) -> int:
    """Leading equal elements of two rows of ``count``: all, or by bisection on whole spans."""
    a_byte, b_byte = a_first * ID_BYTES, b_first * ID_BYTES
    if b.startswith(a[a_byte : a_byte + count * ID_BYTES], b_byte):
        return count
    low, high = 0, count  # the first `low` are equal, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        span = a[a_byte + low * ID_BYTES : a_byte + middle * ID_BYTES]
        if b.startswith(span, b_byte + low * ID_BYTES):
            low = middle
        else:
            high = middle
    return low


class SequenceReader:
    """Turns the requests of one replay into sequences; ids are comparable within one reader.

    Tokens that the trace does not show get ids nobody else has. All requests of one scope must
    come at the same unit.
    """

    def __init__(self) -> None:
        self._unknown = 0
        self._odd: dict[tuple[str, int], int] = {}
        self._scopes: dict[str, tuple[bytes, int]] = {}

    def read(self, request: Request) -> TokenSequence:
        """Prompt and output of a request as one sequence.

        Uses ``request.sequence`` where it shows more than the prompt. Raises InputError if a
        scope changes its unit or a length is negative.
        """
        prompt = shown = request.prompt
        known = prompt.known_tokens
        total = prompt.length_tokens + request.output_tokens
        if request.sequence is not None and request.sequence.known_tokens > known:
            shown = request.sequence
            known = min(total, shown.known_tokens)
        if prompt.length_tokens < 0 or request.output_tokens < 0 or shown.unit_tokens < 1:
            raise InputError(
                f"request {request.request_id}: {prompt.length_tokens} prompt tokens,"
                f" {request.output_tokens} output tokens at unit {shown.unit_tokens};"
                " lengths must not be negative and the unit at least 1"
            )
        scope_key = self._scope_key(shown.scope, shown.unit_tokens, request.request_id)
        unit = shown.unit_tokens
        whole, part = divmod(known, unit)
        data = self._encode(shown.ids, whole + bool(part), shown.scope)
        tail_ends: tuple[int, ...] = (known,) if part else ()
        if total > known:
            self._unknown += 1
            data += (_UNKNOWN + self._unknown).to_bytes(ID_BYTES, sys.byteorder)
            tail_ends += (total,)
        return TokenSequence(data, unit, whole, tail_ends, scope_key)

    def _scope_key(self, scope: str, unit_tokens: int, request_id: str) -> bytes:
        if scope not in self._scopes:
            # Global ids get no key: an empty prefix costs nothing in the common case.
            key = b"" if scope == "" else b"%d:" % (len(self._scopes) + 1)
            self._scopes[scope] = key, unit_tokens
        key, first_unit = self._scopes[scope]
        if first_unit != unit_tokens:
            raise InputError(
                f"request {request_id} comes at {unit_tokens} tokens a unit, earlier ones of scope"
                f" {scope!r} at {first_unit}; give each unit its own scope"
            )
        return key

    def _encode(self, ids: Sequence[int], count: int, scope: str) -> bytes:
        taken = ids if len(ids) == count else list(islice(ids, count))
        try:
            data = array("Q", taken).tobytes()
            if data[_TOP_BYTE::ID_BYTES].isascii():
                return data
        except OverflowError:
            pass
        return array("Q", [self._plain(i, scope) for i in taken]).tobytes()

    def _plain(self, token_id: int, scope: str) -> int:
        if 0 <= token_id < _ODD:
            return token_id
        return self._odd.setdefault((scope, token_id), _ODD + len(self._odd))
