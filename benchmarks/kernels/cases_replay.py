"""Gated delta rule, verify of D drafts by replay: as `measure` times it, and a step that folds."""

from __future__ import annotations

import math
from functools import partial

import torch

from benchmarks.kernels.case import READ_BYTES_PER_US, Case, Prepared, input_sets, relative_error
from hybridplan.kernels.gated_delta.reference import recurrent_reference, softplus_gate
from hybridplan.kernels.gated_delta.replay import make_ring, replay_step

H, K, V = 16, 128, 128
FOLD_TOKENS = 16


def verify(device: torch.device, HV: int, batch: int, drafts: int, pending: int) -> Prepared:
    """D tokens a request over fp32 states and bf16 records; folds if pending + D pass 16."""
    gen = torch.Generator(device).manual_seed(batch + drafts + pending)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=gen, device=device)

    folds = pending + drafts > FOLD_TOKENS
    state_bytes = batch * HV * V * K * 4
    record_bytes = 2 * (HV * V + H * K) + 4 * HV
    token_bytes = 2 * (2 * H * K + 2 * HV * V + 2 * HV)
    least_bytes = state_bytes * (1 + folds)
    least_bytes += batch * ((pending + drafts) * record_bytes + drafts * token_bytes)
    sets = input_sets(state_bytes)
    pool = 0.1 * draw(batch * sets, HV, V, K)
    ring = make_ring(
        batch * sets, H, HV, K, V, FOLD_TOKENS, drafts, torch.bfloat16, device
    )  # fmt: skip
    ring.pending.fill_(pending)
    ring.corrections.copy_(0.1 * draw(*ring.corrections.shape[1:]))
    ring.keys.copy_(torch.nn.functional.normalize(draw(*ring.keys.shape[1:]), dim=-1))
    ring.log_decays.copy_(-0.1 * draw(*ring.log_decays.shape[1:]).abs())
    a_log, dt_bias = 0.3 * draw(HV), 0.3 * draw(HV)
    q, k = (draw(batch * drafts, H, K).bfloat16() for _ in "qk")
    v = draw(batch * drafts, HV, V).bfloat16()
    x, beta = (draw(batch * drafts, HV).bfloat16() for _ in "xb")
    out = torch.empty_like(v)
    calls = []
    for i in range(sets):
        slots = torch.arange(i * batch, (i + 1) * batch, dtype=torch.int32, device=device)
        calls.append(partial(
            replay_step, q, k, v, beta, pool, slots, ring, gate_input=x, a_log=a_log,
            dt_bias=dt_bias, beta_is_logit=True, out=out, trust_ids=True,
        ))  # fmt: skip

    def check() -> dict[str, tuple[float, float]]:
        out.fill_(math.nan)
        states = pool[:batch].double()
        for j in range(pending):
            g, u, key = (
                part[:batch, j].double() for part in (ring.log_decays, ring.corrections, ring.keys)
            )
            key = key.repeat_interleave(HV // H, dim=1)
            states = states * g.exp()[..., None, None] + u[..., None] * key[:, :, None, :]
        calls[0]()
        expected, _ = recurrent_reference(
            q, k, v, softplus_gate(x, a_log, dt_bias), beta.double().sigmoid(),
            [drafts] * batch, states,
        )  # fmt: skip
        found = {"output": (relative_error(out, expected), 2.5e-3)}
        if folds:
            found["state"] = (relative_error(pool[:batch], states), 1e-6)
        return found

    return Prepared(tuple(calls), check, least_bytes)


def _case(HV: int, batch: int, drafts: int, pending: int, **bound: object) -> Case:
    shape = f"{H}/{HV} heads batch {batch}, {drafts} drafts, {pending} pending"
    make = partial(verify, HV=HV, batch=batch, drafts=drafts, pending=pending)
    folds = pending + drafts > FOLD_TOKENS
    rate = {} if folds else {"floor_bytes_per_us": READ_BYTES_PER_US}
    return Case("gated_delta replay", shape, make, **rate, **bound)  # type: ignore[arg-type]


CASES = [
    *(_case(16, 64, drafts, 8) for drafts in (2, 4, 8)),
    _case(16, 64, 4, 0),
    _case(16, 64, 4, 14),
    _case(48, 64, 4, 8),
    *(_case(16, batch, 4, 8) for batch in (1, 8, 256)),
]
