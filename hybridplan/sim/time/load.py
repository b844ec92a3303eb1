"""From ``--calibration`` to a clock, and the sentences that say what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridplan.config.spec import ModelSpec
from hybridplan.ledger.calibration import Calibration, card_of, read_calibration
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.work.model import work_model
from hybridplan.sim.time.clock import StepClock

if TYPE_CHECKING:
    from hybridplan.sim.replay import Engine


def step_clock(
    calibration: Calibration | str, spec: ModelSpec, deployment: Deployment
) -> StepClock:
    """The clock of a model on a card.

    ``calibration``: one read before, or the text of ``--calibration``, FILE or preset:CARD. Raises
    InputError for a file that is none, an unknown card, or one without a constant the model needs.
    """
    if isinstance(calibration, str):
        calibration = read_calibration(calibration, flop_dtype(spec))
    return StepClock(work_model(spec, deployment), calibration)


def flop_dtype(spec: ModelSpec) -> str:
    """What products of weights run in: fp8 where the checkpoint is stored so, otherwise bf16 (as
    4-bit weights are unpacked first)."""
    scheme = spec.quantization
    if scheme is not None and scheme.weight_bits == 8 and "fp8" in scheme.method.lower():
        return "fp8"
    return "bf16"


def assumptions(clock: StepClock, spec: ModelSpec, engine: Engine | None = None) -> tuple[str, ...]:
    """Where the times come from, what they leave out and how ``engine`` sees arrivals."""
    made = clock.calibration
    said = []
    if made.assumed:
        said.append(_preset(made))
    elif made.model and made.model != spec.name:
        said.append(
            f"the constants were measured with {made.model} and are used for {spec.name}: they are"
            " seconds a byte and a FLOP, not of a model"
        )
    said += clock.model.notes
    if engine is not None and "host tier" in engine.name:
        said.append("loads from the host tier take no time")
    if engine is None:
        pass
    elif engine.name.startswith("sglang"):
        said.append(
            "SGLang's overlap is not modelled: an arrival is seen by the very next step; prefills"
            " run before the decode step in passes of their own"
        )
    elif engine.name.startswith("marconi"):
        said.append("each request runs alone to its last token; those that arrive meanwhile wait")
    elif engine.steps_in_flight > 1 or clock.model.stages > 1:
        said.append(
            f"steps in flight while one is planned: {engine.steps_in_flight} (pipeline stages,"
            " async scheduling); an arrival is seen as many steps after the running one"
        )
    elif engine.steps_in_flight:
        said.append(
            "async scheduling: an arrival is seen when the step after the running one is planned"
        )
    said.append("tokenisation, HTTP, the network and the host's own scheduling take no time")
    return tuple(said)


def other_card(calibration: Calibration, pool_gpu: str | None) -> tuple[str, ...]:
    """A sentence where the pool is sized for one card and the steps are timed on another."""
    card = card_of(calibration)
    if pool_gpu is None or card is None or find_gpu(pool_gpu) is card:
        return ()
    return (f"the pool is sized for {pool_gpu}, the steps are those of {card.title}",)


def _preset(made: Calibration) -> str:
    """What a preset assumes, in one sentence."""
    rates = "; ".join(
        f"{label} at {made.constants[f'step.{name}'].how.removeprefix('assumed: ')}"
        for name, label in _RATES.items()
    )
    return (
        f"nothing was measured: {1e3 * made.step_seconds('step'):g} ms of host work between steps,"
        f" {1e6 * made.step_seconds('launches'):g} us a launch, {rates}; none of it overlaps"
    )


_RATES = {
    "bytes": "bytes",
    "dense_flop": "products",
    "attention_flop": "attention of prefills",
    "scan_flop": "recurrence of prefills",
}
