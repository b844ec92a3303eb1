"""A vLLM instance that decodes prompts another instance computed.

Rule: vLLM 0.33's NIXL connector for hybrids. The prefiller computes n - 1 tokens of a prompt of n,
their KV and the running state are sent, the decoder computes the last token and goes on. Blocks
are taken when the transfer has ended (the connector takes them when it begins). A request that is
preempted here is prefilled again here.
"""

from __future__ import annotations

from dataclasses import replace

from hybridplan.sim.request import Request
from hybridplan.sim.vllm.coordinator import Coordinator, Lookup
from hybridplan.sim.vllm.pool import NULL_BLOCK
from hybridplan.sim.vllm.replayed import ReplayedVllm
from hybridplan.sim.vllm.sequence import Sequence


class _Received(Coordinator):
    """Every prompt is here but for its last token; nothing of it was looked up or shared."""

    def lookup(self, seq: Sequence) -> Lookup:
        if seq.preemptions:
            return super().lookup(seq)
        received = seq.num_tokens - 1
        blocks: list[list[int]] = []
        for manager in self.managers:
            windowed = manager.group.window_tokens > 0
            skipped = manager.skipped_tokens(received) // manager.block if windowed else 0
            blocks.append([NULL_BLOCK] * skipped)
        return Lookup(tuple(blocks), received, 0, received, received)


def receiving(engine: ReplayedVllm) -> ReplayedVllm:
    """Let a fresh engine, made without losses and events, receive its prompts."""
    scheduler = engine.engine.scheduler
    scheduler.coordinator = _Received(engine.config, scheduler.pool)
    return engine


def prefill_part(request: Request) -> Request | None:
    """What the prefiller computes of a request: all but the last prompt token.

    None where nothing is left to compute.
    """
    tokens = request.prompt.length_tokens - 1
    if tokens < 1:
        return None
    return replace(request, prompt=replace(request.prompt, length_tokens=tokens), output_tokens=1)
