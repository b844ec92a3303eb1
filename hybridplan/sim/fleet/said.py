"""The sentences that say what a fleet's answer rests on."""

from __future__ import annotations

from collections.abc import Sequence

from hybridplan.sim.arrival import Closed, Timed
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.part import Part
from hybridplan.sim.result import Setup
from hybridplan.sim.time.answer import clock_of
from hybridplan.sim.time.load import assumptions


def assumptions_of(ask: FleetAsk, setup: Setup, parts: Sequence[Part]) -> tuple[str, ...]:
    """What was taken for granted, most general first."""
    said = [*setup.assumptions, *_arrival(ask)]
    if ask.base.session_gap_s is not None:
        said.append(f"sessions start {ask.base.session_gap_s:g} s apart, in trace order")
    for part in parts:
        said += [
            sentence
            for sentence in part.summary.assumptions
            if not sentence.startswith("arrival ") and sentence not in said
        ]
    if ask.trace.info.unit_tokens is None:
        said.append("the trace has no prefix ids, so every prompt counts as new")
    said += _router(ask)
    if ask.decode_replicas:
        said.append(
            "a transfer begins when the prefill has ended, and has one link a rank at both ends to"
            " itself; the decoder is the one with the least outstanding prompt tokens"
        )
        said.append(
            "decoders receive every prompt whole; vLLM asks only for what they do not hold, so the"
            " bytes are an upper bound"
        )
        if ask.transfer is None:
            said.append("no --transfer-gb-s was given, so transfers take no time")
    if ask.host is not None:
        said.append(
            "the host tier is an assumed policy: blocks go there when the device evicts them, a"
            " load begins when the request arrives and is taken when it is faster than computing"
        )
        if ask.host.speed is None:
            said.append("no --host-gb-s was given, so loads from the host take no time")
        elif ask.host.measured_on:
            said.append(
                f"loads from the host go at {ask.host.speed.bytes_per_s / 1e9:.3g} GB/s after"
                f" {ask.host.speed.latency_s * 1e6:.3g} us each, as measured on"
                f" {ask.host.measured_on}"
            )
    return tuple(said)


def _arrival(ask: FleetAsk) -> list[str]:
    arrival, known = ask.arrival, clock_of(ask.base.timing, ask.engine)
    said = [f"arrival {arrival_words(ask)}"]
    if isinstance(arrival, Closed) and arrival.in_flight > 1:
        said.append(
            f"{arrival.in_flight} requests are in flight over the whole fleet"
            + ("" if known else ", whose replicas take their steps in time")
        )
    if known is not None:
        said += assumptions(known, ask.engine.spec)
    elif isinstance(arrival, Timed) and arrival == Timed(speed=arrival.speed):
        said.append("step times stand in for a device; --calibration counts each step's work")
    return said


def arrival_words(ask: FleetAsk) -> str:
    """The arrival as a result says it."""
    if isinstance(ask.arrival, Timed):
        return ask.arrival.words(stand_in=ask.base.timing.calibration is None)
    return str(ask.arrival)


def _router(ask: FleetAsk) -> list[str]:
    router = ask.router
    if ask.replicas == 1:
        return []
    sessions = ask.trace.info.sessions.value != "none"
    if router.kind == "session":
        if sessions:
            return ["requests without a session go round"]
        return ["the trace has no sessions, so session routing goes round"]
    if router.kind == "prefix-aware":
        if ask.trace.info.unit_tokens is None:
            return ["prefix-aware routing finds no prefixes, so it goes by load"]
        kept = "" if router.index_tokens is None else f" of {router.index_tokens:,} tokens"
        return [
            f"the router's index{kept} holds what was sent to a replica, whatever the replica kept"
        ]
    return []
