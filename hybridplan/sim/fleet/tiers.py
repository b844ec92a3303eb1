"""What moved: between prefillers and decoders, and to the host and back."""

from __future__ import annotations

from collections.abc import Iterable

from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.checkpoints import checkpoint_bytes
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.disagg import Disaggregated
from hybridplan.sim.fleet.link import Link
from hybridplan.sim.fleet.result import HostResult, TransferResult
from hybridplan.sim.fleet.together import Together
from hybridplan.sim.setup import Built
from hybridplan.sim.time.result import Quantiles
from hybridplan.sim.time.stopwatch import quantiles


def transfer_result(
    ask: FleetAsk, built: Built, together: Together, elapsed_s: float | None
) -> TransferResult | None:
    """The transfers of a fleet; None where prefill and decode are together."""
    fleet = together.fleet
    if not isinstance(fleet, Disaggregated):
        return None
    moved, ticks = together.moved_bytes, fleet.ticks_per_s
    decoders = [part.summary for part in together.decoders]

    def seconds(values: list[int]) -> Quantiles | None:
        return quantiles([value / ticks for value in values]) if ticks > 1 else None

    return TransferResult(
        prefill_replicas=ask.replicas,
        decode_replicas=ask.decode_replicas,
        bytes_per_s=ask.transfer.bytes_per_s if ask.transfer is not None else None,
        requests=len(moved),
        moved_bytes=sum(moved),
        mean_bytes=sum(moved) / len(moved) if moved else 0.0,
        most_bytes=max(moved, default=0),
        state_bytes=checkpoint_bytes(model_caches(ask.engine.spec, ask.engine.deployment)),
        waited_s=seconds(together.waited_ticks),
        moving_s=seconds(together.moving_ticks),
        sender_busy_share=_busiest(fleet.sending, ticks, elapsed_s),
        receiver_busy_share=_busiest(fleet.receiving, ticks, elapsed_s),
        decode_blocks=built.setup.num_blocks,
        decode_peak_blocks=max(
            sum(group.peak_blocks for group in summary.use.groups) for summary in decoders
        ),
        decode_peak_running=max(summary.peak_running for summary in decoders),
        decode_peak_waiting=max(summary.peak_waiting for summary in decoders),
        decode_preemptions=sum(summary.preemptions for summary in decoders),
    )


def host_result(ask: FleetAsk, together: Together, elapsed_s: float | None) -> HostResult | None:
    """The host tiers of a fleet; None without."""
    hosts = [site.host for site in together.fleet.sites if site.host is not None]
    if ask.host is None or not hosts:
        return None
    stores = [host.tier.store for host in hosts]
    speed = ask.host.speed
    return HostResult(
        capacity_bytes=ask.host.capacity_bytes,
        bytes_per_s=speed.bytes_per_s if speed is not None else None,
        loads=sum(host.taken for host in hosts),
        declined=sum(host.declined for host in hosts),
        loaded_bytes=sum(host.link.moved_bytes for host in hosts),
        stored_bytes=sum(store.stored_blocks * store.block_bytes for store in stores),
        evicted_blocks=sum(store.evictions for store in stores),
        host_tokens=sum(part.host_tokens for part in together.parts),
        stateless_tokens=sum(host.tier.stateless_tokens for host in hosts),
        link_busy_share=_busiest(
            (host.link for host in hosts), together.fleet.ticks_per_s, elapsed_s
        ),
    )


def _busiest(links: Iterable[Link], ticks_per_s: int, elapsed_s: float | None) -> float | None:
    if not elapsed_s:
        return None
    return max(link.busy_ticks for link in links) / ticks_per_s / elapsed_s
