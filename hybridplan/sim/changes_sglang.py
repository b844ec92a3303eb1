"""Changes of SGLang's flags that answer a loss."""

from __future__ import annotations

from fractions import Fraction

from hybridplan.sim.changes import Change, lost_to, option_change, twice_the_memory
from hybridplan.sim.outcome import LossCause, Summary
from hybridplan.sim.setup import EngineAsk, SglangFlags, build
from hybridplan.sim.sglang.config import STRATEGIES


def sglang_changes(ask: EngineAsk, summary: Summary) -> list[Change]:
    """What to re-run for these losses, most promising first."""
    flags = ask.flags
    assert isinstance(flags, SglangFlags)
    found: list[Change] = []
    now = build(ask).setup.settings["strategy"]
    if lost_to(summary, (LossCause.NO_CHUNK_END, LossCause.NOT_RETAINED)):
        found += [
            Change(
                "strategy",
                (f"--mamba-radix-cache-strategy {strategy}",),
                "another rule for where states are kept",
                "",
                option_change(strategy=strategy),
            )
            for strategy in STRATEGIES
            if strategy != now
        ]
    if summary.use.evictions and lost_to(summary, (LossCause.EVICTED,)) and ask.memory is not None:
        for factor, what in ((Fraction(2), "states"), (Fraction(1, 2), "KV")):
            ratio = flags.options.ratio * factor
            found.append(
                Change(
                    "ratio",
                    (f"--mamba-full-memory-ratio {float(ratio):g}",),
                    f"{what} get more of the same memory",
                    "",
                    option_change(ratio=ratio),
                    needs_whole=True,
                )
            )
        memory = build(ask).setup.memory
        assert memory is not None
        found.append(twice_the_memory(memory.available_bytes))
    return found
