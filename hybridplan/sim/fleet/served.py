"""A request's way through a fleet."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybridplan.sim.fleet.host import Load
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.request import Request


@dataclass(slots=True)
class Moved:
    """From a prefiller to a decoder. Ticks of the fleet; ``prefill`` is what the prefiller did,
    None where nothing was left for it, ``decode`` what the decoder did, once it has. The transfer
    was ready, began and ended."""

    prefill: RequestOutcome | None
    decoder: int
    moved_bytes: int
    ready: int
    begin: int
    end: int
    decode: RequestOutcome | None = None


@dataclass(slots=True)
class Served:
    """A request's way through the fleet. Ticks are the fleet's; ``outcome`` is None until its end.

    ``believed_tokens`` is what the router thought was cached at ``replica``; ``host_tokens`` of the
    hit came from the host tier, in ``host_bytes``, and were there at tick
    ``loaded``. ``moved`` is the way
    from prefiller to decoder, where they are apart.
    """

    request: Request
    arrival: int
    sent: int
    replica: int
    believed_tokens: int
    outcome: RequestOutcome | None = None
    host_load: Load | None = None
    loaded: int = 0
    host_tokens: int = 0
    host_bytes: int = 0
    moved: Moved | None = None


def since(outcome: RequestOutcome, sent: int, delivered: int, ticks_per_s: int) -> RequestOutcome:
    """The outcome of an engine that got a request at ``delivered``, as its client at ``sent`` sees
    it; both are ticks."""
    if outcome.sent_s is None:
        return outcome
    more = (delivered - sent) / ticks_per_s

    def longer(seconds: float | None) -> float | None:
        return None if seconds is None else seconds + more

    return replace(
        outcome,
        sent_s=sent / ticks_per_s,
        queued_s=longer(outcome.queued_s),
        ttft_s=longer(outcome.ttft_s),
        e2e_s=longer(outcome.e2e_s),
    )


def without_times(outcome: RequestOutcome) -> RequestOutcome:
    """An outcome of a fleet whose ticks are steps and no seconds."""
    return replace(
        outcome,
        arrival_s=None,
        waited_s=None,
        finish_s=None,
        sent_s=None,
        queued_s=None,
        ttft_s=None,
        tpot_s=None,
        e2e_s=None,
    )


def refused(request: Request, reason: str, arrival_s: float | None) -> RequestOutcome:
    """The outcome of a request that no engine took; it arrived at ``arrival_s`` of the replay."""
    return RequestOutcome(
        request_id=request.request_id,
        prompt_tokens=request.prompt.length_tokens,
        output_tokens=0,
        arrival_s=arrival_s,
        session=request.session,
        turn=request.turn,
        refused=reason,
    )
