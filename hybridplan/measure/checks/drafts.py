"""Check 10: verifying D tokens with a snapshot each, against replaying kept inputs."""

from __future__ import annotations

from typing import Any

import torch

from hybridplan.measure.context import Context, NoTimeError, kernel_missing
from hybridplan.measure.linear import STATE_TOLERANCE, LinearLayer, relative_error
from hybridplan.measure.result import Check, compared, skipped

FAMILY = "drafts"
FOLD_TOKENS = 16


def run(context: Context) -> list[Check]:
    """Gated delta rule only: the replay kernel exists for it."""
    layer = context.linear
    if layer is None:
        return [skipped(FAMILY, "drafts", "verify of D tokens", kernel_missing(context.spec))]
    context.gates.linear(layer)
    found = []
    if layer.kind == "gdn":
        found.append(_same(context, layer))
    drafts = context.pick((2, 4, 8), (4,), (3,))
    for D in drafts:
        found += _bytes(context, layer, D)
        try:
            context.timed()
        except NoTimeError as error:
            found.append(skipped(FAMILY, f"verify of {D}", "time", str(error)))
            continue
        found += _time(context, layer, D)
    return found


def _ring(context: Context, layer: LinearLayer, slots: int, D: int) -> Any:
    from hybridplan.kernels.gated_delta.replay import make_ring

    return make_ring(
        slots, layer.H, layer.HV, layer.K, layer.V, FOLD_TOKENS, D, torch.bfloat16,
        context.device,
    )  # fmt: skip


def _same(context: Context, layer: LinearLayer) -> Check:
    """Two verify steps with rejected drafts: snapshots and replay give the same outputs."""
    from hybridplan.kernels.gated_delta.replay import advance, make_ring, replay_step

    D, B, device = 3, 2, context.device
    pool = layer.pool(B * D, device)
    start = pool[::D].clone()
    own = start.clone()
    table = torch.arange(B * D, dtype=torch.int32, device=device).view(B, D)
    kept = torch.tensor([1, 2], dtype=torch.int32, device=device)
    slots = torch.arange(B, dtype=torch.int32, device=device)
    ring = make_ring(B, layer.H, layer.HV, layer.K, layer.V, FOLD_TOKENS, D, torch.float32, device)
    steps = [layer.inputs(B * D, device, seed, torch.float32) for seed in (51, 52)]
    layer.step(steps[0], pool, table)
    snapshot = layer.step(steps[1], pool, table, accepted=kept)
    replayed = None
    for x in steps:
        gates = {name: x.gates[name] for name in ("gate_input", "a_log", "dt_bias")}
        replayed = replay_step(
            x.q, x.k, x.v, x.gates["beta"], own, slots, ring, beta_is_logit=True, **gates
        )
        advance(ring, slots, D, kept)
    return compared(
        FAMILY, "replay equals snapshots", "outputs after 1 and 2 of 3 drafts were kept",
        STATE_TOLERANCE, relative_error(replayed, snapshot.double()), "relative error", 0.0,
        "fp32 records; the rejected tokens leave no trace", sense="at most",
    )  # fmt: skip


def _bytes(context: Context, layer: LinearLayer, D: int) -> list[Check]:
    """What a request needs beside its running state."""
    requests = 4
    pool = layer.pool(requests * D, context.device)
    state = layer.state_elements * 4
    found = [
        compared(FAMILY, f"snapshots of {D}", "bytes of a request's D states in one layer",
                 D * state, pool.nbytes / requests, "B", 0.0, f"{D} states of {state:,} B")
    ]  # fmt: skip
    if layer.kind == "gdn":
        ring = _ring(context, layer, requests, D)
        held = sum(x.nbytes for x in (ring.corrections, ring.keys, ring.log_decays))
        record = 2 * (layer.HV * layer.V + layer.H * layer.K) + 4 * layer.HV
        found.append(
            compared(FAMILY, f"replay ring of {D}", "bytes of a request's ring in one layer",
                     (FOLD_TOKENS + D) * record, held / requests, "B", 0.0,
                     f"{FOLD_TOKENS} + {D} records of {record:,} B")
        )  # fmt: skip
    return found


def _time(context: Context, layer: LinearLayer, D: int) -> list[Check]:
    timer, rates = context.timed(), context.rates
    assert rates is not None
    batch = context.pick(64, 64, 2)
    state = batch * layer.state_elements * 4
    device = context.device
    sets = timer.sets(D * state, most=4)
    pool = layer.pool(batch * D * sets, device)
    calls = []
    for n in range(sets):
        x = layer.inputs(batch * D, device, 61 + n)
        out = torch.empty(x.v.shape, device=device, dtype=x.v.dtype)
        first = n * batch * D
        table = torch.arange(first, first + batch * D, dtype=torch.int32, device=device)
        table = table.view(batch, D).contiguous()
        calls.append(lambda x=x, t=table, o=out: layer.step(x, pool, t, out=o, trust_ids=True))
    snapshots = timer.graph(calls)
    moved = (1 + D) * state + layer.io_bytes(batch * D)
    found = [
        compared(FAMILY, f"verify of {D}, snapshots", f"one layer, batch {batch}",
                 1e6 * rates.copy_s(moved), 1e6 * snapshots.seconds, "us", 0.25,
                 f"one state read and {D} written, {moved:,} B / copy bandwidth",
                 spread=snapshots.spread)
    ]  # fmt: skip
    if layer.kind == "gdn":
        found.append(_replay_time(context, layer, D, batch))
    return found


def _replay_time(context: Context, layer: LinearLayer, D: int, batch: int) -> Check:
    from hybridplan.kernels.gated_delta.replay import replay_step

    timer, rates = context.timed(), context.rates
    assert rates is not None
    device = context.device
    state = batch * layer.state_elements * 4
    sets = timer.sets(state)
    pending = FOLD_TOKENS // 2
    pool = layer.pool(batch * sets, device)
    ring = _ring(context, layer, batch * sets, D)
    ring.pending.fill_(pending)
    for part in (ring.corrections, ring.keys):
        part.copy_(torch.randn(part.shape[1:], device=device) * 0.1)
    ring.log_decays.fill_(-0.1)
    calls = []
    for n in range(sets):
        x = layer.inputs(batch * D, device, 71 + n)
        out = torch.empty(x.v.shape, device=device, dtype=x.v.dtype)
        slots = torch.arange(n * batch, (n + 1) * batch, dtype=torch.int32, device=device)
        gates = {name: x.gates[name] for name in ("gate_input", "a_log", "dt_bias")}
        calls.append(
            lambda x=x, s=slots, o=out, g=gates: replay_step(
                x.q, x.k, x.v, x.gates["beta"], pool, s, ring, beta_is_logit=True, out=o,
                trust_ids=True, **g,
            )
        )  # fmt: skip
    timing = timer.graph(calls)
    record = 2 * (layer.HV * layer.V + layer.H * layer.K) + 4 * layer.HV
    moved = state + batch * (pending + D) * record + layer.io_bytes(batch * D)
    return compared(
        FAMILY, f"verify of {D}, replay", f"one layer, batch {batch}, {pending} records pending",
        1e6 * (rates.read_s(moved) + rates.launch_s), 1e6 * timing.seconds, "us", 0.25,
        f"state and records read, {D} records written, {moved:,} B / read bandwidth",
        spread=timing.spread,
    )  # fmt: skip
