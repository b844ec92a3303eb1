"""One replica with the memory of all of them: what routing loses, if it loses anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hybridplan.ledger.planning.ask import MemoryAsk
from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.result import Reference
from hybridplan.sim.replay import Replay
from hybridplan.sim.result import Setup
from hybridplan.sim.setup import EngineAsk, VllmFlags, build
from hybridplan.sim.time.clock import Charge, Clock, Pass


@dataclass(frozen=True, slots=True)
class Faster:
    """A clock ``times`` as fast: as many ticks a step, and so many times more of them a second."""

    clock: Clock
    times: int

    @property
    def ticks_per_s(self) -> int:
        return self.clock.ticks_per_s * self.times

    @property
    def sees_queue(self) -> bool:
        return self.clock.sees_queue

    def passes(self, passes: Sequence[Pass]) -> list[Charge]:
        """As the clock says."""
        return self.clock.passes(passes)

    def stretch(self, work: StepWork, steps: int) -> Charge:
        """As the clock says."""
        return self.clock.stretch(work, steps)


def one_large_replica(ask: FleetAsk, setup: Setup) -> Reference:
    """The same trace through one engine with ``replicas`` times the memory, rows and speed."""
    times = ask.replicas
    built = build(pooled(ask.engine, setup, times))
    clock = ask.clock()
    replay = Replay(
        ask.requests(),
        built.engine(losses=False),
        arrival=ask.arrival,
        clock=None if clock is None else Faster(clock, times),
    )
    for _ in replay:
        pass
    summary = replay.summary()
    blocks = built.setup.num_blocks
    return Reference(
        name="one replica with all the memory"
        + (" of the prefillers" if ask.decode_replicas else ""),
        pool="unlimited" if blocks is None else f"{blocks:,} blocks",
        hit_tokens=summary.hit_tokens,
        prompt_tokens=summary.prompt_tokens,
        hit_rate=summary.hit_rate,
    )


def pooled(engine: EngineAsk, setup: Setup, times: int) -> EngineAsk:
    """An engine's question with ``times`` its memory and running requests (no more than a step has
    tokens), steps as before."""
    memory = engine.memory
    if memory is not None and setup.memory is not None:
        gpu = memory.gpu
        if gpu is not None:
            gpu = replace(gpu, memory_bytes=gpu.memory_bytes * times)
        memory = MemoryAsk(gpu, setup.memory.available_bytes * times)
    flags = engine.flags
    if isinstance(flags, VllmFlags):
        blocks = flags.num_blocks
        step = _whole(setup.settings["max_num_batched_tokens"])
        flags = replace(
            flags,
            num_blocks=None if blocks is None else (blocks - 1) * times + 1,
            max_num_batched_tokens=step,
            max_num_seqs=min(_whole(setup.settings["max_num_seqs"]) * times, step),
        )
    else:
        running, slots = flags.options.max_running_requests, flags.options.slots
        flags = replace(
            flags,
            chunked_prefill_tokens=_whole(setup.settings["chunked_prefill_size"]),
            options=replace(
                flags.options,
                max_running_requests=None if running is None else running * times,
                slots=None if slots is None else slots * times,
            ),
        )
    return replace(engine, memory=memory, flags=flags)


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
