"""Small engines and traces that share, extend and repeat prompts."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.time.clock import NS, Charge, FlatClock, Pass
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.types import GroupKind, VllmCacheConfig, VllmGroup

BLOCK = 64


class QueueClock:
    """The stand-in's step times under a clock that sees an engine's steps in flight."""

    ticks_per_s = NS
    sees_queue = True

    def __init__(self, flat: FlatClock) -> None:
        self._flat = flat

    def passes(self, passes: Sequence[Pass]) -> list[Charge]:
        return self._flat.passes(passes)

    def stretch(self, work: StepWork, steps: int) -> Charge:
        return self._flat.stretch(work, steps)


def config(num_blocks: int = 400, **limits: int) -> VllmCacheConfig:
    """One attention group and two of states, blocks of 64 tokens."""
    state = VllmGroup(GroupKind.MAMBA_ALIGN, BLOCK, block_bytes=1000)
    return VllmCacheConfig(
        groups=(VllmGroup(GroupKind.FULL, BLOCK, block_bytes=1000), state, state),
        num_blocks=num_blocks,
        **limits,  # type: ignore[arg-type]
    )


def engine(num_blocks: int = 400, *, skipping: bool = True, **limits: int) -> ReplayedVllm:
    """A fresh engine that explains its losses."""
    return ReplayedVllm(config(num_blocks, **limits), skipping=skipping)


def request(
    name: str,
    ids: tuple[int, ...],
    output: int = 3,
    *,
    arrival_s: float | None = None,
    session: str | None = None,
    turn: int | None = None,
) -> Request:
    """A prompt of whole blocks and one token more that no other prompt has."""
    own = 1_000_000 + sum(ord(letter) * 31**at for at, letter in enumerate(name)) % 1_000_003
    prompt = Prompt(len(ids) * BLOCK + 1, BLOCK, (*ids, own))
    return Request(name, prompt, output, arrival_s=arrival_s, session=session, turn=turn)


def trace(
    seed: int, count: int = 40, *, sessions: bool = True, gap_s: float = 0.02
) -> list[Request]:
    """Requests on one clock; some are turns of sessions, prompts grow and fork."""
    rng = Random(seed)
    made, now_s = [], 0.0
    turns: dict[str, list[int]] = {}
    for index in range(count):
        now_s += rng.choice([0.0, gap_s / 10, gap_s, 3 * gap_s])
        session = f"s{rng.randrange(5)}" if sessions and rng.random() < 0.7 else None
        ids = turns.get(session or "", []) if session else []
        ids = [*ids, *(rng.randrange(3) for _ in range(rng.randrange(1, 5)))][:24]
        turn = None
        if session is not None:
            turns[session] = ids
            turn = index
        made.append(
            request(
                f"r{index}",
                tuple(ids),
                rng.choice([0, 1, 2, 9, 40, 130]),
                arrival_s=now_s,
                session=session,
                turn=turn,
            )
        )
    return made
