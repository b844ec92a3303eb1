"""Check 3: one model, three ways through the same tokens, and with our kernels inside."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridplan.errors import InputError
from hybridplan.kernels.gated_delta.reference import recurrent_reference
from hybridplan.measure import hf
from hybridplan.measure.context import Context
from hybridplan.measure.hf_kernels import Swap, swapped
from hybridplan.measure.linear import PREFILL_TOLERANCE, STATE_TOLERANCE, relative_error
from hybridplan.measure.result import Check, compared, noted, skipped

FAMILY = "one model, three ways"
LOGIT_TOLERANCE = 1e-4


def run(context: Context) -> list[Check]:
    """All in fp32, without tf32."""
    model = hf.build(context, "float32", untied=True)
    half = context.pick(32, 32, 5)
    steps = context.pick(64, 32, 6)
    ids = model.tokens(2 * half)
    with hf.exact_products(), hf.own_functions(model.module):
        whole = _segments(model, ids, [2 * half])
        by_one = _segments(model, ids, [half] + [1] * half)
        third = 2 * half // 3
        thirds = _segments(model, ids, [third, third, 2 * half - 2 * third])
        found = [
            _agree("one by one", f"{half} prefilled and {half} one by one", whole, by_one, model),
            _agree("three segments", "prefill in three segments", whole, thirds, model),
        ]
        return [*found, *_with_kernels(model, ids[:, :half], whole, ids, steps)]


def _segments(model: hf.Model, ids: Tensor, lengths: list[int]) -> Tensor:
    """Logits of all tokens, fed in pieces of those lengths."""
    cache = hf.empty_cache(model)
    parts = []
    first = 0
    for length in lengths:
        parts.append(hf.forward(model, ids[:, first : first + length], cache))
        first += length
    return torch.cat(parts)


def _agree(name: str, what: str, want: Tensor, got: Tensor, model: hf.Model) -> Check:
    difference = float((got - want).abs().max())
    return compared(
        FAMILY, name, f"logits of {what} against one prefill", LOGIT_TOLERANCE, difference,
        "largest difference", 0.0, f"the same function of the same tokens; {model.what}, fp32",
        sense="at most", notes=(f"largest logit {float(want.abs().max()):.2f}",),
    )  # fmt: skip


def _greedy(model: hf.Model, prompt: Tensor, steps: int) -> tuple[list[int], float]:
    """Tokens, and the least gap between first and second choice."""
    cache = hf.empty_cache(model)
    ids, chosen, gap = prompt, [], float("inf")
    for _ in range(steps):
        logits = hf.forward(model, ids, cache, last=True)[-1]
        best = logits.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        chosen.append(int(best.indices[0]))
        ids = best.indices[:1].view(1, 1)
    return chosen, gap


def _with_kernels(
    model: hf.Model, prompt: Tensor, whole: Tensor, ids: Tensor, steps: int
) -> list[Check]:
    want, gap = _greedy(model, prompt, steps)
    try:
        with swapped(model.module, Swap()) as swap:
            logits = _segments(model, ids, [ids.shape[1]])
            chosen, _ = _greedy(model, prompt, steps)
        with swapped(model.module, Swap(by_token=True)) as exact:
            exact_logits = _segments(model, ids, [ids.shape[1]])
            exact_chosen, _ = _greedy(model, prompt, steps)
    except InputError as error:
        return [skipped(FAMILY, "our kernels", "our kernels inside the model", error.sentence)]
    scale = float(whole.abs().max())
    return [
        _reference("prefill kernel", swap, PREFILL_TOLERANCE),
        _reference("decode kernel", exact, STATE_TOLERANCE),
        _tokens(want, exact_chosen, gap),
        noted(FAMILY, "greedy, chunked prefill", "tokens equal before the first other one, of "
              f"{steps}", _equal(want, chosen), "tokens", "prefill products take bf16 operands, "
              "which may turn a near tie"),
        _agree("logits, decode kernels", "our decode kernels", whole, exact_logits, model),
        noted(FAMILY, "logits, chunked prefill",
              "largest difference of logits over the largest logit, prefill kernel inside",
              float((logits - whole).abs().max()) / scale, "share",
              "products take bf16 operands; no bound is stated for whole models"),
    ]  # fmt: skip


def _reference(name: str, swap: Swap, tolerance: float) -> Check:
    worst = 0.0
    for call in swap.calls:
        out, final = recurrent_reference(
            call.q, call.k, call.v, call.g, call.beta, call.lengths, call.initial
        )
        errors = (relative_error(call.out, out), relative_error(call.final, final))
        worst = max(worst, *errors)
    return compared(
        FAMILY, name, f"{name} inside the model against fp64 on the same inputs", tolerance,
        worst if swap.calls else float("nan"), "relative error", 0.0,
        f"outputs and states of {len(swap.calls)} layers", sense="at most",
    )  # fmt: skip


def _equal(want: list[int], got: list[int]) -> int:
    """Tokens before the first that differs."""
    pairs = enumerate(zip(want, got, strict=True))
    return next((i for i, (a, b) in pairs if a != b), len(want))


def _tokens(want: list[int], got: list[int], gap: float) -> Check:
    return compared(
        FAMILY, "greedy, decode kernels", "greedy tokens equal to transformers' own before the "
        "first other one", len(want), _equal(want, got), "tokens", 0.0,
        "our kernels in place of its own, states and arithmetic in fp32",
        notes=(f"least gap between two logits {gap:.2g}, {len(set(want))} different tokens",),
    )  # fmt: skip
