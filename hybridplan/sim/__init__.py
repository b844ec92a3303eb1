"""Tokens over time: traces, engines that replay them, and what was reused."""

from hybridplan.sim.arrival import Arrival, Closed, Timed, parse_arrival
from hybridplan.sim.events import Event, EventSink
from hybridplan.sim.outcome import (
    EngineUse,
    GroupUse,
    LossCause,
    RequestOutcome,
    StateUse,
    Summary,
)
from hybridplan.sim.replay import Engine, Progress, Replay, simulate
from hybridplan.sim.request import Prompt, Request

__all__ = [
    "Arrival",
    "Closed",
    "Engine",
    "EngineUse",
    "Event",
    "EventSink",
    "GroupUse",
    "LossCause",
    "Progress",
    "Prompt",
    "Replay",
    "Request",
    "RequestOutcome",
    "StateUse",
    "Summary",
    "Timed",
    "parse_arrival",
    "simulate",
]
