"""Attention of one new token per request over paged caches: GQA, and MLA's latent cache.

A context is cut into splits of consecutive tokens. One program reads a split of one KV head once
for all query heads that share it and leaves a normalised partial output with the log2 of its
softmax sum; a second, small kernel weighs the partial outputs. The time is the bytes of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common import checks, launch
from hybridplan.kernels.common.recipe import Recipes, launch_all

_LOG2E = 1.4426950408889634
_PASSED = checks.Passed()
_RECIPES = Recipes()
_COMBINED_SPLITS = tl.constexpr(8)


@triton.jit
def _attend(
    q,
    keys,
    values,
    table,
    context,
    out,
    part,
    log_sum,
    scale_log2,
    key_block,
    value_block,
    table_row,
    blocks,
    HKV: tl.constexpr,
    G: tl.constexpr,
    BG: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    V: tl.constexpr,
    VP: tl.constexpr,
    PAGE: tl.constexpr,
    BN: tl.constexpr,
    SPLITS: tl.constexpr,
    LATENT: tl.constexpr,
    DT: tl.constexpr,
    STAGES: tl.constexpr,
):
    # keys are D + R wide; with LATENT the values are the first D channels of the keys
    pid = tl.program_id(0)
    NG: tl.constexpr = (G + BG - 1) // BG
    split = pid % SPLITS
    ig = (pid // SPLITS) % NG
    h = (pid // (SPLITS * NG)) % HKV
    b = (pid // (SPLITS * NG * HKV)).to(tl.int64)
    length = tl.load(context + b)
    if length <= 0:
        return
    og = ig * BG + tl.arange(0, BG)
    od = tl.arange(0, DP)
    ov = tl.arange(0, VP)
    on = tl.arange(0, BN)
    in_g = og < G
    in_d = od < D
    in_v = ov < V
    heads = b * (HKV * G) + h * G + og
    rows = heads[:, None] * (D + R)
    bq = tl.load(q + rows + od[None, :], mask=in_g[:, None] & in_d[None, :], other=0.0).to(DT)
    extra = tl.arange(0, RP)
    in_r = extra < R
    if R > 0:
        at_q = q + rows + D + extra[None, :]
        bq_extra = tl.load(at_q, mask=in_g[:, None] & in_r[None, :], other=0.0).to(DT)
    peak = tl.full([BG], -1e30, tl.float32)
    total = tl.zeros([BG], tl.float32)
    acc = tl.zeros([BG, VP], tl.float32)
    share = tl.cdiv(tl.cdiv(length, SPLITS), BN) * BN
    low = split * share
    high = tl.minimum(low + share, length)
    # block ids are read one step ahead, so that the loads of keys and values wait for no other load
    block = tl.load(table + b * table_row + (low + on) // PAGE, mask=low + on < high, other=0)
    for s in tl.range(low, high, BN, num_stages=STAGES):
        t = s + on
        # an id outside the cache reads nothing; eagerly the host has refused it
        seen = (t < high) & (block >= 0) & (block < blocks)
        ahead = t + BN
        next_block = tl.load(table + b * table_row + ahead // PAGE, mask=ahead < high, other=0)
        here = block.to(tl.int64)
        at = keys + here * key_block + (t % PAGE) * (HKV * (D + R)) + h * (D + R)
        bk = tl.load(at[:, None] + od[None, :], mask=seen[:, None] & in_d[None, :], other=0.0)
        score = tl.dot(bq, tl.trans(bk.to(DT)), input_precision="tf32x3")
        if R > 0:
            at_extra = at[:, None] + D + extra[None, :]
            bk_extra = tl.load(at_extra, mask=seen[:, None] & in_r[None, :], other=0.0).to(DT)
            score = tl.dot(bq_extra, tl.trans(bk_extra), score, input_precision="tf32x3")
        score = tl.where(seen[None, :], score * scale_log2, -1e30)
        new_peak = tl.maximum(peak, tl.max(score, 1))
        p = tl.exp2(score - new_peak[:, None])
        p = tl.where(seen[None, :], p, 0.0)
        rescale = tl.exp2(peak - new_peak)
        total = total * rescale + tl.sum(p, 1)
        if LATENT:
            bv = bk
        else:
            at_v = values + here * value_block + (t % PAGE) * (HKV * V) + h * V
            bv = tl.load(at_v[:, None] + ov[None, :], mask=seen[:, None] & in_v[None, :], other=0.0)
        acc = acc * rescale[:, None]
        acc = tl.dot(p.to(DT), bv.to(DT), acc, input_precision="tf32x3")
        peak = new_peak
        block = next_block
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    if SPLITS == 1:
        at_o = out + heads[:, None] * V + ov[None, :]
        tl.store(at_o, acc.to(out.dtype.element_ty), mask=in_g[:, None] & in_v[None, :])
    else:
        row = heads * SPLITS + split
        used = tl.where(low < high, G, 0)
        wanted = (og < used)[:, None] & in_v[None, :]
        tl.store(part + row[:, None] * V + ov[None, :], acc, mask=wanted)
        tl.store(log_sum + row, peak + tl.log2(tl.maximum(total, 1e-30)), mask=og < used)


@triton.jit
def _combine(
    context,
    part,
    log_sum,
    out,
    HQ: tl.constexpr,
    V: tl.constexpr,
    VP: tl.constexpr,
    BN: tl.constexpr,
    SPLITS: tl.constexpr,
    SP: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    length = tl.load(context + head // HQ)
    if length <= 0:
        return
    share = tl.cdiv(tl.cdiv(length, SPLITS), BN) * BN
    used = tl.cdiv(length, share)
    all_splits = tl.arange(0, SP)
    sums = tl.load(log_sum + head * SPLITS + all_splits, mask=all_splits < used, other=-1e30)
    peak = tl.max(sums, 0)
    total = tl.sum(tl.where(all_splits < used, tl.exp2(sums - peak), 0.0), 0)
    ov = tl.arange(0, VP)
    few = tl.arange(0, _COMBINED_SPLITS)
    acc = tl.zeros([VP], tl.float32)
    for s in range(0, used, _COMBINED_SPLITS):
        known = s + few < used
        row = head * SPLITS + s + few
        weight = tl.load(log_sum + row, mask=known, other=-1e30)
        weight = tl.where(known, tl.exp2(weight - peak) / total, 0.0)
        at = part + row[:, None] * V + ov[None, :]
        x = tl.load(at, mask=known[:, None] & (ov < V)[None, :], other=0.0)
        acc += tl.sum(x * weight[:, None], 0)
    tl.store(out + head * V + ov, acc.to(out.dtype.element_ty), mask=ov < V)


_launch_attend = launch.Launcher(_attend)
_launch_combine = launch.Launcher(_combine)


@dataclass(frozen=True)
class Tile:
    """Tiling of the split kernel: tokens per step, splits of a context, warps, pipeline stages."""

    tokens: int
    splits: int
    warps: int
    stages: int


def choose_tile(
    groups: int, max_context_tokens: int, latent_rows: int, device: torch.device
) -> Tile:
    """As many splits as make one wave of resident programs, measured best on an H200.

    groups: programs without splitting (requests x KV heads x blocks of query heads).
    latent_rows: query rows of a program over an MLA cache, 0 for GQA.
    """
    processors = 4 if launch.INTERPRETED else launch.sm_count(device.index or 0)
    resident = processors * (1 if latent_rows > 32 else 2)
    # a split of fewer than 8 steps of 32 tokens is not worth its partial result
    most = max(1, max_context_tokens // 256)
    splits = max(1, min(resident // max(groups, 1), most))
    if latent_rows > 32:
        # 64 tokens of a latent cache need more shared memory than capability 8 has
        return Tile(64 if launch.has_tma(device) else 32, splits, 8, 2)
    if latent_rows or groups * splits <= resident:
        return Tile(32, splits, 4, 3)
    return Tile(64, splits, 4, 2)


def decode_gqa(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_tokens: Tensor,
    *,
    scale: float | None = None,
    trust_ids: bool = False,
    tile: Tile | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Grouped-query attention of one token per request over its pages.

    q: [B, HQ, D]; key_cache: [blocks, page_tokens, HKV, D]; value_cache: [blocks, page_tokens, HKV,
    V]; one dtype, bf16, fp16 or fp32; blocks may be strided, HKV divides HQ, D and V up to 256.
    block_table: int32 [B, max blocks]; entries past a context are never read.
    context_tokens: int32 [B], tokens of each request including the new one; 0 or less is padding,
    whose output row is left as it is. The launch depends only on shapes, so a CUDA graph holds for
    any context up to max blocks x page_tokens.
    scale defaults to D ** -0.5. trust_ids skips reading the table and the contexts on the host,
    which waits for the device when they have changed.
    Returns [B, HQ, V] in q's dtype. Raises KernelInputError before anything is launched.
    """
    key = _PASSED.key(q, key_cache, value_cache, block_table, context_tokens, out)
    if not _PASSED.has(key):
        _check_gqa(q, key_cache, value_cache)
        _check_requests(q, block_table, context_tokens, out, value_cache.shape[-1])
        _PASSED.add(key)
    HKV, D = key_cache.shape[2:]
    V = value_cache.shape[-1]
    return _decode(
        q,
        key_cache,
        value_cache,
        block_table,
        context_tokens,
        (HKV, D, 0, V),
        D**-0.5 if scale is None else scale,
        trust_ids,
        tile,
        out,
        key,
    )


