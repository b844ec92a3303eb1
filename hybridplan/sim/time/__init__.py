"""Time in a replay: what each step costs, whose first token it gives, and what requests waited.

The interface, for whoever drives engines on a clock (one replay, or a fleet of them):

``StepWork`` (``hybridplan.ledger.work``)
    what one pass of the model computes: contexts of requests that decode, chunks of prefills,
    windows that verify drafts; ``repeats`` equal decode passes are one StepWork.
``WorkModel`` (``hybridplan.ledger.work``): ``work_model(spec, deployment).counts(work)``
    the pass in counts of FEATURES (launches, bytes, FLOP), whole numbers, on one rank.
``Calibration`` (``hybridplan.ledger.calibration``)
    seconds per unit of each feature: a file of ``measure --save``, or ``preset:CARD``.
``step_clock(text, spec, deployment)``
    text of ``--calibration`` (FILE or preset:CARD) to a ``StepClock``.
``Clock``
    whole ticks of ``1 / ticks_per_s`` seconds. ``StepClock`` counts 1e-24 s, so that a stretch of
    n decode steps in closed form equals n steps one by one, bit for bit; ``FlatClock`` is the
    stand-in of ``--arrival timed``.
``Server(engine, clock)``
    one engine on a clock of its own: ``add(request, now)``, ``run(until)``, ``now``, ``horizon``.
    ``run`` does one step, or a stretch of equal steps that ends where an arrival at ``until``
    would first be seen, and returns the outcomes with their times.
"""

from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.time.clock import Charge, Clock, FlatClock, Pass, StepClock
from hybridplan.sim.time.load import step_clock
from hybridplan.sim.time.server import Server, TimedEngine

__all__ = [
    "Charge",
    "Clock",
    "FlatClock",
    "Pass",
    "Server",
    "StepClock",
    "StepWork",
    "TimedEngine",
    "step_clock",
]
