"""Check 9: the prefix length above which a stored state beats computing the prefix again."""

from __future__ import annotations

from hybridplan.errors import HybridplanError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.calibration import Constant
from hybridplan.ledger.checkpoints import checkpoint_bytes
from hybridplan.ledger.deployment import Deployment
from hybridplan.measure import steps
from hybridplan.measure.checks.transfer import copy_time
from hybridplan.measure.context import Context, NoTimeError
from hybridplan.measure.result import Check, compared, skipped

FAMILY = "break-even"
BASE_TOKENS, MORE_TOKENS = 512, 2048


def run(context: Context) -> list[Check]:
    """Restoring on the device, and from the host over its link.

    Recomputing costs what the prefix adds to a prefill that runs anyway.
    """
    what = "prefix above which restoring beats recomputing"
    caches = model_caches(context.spec, Deployment("vllm"))
    state = checkpoint_bytes(caches)
    if not state:
        return [skipped(FAMILY, "break-even", what, f"{context.spec.name} keeps no state")]
    try:
        timer = context.timed()
        rates = context.rates
        assert rates is not None
        stack = steps.stack_of(context)
        model = context.time_model()
    except NoTimeError as error:
        return [skipped(FAMILY, "break-even", what, str(error))]
    except HybridplanError as error:
        return [skipped(FAMILY, "break-even", what, error.sentence)]
    if not stack.whole:
        return [skipped(FAMILY, "break-even", what, f"only part was run: {context.layers}")]
    base, more = (stack.prefill((n,)) for n in (BASE_TOKENS, BASE_TOKENS + MORE_TOKENS))
    base_s, more_s = (timer.graph([step.call]).seconds for step in (base, more))
    added_s = more_s - base_s
    predicted_s = model.seconds(more.features) - model.seconds(base.features)
    slope, slope_predicted = added_s / MORE_TOKENS, predicted_s / MORE_TOKENS
    if min(slope, slope_predicted) <= 0:
        reason = (
            f"{MORE_TOKENS:,} more tokens of prefill took {1e6 * added_s:.1f} us more, "
            f"{1e6 * predicted_s:.1f} us by the time model; both must be above 0"
        )
        return [skipped(FAMILY, "break-even", what, reason)]
    kv = sum(x.token_bytes(4096) - x.token_bytes(2048) for x in caches) / 2048
    found = []
    copied = context.constants.get("checkpoint.copy_s")
    if copied is not None:
        found.append(
            _check(context, "device", what, rates.copy_s(2 * state) / slope_predicted,
                   copied.value / slope,
                   f"copy of {state:,} B at copy bandwidth / time a token adds to a prefill")
        )  # fmt: skip
    restored = [copy_time(context, size, True) for size in (state, state + int(kv * 4096))]
    per_token = (restored[1].seconds - restored[0].seconds) / 4096
    rate, floor = (context.constants.get(f"link.in_{n}") for n in ("bytes_per_s", "floor_s"))
    if (
        rate is not None
        and floor is not None
        and (slope > per_token and slope_predicted > kv / rate.value)
    ):
        fixed = floor.value + state / rate.value
        found.append(
            _check(context, "host", what, fixed / (slope_predicted - kv / rate.value),
                   restored[0].seconds / (slope - per_token),
                   f"{state:,} B of state and {kv:,.0f} B of KV a token over the link / time a "
                   "token adds to a prefill")
        )  # fmt: skip
    return found


def _check(
    context: Context, where: str, what: str, predicted: float, measured: float, how: str
) -> Check:
    context.constants[f"break_even.{where}_tokens"] = Constant(
        measured, "tokens", abs(measured - predicted), how
    )
    return compared(FAMILY, where, what, predicted, measured, "tokens", 0.30, how)
