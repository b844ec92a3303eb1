"""Which replica a request goes to. A router sees the request, its own past and the loads.

Rules follow public gateways, named at each router; code and defaults' meaning are documented in
docs/fleet.md. Ties go to the replica that was chosen longest ago, so an idle fleet is used evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Literal, Protocol

from hybridplan.errors import InputError
from hybridplan.sim.fleet.prefix_index import PrefixIndex, block_tokens_of, prefix_chain
from hybridplan.sim.request import Request

LoadKind = Literal["requests", "tokens"]


@dataclass(slots=True)
class Outstanding:
    """What a router knows to be outstanding at a replica: sent there and not yet answered.

    ``tokens`` are prompt tokens; how long an answer becomes, no router knows.
    """

    requests: int = 0
    tokens: int = 0


class Router(Protocol):
    """Chooses a replica by its position.

    ``believed_tokens`` is what the router thought was cached where it sent the last request.
    """

    @property
    def believed_tokens(self) -> int: ...
    def choose(self, request: Request, loads: Sequence[Outstanding]) -> int: ...


@dataclass(frozen=True, slots=True)
class RouterAsk:
    """A router and its parameters.

    ``load`` is what least-loaded (and every tie) counts: outstanding ``requests``, as the SGLang
    gateway and the vLLM router do, or outstanding prompt ``tokens``. The rest is prefix-aware's,
    with the SGLang gateway's defaults: a match below ``cache_threshold`` of the prompt is no
    reason to go there; a fleet is out of balance when the busiest replica has more than
    ``balance_abs`` requests over the idlest and more than ``balance_rel`` times as many.
    ``index_tokens`` bounds what is remembered of each replica (None: everything).
    """

    kind: str = "round-robin"
    load: LoadKind = "requests"
    cache_threshold: float = 0.3
    balance_abs: int = 64
    balance_rel: float = 1.5
    index_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ROUTERS:
            raise InputError(f"router {self.kind!r} is not known; use {', '.join(ROUTERS)}")
        if self.load not in ("requests", "tokens"):
            raise InputError(f"router load {self.load!r} is not known; use requests or tokens")
        if not 0 <= self.cache_threshold <= 1:
            raise InputError(
                f"a cache threshold of {self.cache_threshold:g} is no share of a prompt; give 0 to"
                " 1"
            )
        if self.balance_abs < 0 or not 1 <= self.balance_rel < inf:
            raise InputError(
                f"a balance of {self.balance_abs} requests and {self.balance_rel:g} times is none;"
                " give at least 0 requests and a finite ratio of at least 1"
            )

    def make(self, names: Sequence[str]) -> Router:
        """A router of replicas with these names, fresh."""
        if not names:
            raise InputError("a router needs at least 1 replica")
        if len(set(names)) < len(names):
            raise InputError(f"replicas need names of their own, not {', '.join(names)}")
        return ROUTERS[self.kind](self, tuple(names))

    def __str__(self) -> str:
        return self.kind


class RoundRobin:
    """Each replica in turn, in the order requests reach the router."""

    believed_tokens = 0

    def __init__(self, ask: RouterAsk, names: tuple[str, ...]) -> None:
        self._replicas = len(names)
        self._next = 0

    def choose(self, request: Request, loads: Sequence[Outstanding]) -> int:
        """The next replica; loads are not looked at."""
        chosen = self._next
        self._next = (chosen + 1) % self._replicas
        return chosen


class LeastLoaded:
    """The replica with the least outstanding, by ``RouterAsk.load``."""

    believed_tokens = 0

    def __init__(self, ask: RouterAsk, names: tuple[str, ...]) -> None:
        self._counts_tokens = ask.load == "tokens"
        self._chosen_at = list(range(-len(names), 0))
        self._choices = 0

    def choose(self, request: Request, loads: Sequence[Outstanding]) -> int:
        """The least loaded replica."""
        return self.choose_among(range(len(loads)), loads)

    def choose_among(self, replicas: Sequence[int], loads: Sequence[Outstanding]) -> int:
        """The least loaded of some replicas."""
        chosen = min(replicas, key=lambda index: (self._load(loads[index]), self._chosen_at[index]))
        self.note(chosen)
        return chosen

    def note(self, chosen: int) -> None:
        """Another rule chose this replica."""
        self._chosen_at[chosen] = self._choices
        self._choices += 1

    def _load(self, load: Outstanding) -> int:
        return load.tokens if self._counts_tokens else load.requests


class Session:
    """The same replica for a whole session, whatever its load.

    Highest-random-weight hashing of session and replica name: adding a replica moves only the
    sessions that it wins, removing one only those it had. Requests without a session go round.
    """

    believed_tokens = 0

    def __init__(self, ask: RouterAsk, names: tuple[str, ...]) -> None:
        self._names = names
        self._rest = RoundRobin(ask, names)

    def choose(self, request: Request, loads: Sequence[Outstanding]) -> int:
        """The session's replica, or the next one where there is no session."""
        if request.session is None:
            return self._rest.choose(request, loads)
        session, names = request.session, self._names
        return max(range(len(names)), key=lambda index: (_weight(session, names[index]), index))


class PrefixAware:
    """The replica that was sent the longest prefix of this prompt, unless the fleet is uneven.

    The cache-aware rule of the SGLang gateway: out of balance, the least loaded replica; else the
    longest match if it covers enough of the prompt; else the replica with the smallest index.
    """

    def __init__(self, ask: RouterAsk, names: tuple[str, ...]) -> None:
        self._ask = ask
        self._least = LeastLoaded(ask, names)
        self._indexes = tuple(PrefixIndex(ask.index_tokens) for _ in names)
        self.believed_tokens = 0

    def choose(self, request: Request, loads: Sequence[Outstanding]) -> int:
        """A replica by the rule above; notes the prompt as cached there."""
        ask, indexes = self._ask, self._indexes
        chain = prefix_chain(request.prompt)
        block = block_tokens_of(request.prompt)
        matches = [index.match(chain) for index in indexes]
        requests = [load.requests for load in loads]
        most, least = max(requests), min(requests)
        replicas: Sequence[int] = range(len(indexes))
        if not (most - least > ask.balance_abs and most > ask.balance_rel * least):
            longest = max(matches)
            known = longest * block
            if known and known > ask.cache_threshold * request.prompt.length_tokens:
                replicas = [index for index in replicas if matches[index] == longest]
            else:
                smallest = min(index.tokens for index in indexes)
                replicas = [i for i in replicas if indexes[i].tokens == smallest]
        chosen = self._least.choose_among(replicas, loads)
        self.believed_tokens = matches[chosen] * block
        indexes[chosen].insert(chain, block)
        return chosen


def _weight(session: str, name: str) -> bytes:
    return blake2b(f"{session}\0{name}".encode(), digest_size=8).digest()


ROUTERS: dict[str, Callable[[RouterAsk, tuple[str, ...]], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "session": Session,
    "prefix-aware": PrefixAware,
}