def decode_mla(
    q: Tensor,
    latent_cache: Tensor,
    block_table: Tensor,
    context_tokens: Tensor,
    *,
    latent_width: int,
    scale: float,
    trust_ids: bool = False,
    tile: Tile | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """MLA of one token per request over latent pages, with the key up-projection absorbed into q.

    q: [B, HQ, latent + rope]; latent_cache: [blocks, page_tokens, latent + rope], bf16, fp16 or
    fp32, blocks may be strided; latent_width up to 512. scale has no default: it is that of the
    width before absorption. Other arguments as decode_gqa.
    Returns [B, HQ, latent_width] in q's dtype. Raises KernelInputError before anything is launched.
    """
    width = latent_cache.shape[-1]
    key = _PASSED.key(q, latent_cache, block_table, context_tokens, out, also=latent_width)
    if not _PASSED.has(key):
        checks.check_tensor(
            "latent_cache", latent_cache, (-1, -1, -1), checks.FLOATS, q.device, dense_dims=2
        )
        checks.check_tensor("q", q, (-1, -1, width), (latent_cache.dtype,), q.device)
        checks.require(
            0 < latent_width <= min(width, 512),
            f"latent_width is {latent_width}, needed 1 to 512 within rows of {width}",
        )
        _check_requests(q, block_table, context_tokens, out, latent_width)
        _PASSED.add(key)
    return _decode(
        q,
        latent_cache,
        latent_cache,
        block_table,
        context_tokens,
        (1, latent_width, width - latent_width, latent_width),
        scale,
        trust_ids,
        tile,
        out,
        key,
    )


def _check_gqa(q: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
    device = q.device
    checks.check_tensor("key_cache", key_cache, (-1, -1, -1, -1), checks.FLOATS, device, 3)
    blocks, page, HKV, D = key_cache.shape
    V = value_cache.shape[-1]
    wanted = (blocks, page, HKV, V)
    checks.check_tensor("value_cache", value_cache, wanted, (q.dtype,), device, dense_dims=3)
    checks.check_tensor("q", q, (-1, -1, D), (key_cache.dtype,), device)
    checks.require(q.shape[1] % HKV == 0, f"{q.shape[1]} q heads are not a multiple of {HKV}")
    checks.require(D <= 256 and V <= 256, f"head widths are {D} and {V}, needed at most 256")


def _check_requests(
    q: Tensor, block_table: Tensor, context_tokens: Tensor, out: Tensor | None, V: int
) -> None:
    device = q.device
    launch.require_device(device)
    B, HQ, _ = q.shape
    checks.check_tensor("block_table", block_table, (B, -1), (torch.int32,), device, dense_dims=1)
    checks.check_tensor("context_tokens", context_tokens, (B,), (torch.int32,), device)
    if out is not None:
        checks.check_tensor("out", out, (B, HQ, V), (q.dtype,), device)


def _decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_table: Tensor,
    context_tokens: Tensor,
    widths: tuple[int, int, int, int],
    scale: float,
    trust_ids: bool,
    tile: Tile | None,
    out: Tensor | None,
    key: tuple[object, ...],
) -> Tensor:
    device = q.device
    HKV, D, R, V = widths
    latent = keys is values
    B, HQ, _ = q.shape
    blocks, page = keys.shape[:2]
    if not trust_ids and not checks.is_capturing(device):
        _check_table(block_table, context_tokens, blocks, page)
    if out is None:
        out = torch.empty((B, HQ, V), dtype=q.dtype, device=device)
    call_key = (key, scale, tile, latent)
    given = (q, keys, None if latent else values, block_table, context_tokens, out)
    known = _RECIPES.get(call_key, device)
    if known is not None and known.run(given):
        return out
    G = HQ // HKV
    # 64 rows of a latent query in fp32 do not fit shared memory
    most = 32 if latent and q.dtype == torch.float32 else 64
    BG = min(max(16, launch.next_power_of_2(G)), most)
    groups = B * HKV * -(-G // BG)
    if tile is None:
        reach = block_table.shape[1] * page
        tile = choose_tile(groups, reach, BG if latent else 0, device)
    room = launch.Scratch(device)
    part = log_sum = None
    if tile.splits > 1:
        part = room.piece((B * HQ * tile.splits, V), torch.float32)
        log_sum = room.piece((B * HQ * tile.splits,), torch.float32)
    VP = max(16, launch.next_power_of_2(V))
    launches = [launch.Launch(
        _launch_attend,
        (groups * tile.splits, 1, 1),
        (q, keys, values, block_table, context_tokens, out, part, log_sum),
        (),
        (float(scale * _LOG2E), keys.stride(0), values.stride(0), block_table.stride(0), blocks),
        (HKV, G, BG, D, max(16, launch.next_power_of_2(D)), R,
         max(16, launch.next_power_of_2(max(R, 1))), V, VP, page, tile.tokens, tile.splits, latent,
         _operand_dtype(q.dtype), tile.stages),
        {"num_warps": tile.warps},
    )]  # fmt: skip
    if tile.splits > 1:
        launches.append(launch.Launch(
            _launch_combine,
            (B * HQ, 1, 1),
            (context_tokens, part, log_sum, out),
            (),
            (),
            (HQ, V, VP, tile.tokens, tile.splits, launch.next_power_of_2(tile.splits)),
            {"num_warps": 4},
        ))  # fmt: skip
    _RECIPES.add(call_key, launch_all(launches, given, room, ()))
    return out


_TABLES: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}
"""Tables that passed, by identity of their host copies, which stay the same while unchanged."""


def _check_table(block_table: Tensor, context_tokens: Tensor, blocks: int, page: int) -> None:
    """Refuse a context longer than its table row, and any block in use outside the cache."""
    columns = block_table.shape[1]
    ids = checks.host_values("block_table", block_table)
    contexts = checks.host_values("context_tokens", context_tokens)
    key = (id(ids), id(contexts), columns, blocks, page)
    if key in _TABLES:
        return
    for b, tokens in enumerate(contexts):
        used = -(-max(tokens, 0) // page)
        checks.require(
            used <= columns,
            f"request {b} has {tokens} tokens, its block table holds {columns * page}",
        )
        row = ids[b * columns : b * columns + used]
        wrong = next((i for i in row if not 0 <= i < blocks), None)
        checks.require(
            wrong is None,
            f"block_table of request {b} holds block {wrong}, the cache has {blocks} blocks",
        )
    if len(_TABLES) >= 64:
        _TABLES.clear()
    _TABLES[key] = (ids, contexts)


def _operand_dtype(dtype: torch.dtype) -> Any:
    if launch.INTERPRETED:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(dtype, tl.float32)
