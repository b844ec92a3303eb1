"""Check 1: pools in memory are as large as planned, and pages lie where the plan says."""

from __future__ import annotations

import torch

from hybridplan.errors import RefusalError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import canonical
from hybridplan.measure.context import Context
from hybridplan.measure.pools import PlanPool, plan_of
from hybridplan.measure.result import Check, compared, skipped

FAMILY = "bytes"


def run(context: Context) -> list[Check]:
    """The plan's pool, and pools of N slots and M blocks of their own."""
    return [*_planned(context), *_separate(context)]


def allocated_bytes(device: torch.device) -> int | None:
    """Bytes that live tensors asked for, where torch counts them (not with cudaMallocAsync)."""
    if device.type != "cuda":
        return None
    count = torch.cuda.memory_stats(device).get("requested_bytes.all.current")
    return int(count) if count else None


def _planned(context: Context) -> list[Check]:
    blocks, longest = context.pick((256, None), (64, None), (8, 512))
    try:
        plan = plan_of(context.spec, blocks, longest)
    except RefusalError as error:
        return [skipped(FAMILY, "planned pool", "the pool as vLLM lays it out", error.sentence)]
    before = allocated_bytes(context.device)
    pool = PlanPool(plan, context.device)
    after = allocated_bytes(context.device)
    held = pool.buffer.untyped_storage().nbytes() if before is None else (after or 0) - before
    how = f"{plan.num_blocks} blocks x {plan.bytes_per_block:,} B, layout {plan.layout}"
    found = [
        compared(FAMILY, "planned pool", "bytes allocated for the pool", plan.pool_bytes, held,
                 "B", 0.0, how)
    ]  # fmt: skip
    return [*found, *_strides(pool), _page_content(pool)]


def _strides(pool: PlanPool) -> list[Check]:
    """Addresses that the views' tensors really have, against the plan's formula."""
    base = pool.buffer.data_ptr()
    wrong_start = wrong_stride = pages = 0
    for group in pool.groups:
        for name in group.names:
            views = pool.states(name) if group.state else pool.caches(name)
            stride = pool.plan.tensor_of(name).block_stride_bytes
            view = views[0]
            wrong_stride += view.stride(0) * view.element_size() != stride
            for block in {0, 1, pool.plan.num_blocks - 1}:
                pages += 1
                start = view[block].data_ptr() - base
                wrong_start += start != pool.start_bytes(name, block)
    layers = sum(len(group.names) for group in pool.groups)
    first = pool.plan.tensor_of(pool.groups[0].names[0])
    return [
        compared(FAMILY, "block stride", "layers whose block stride differs from the plan's", 0,
                 wrong_stride, "layers", 0.0,
                 f"{first.block_stride_bytes:,} B a block, {layers} layers"),
        compared(FAMILY, "page offset", "pages that begin elsewhere than planned", 0, wrong_start,
                 "pages", 0.0, f"offset + layer x layer stride + block x block stride, {pages} "
                 "pages looked at"),
    ]  # fmt: skip


def _page_content(pool: PlanPool) -> Check:
    """Write a mark of its own into every page of every group, then read all of them back."""
    damaged = 0
    number = 0
    for group in pool.groups:
        for place, name in enumerate(group.names):
            pages = pool.pages(name)
            blocks = torch.arange(pool.plan.num_blocks, device=pages.device)
            marks = (blocks * 31 + place * 7) % 251
            pages[:] = marks.to(torch.uint8)[:, None]
            number += pages.shape[0]
        for place, name in enumerate(group.names):
            pages = pool.pages(name)
            blocks = torch.arange(pool.plan.num_blocks, device=pages.device)
            marks = ((blocks * 31 + place * 7) % 251).to(torch.uint8)
            damaged += int((pages != marks[:, None]).any(1).sum())
    return compared(
        FAMILY, "pages apart", "pages that another page of their group wrote over", 0, damaged,
        "pages", 0.0, f"{number:,} pages filled with marks of their own and read back",
    )  # fmt: skip


def _separate(context: Context) -> list[Check]:
    slots, tokens = context.pick(64, 16, 2), context.pick(65_536, 8_192, 256)
    caches = model_caches(context.spec, Deployment("vllm"))
    parts: dict[str, list[tuple[int, ...]]] = {"KV pool": [], "state pool": [], "conv pool": []}
    dtypes: dict[str, list[str]] = {name: [] for name in parts}
    predicted = dict.fromkeys(parts, 0)
    for layer in caches:
        for cache in layer.tokens:
            plain = cache.tokens_per_entry == 1 and cache.window_tokens is None
            if not plain or cache.bytes_per_entry % cache.elements_per_entry:
                continue
            parts["KV pool"].append((tokens, cache.elements_per_entry))
            dtypes["KV pool"].append(cache.dtype)
            predicted["KV pool"] += cache.bytes(tokens)
        for state in layer.states:
            name = {"state": "state pool", "conv": "conv pool"}.get(state.name)
            if name is not None:
                parts[name].append((slots, *state.shape))
                dtypes[name].append(state.dtype)
                predicted[name] += slots * state.bytes
    found = []
    for name, shapes in parts.items():
        if not shapes:
            continue
        before = allocated_bytes(context.device)
        held = [
            torch.empty(shape, dtype=getattr(torch, canonical(dtype)), device=context.device)
            for shape, dtype in zip(shapes, dtypes[name], strict=True)
        ]
        after = allocated_bytes(context.device)
        size = sum(x.nbytes for x in held) if before is None else (after or 0) - before
        what = f"{tokens:,} tokens" if name == "KV pool" else f"{slots} slots"
        found.append(
            compared(FAMILY, name, f"bytes of {what} over {len(shapes)} layers", predicted[name],
                     size, "B", 0.0, "the ledger's bytes per token and per request")
        )  # fmt: skip
        del held
    return found
