"""Compare delta-rule kernels in one process on the same inputs; write rows with card and versions.

    python -m benchmarks.kernels.compare --out results.json [--budget-s 120] [--warm 0/8]

A row whose errors exceed the bounds carries no time. Prefill bounds are those of the best public
kernels in bf16; decode's are one bf16 rounding of the output and fp32 arithmetic in the state.
``--warm RANK/OF`` only fills Triton's cache, so that several processes can do it first.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.kernels import peers
from benchmarks.kernels.case import (
    COPY_BYTES_PER_US,
    L2_BYTES,
    eager_host_us,
    graph_us,
    input_sets,
    relative_error,
)
from benchmarks.kernels.registry import (
    DECODE_BATCHES,
    HEADS,
    SEQUENCES,
    Inputs,
    decode_bytes,
    make,
    prefill_floor,
)
from hybridplan.kernels.common.delta_reference import by_chunks

MATMUL_FLOP_PER_US = 790e6
"""bf16 matrix product of 4096^3 on one H200."""

BOUNDS = {
    "scalar": (4.5e-3, 3.5e-3),
    "channel": (5.2e-3, 4.4e-3),
    "bounded": (5.2e-3, 4.4e-3),
    torch.float32: (2e-3, 1e-6),
    torch.bfloat16: (3e-3, 3e-3),
}
"""Errors allowed in (output, state) of a prefill by gate and of a step by state dtype."""

SLACK = (2.0, 10.0)
"""Times the bounds that other libraries are allowed in outputs and in states: some round more, keep
16-bit states on chip or take fast exponentials, and a wrong layout still errs by a hundred."""

Row = dict[str, Any]


def reference(x: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 outputs and final states."""
    return by_chunks(x.q, x.k, x.v, *x.exact(), x.lengths, x.pool[x.slots.long()], None, True, 64)


def inputs_of(x: Inputs) -> tuple[torch.Tensor, ...]:
    """What a call may read and must not write."""
    return x.q, x.k, x.v, x.packed, x.gate_input, x.beta_logit


def checked(
    adapter: peers.Adapter, x: Inputs, kept: dict[str, Any], want: tuple[torch.Tensor, torch.Tensor]
) -> tuple[float, float]:
    """Errors of one call, from the states that ``want`` starts from.

    Raises RuntimeError if it wrote into its inputs, which are then as they were: the peers after it
    read them too.
    """
    before = [tensor.clone() for tensor in inputs_of(x)]
    o, s = adapter(x, kept)
    torch.cuda.synchronize()
    pairs = list(zip(inputs_of(x), before, strict=True))
    if not all(torch.equal(now, then) for now, then in pairs):
        for now, then in pairs:
            now.copy_(then)
        raise RuntimeError("the call wrote into its inputs")
    state = x.pool[x.slots.long()] if s is None else s
    return relative_error(o, want[0]), relative_error(state, want[1])


def runnable(
    listed: Sequence[peers.Peer], x: Inputs, only: Collection[str]
) -> Iterator[peers.Peer]:
    """Peers that serve the gate and are installed, of the libraries named in ``only`` if any."""
    for peer in listed:
        if x.gate in peer.gates and (not only or peer.name in only) and not peer.absent():
            yield peer


def prefill_rows(
    heads: str, shape: str, device: torch.device, warm: bool, only: Collection[str] = ()
) -> Iterator[Row]:
    """One row a library for one prefill shape."""
    lengths = SEQUENCES[shape]
    least_bytes, flop = prefill_floor(heads, lengths)
    floor_us = max(least_bytes / COPY_BYTES_PER_US, flop / MATMUL_FLOP_PER_US)
    count = 1 if warm else input_sets(least_bytes, 8)
    sets = [make(heads, lengths, device, seed) for seed in range(count)]
    want = None if warm else reference(sets[0])
    start = sets[0].pool.clone()
    for peer in runnable(peers.PREFILL, sets[0], only):
        row = {"kind": "prefill", "heads": heads, "shape": shape, "library": peer.name}
        row |= {"least_bytes": least_bytes, "least_flop": flop, "floor_us": floor_us}
        sets[0].pool.copy_(start)
        yield row | timed(peer, sets, want, BOUNDS[sets[0].gate])


def export_rows(
    heads: str, shape: str, device: torch.device, warm: bool, only: Collection[str] = ()
) -> Iterator[Row]:
    """Our prefill without and with 16 states exported on the way, and what their bytes cost."""
    if only and "ours" not in only:
        return
    lengths, states = SEQUENCES[shape], 16
    x = make(heads, lengths, device, 0)
    pool = torch.empty((2 + states, *x.pool.shape[1:]), device=device)
    pool[1] = x.pool[1]
    x.pool = pool
    every = lengths[0] // (states + 1) // 64 * 64
    exports = [(0, every * (i + 1), 2 + i) for i in range(states)]
    if warm:
        peers.ours_prefill(x, {})
        return
    row = {"kind": "export", "heads": heads, "shape": shape, "library": f"{states} states"}
    error = export_error(x, exports)
    if not error <= BOUNDS[x.gate][1]:
        yield row | {"failed": f"an exported state is {error:.1e} off"}
        return
    calls = (
        partial(peers.ours_prefill, x, {}),
        partial(peers.ours_prefill, x, {}, exports=exports),
    )
    pairs = [[graph_us((call,))[0] for call in calls] for _ in range(3)]
    plain = statistics.median(first for first, _ in pairs)
    added = [with_states - first for first, with_states in pairs]
    least_bytes = states * pool[0].numel() * 4
    yield row | {
        "us": statistics.median(added),
        "spread": (max(added) - min(added)) / plain,
        "prefill_us": plain,
        "state_error": error,
        "least_bytes": least_bytes,
        "floor_us": least_bytes / COPY_BYTES_PER_US,
    }


def export_error(x: Inputs, exports: Sequence[tuple[int, int, int]]) -> float:
    """Largest error of the first and the last exported state against fp64."""
    start = x.pool[x.slots.long()].clone()
    peers.ours_prefill(x, {}, exports=exports)
    x.pool[x.slots.long()], got = start, x.pool.clone()
    log_decay, beta = x.exact()
    errors = []
    for _, p, slot in (exports[0], exports[-1]):
        head = (t[:p] for t in (x.q, x.k, x.v, log_decay, beta))
        _, want = by_chunks(*head, (p,), start, None, True, 64)
        errors.append(relative_error(got[slot], want[0]))
    return max(errors)


def decode_sets(states_bytes: int) -> int:
    """Sets of inputs to rotate, so that L2 could keep a thirtieth of all states at most.

    Decode writes what it reads: with one set, or as many as fill L2 four times, states of the last
    round are still there, and how many depends on the kernel that ran before (3 % of the time).
    """
    return min(512, max(1, math.ceil(32 * L2_BYTES / states_bytes)))


def decode_rows(
    heads: str, batch: int, device: torch.device, warm: bool, only: Collection[str] = ()
) -> Iterator[Row]:
    """One row a library and state dtype for one decode batch, the ceiling first."""
    for state in (torch.float32, torch.bfloat16):
        width = torch.finfo(state).bits // 8
        states, total = decode_bytes(heads, batch, width)
        count = 1 if warm else decode_sets(states)
        first = make(heads, (1,) * (batch * count), device, 7, state=state)
        order = torch.randperm(batch * count, device=device).int() + 1
        sets = [
            make(
                heads, (1,) * batch, device, seed, first.pool,
                order[seed * batch : (seed + 1) * batch].clone(),  # aligned, as some ask
            )
            for seed in range(count)
        ]  # fmt: skip
        want = None if warm else reference(sets[0])
        start = first.pool.clone()
        base = {"kind": "decode", "heads": heads, "shape": f"batch {batch}"}
        base |= {"state": str(state).removeprefix("torch."), "least_bytes": total}
        base["floor_us"] = total / COPY_BYTES_PER_US
        limit = None
        if warm:
            for tile in peers.CEILING_TILES:
                peers.ceiling(sets[0], *tile)
        else:
            limit, spread = min(
                graph_us(tuple(partial(peers.ceiling, x, *tile) for x in sets))
                for tile in peers.CEILING_TILES
            )
            yield base | {"library": "read-modify-write", "us": limit, "spread": spread}
        for peer in runnable(peers.DECODE, sets[0], only):
            if state in peer.states:
                first.pool.copy_(start)
                row = base | {"library": peer.name} | timed(peer, sets, want, BOUNDS[state])
                if limit and row.get("us"):
                    row["over_ceiling"] = row["us"] / limit
                yield row


def timed(
    peer: peers.Peer,
    sets: list[Inputs],
    want: tuple[torch.Tensor, torch.Tensor] | None,
    bounds: tuple[float, float],
) -> Row:
    """Check, then time; a library that is absent or fails says so.

    A call that a CUDA graph cannot hold is timed one by one, its launch gaps included.
    """
    adapter, kept = peer.call, [{} for _ in sets]
    slack = (1.0, 1.0) if peer.name == "ours" else SLACK
    limits = tuple(bound * more for bound, more in zip(bounds, slack, strict=True))
    try:
        if want is None:
            adapter(sets[0], kept[0])
            torch.cuda.synchronize()
            return {}
        errors = checked(adapter, sets[0], kept[0], want)
        row: Row = {"error_o": errors[0], "error_state": errors[1]}
        if not all(e <= b for e, b in zip(errors, limits, strict=True)):
            return row | {"failed": f"errors {errors} exceed {limits}"}
        calls = tuple(partial(adapter, x, d) for x, d in zip(sets, kept, strict=True))
        try:
            row["us"], row["spread"] = graph_us(calls)
        except RuntimeError as problem:
            torch.cuda.set_stream(torch.cuda.default_stream())  # a broken capture leaves its own
            torch.cuda.synchronize()
            row |= {"us": eager_us(calls), "not_captured": str(problem).splitlines()[0][:200]}
        row["host_us"] = eager_host_us(calls[0], times=20, rounds=2)
        return row
    except Exception as problem:  # a peer's failure is a result, not the end of the run
        return {"failed": f"{type(problem).__name__}: {problem}"[:300]}


def eager_us(calls: tuple[Any, ...]) -> float:
    """Median time between events around each call, over all sets, several times."""
    times = []
    for call in calls * 5:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) * 1e3)
    return statistics.median(times)


def cases(chosen: list[str], shapes: list[str], batches: list[int]) -> list[tuple[Any, str, Any]]:
    """(rows function, heads, shape) of a run."""
    plain = [heads for heads in chosen if heads != "kimi bounded"]
    listed: list[tuple[Any, str, Any]] = []
    if "1x16k" in shapes:
        listed += [(export_rows, heads, "1x16k") for heads in plain]
    for batch in batches:
        listed += [(decode_rows, heads, batch) for heads in plain]
    for shape in shapes:
        listed += [(prefill_rows, heads, shape) for heads in chosen]
    return listed


def shorten_autotuning(rank: int | None, of: int) -> None:
    """Make a peer's autotuner measure briefly, or (warming) compile this process' share."""
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    if rank is None:
        plain = Autotuner._bench

        def bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
            self.__dict__["do_bench"] = lambda f, quantiles: do_bench(
                f, warmup=1, rep=5, quantiles=quantiles
            )
            return plain(self, *args, config=config, **meta)

        Autotuner._bench = bench
        return

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = None
        for config in self.configs[rank::of] or self.configs[:1]:
            try:
                result = self.fn.run(*args, **kwargs, **config.all_kwargs())
            except triton.runtime.errors.OutOfResources:
                continue
        return result

    Autotuner.run = run


def summary(row: Row) -> str:
    """One line of a result."""
    head = f"{row['kind']:8s}{row['heads']:5s} {row['shape']:10s} {row['library']:18s}"
    if "us" not in row:
        return f"{head} no time: {row.get('failed')}"
    ratio = row["us"] / row["floor_us"]
    return (
        f"{head} {row['us']:9.2f} us {ratio:6.2f}x floor"
        f" {row.get('over_ceiling', math.nan):5.2f}x ceiling  host {row.get('host_us', 0):6.1f}"
        f"  {row.get('error_o', math.nan):.1e} {row.get('error_state', math.nan):.1e}"
        f" {row.get('state', '')}"
    )


PACKAGES = ("fla-core", "flash-qla", "tilelang", "flashinfer-python", "nvidia-cutlass-dsl",
            "flash-kda", "vllm")  # fmt: skip


def absent() -> dict[str, str]:
    """Libraries that cannot be imported here, by name, with the reason."""
    listed = (("prefill", peers.PREFILL), ("decode", peers.DECODE))
    found = {f"{peer.name} {kind}": peer.absent() for kind, of in listed for peer in of}
    return {name: reason for name, reason in found.items() if reason}


def versions() -> dict[str, str]:
    """Versions of what took part."""
    found = {}
    for name in ("torch", "triton", *PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def save(record: dict[str, Any], path: Path) -> None:
    """Replace the file whole, so that a run that is killed leaves the rows it had."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code: 1 if one of our rows has no time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget-s", type=float, default=math.inf)
    parser.add_argument("--warm", metavar="RANK/OF")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--shapes", nargs="*", choices=SEQUENCES, default=list(SEQUENCES))
    parser.add_argument("--batches", nargs="*", type=int, default=list(DECODE_BATCHES))
    names = {peer.name: None for peer in (*peers.PREFILL, *peers.DECODE)}
    parser.add_argument("--libraries", nargs="+", choices=names, default=[])
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    options = parser.parse_args(arguments)
    device = torch.device("cuda", torch.cuda.current_device())
    listed = cases(options.heads, options.shapes, options.batches)
    if options.warm:
        rank, of = (int(part) for part in options.warm.split("/"))
        share = len(options.heads)
        shorten_autotuning(rank // share, max(of // share, 1))
        heads = options.heads[rank % share]
        for shape in options.shapes:
            for row in prefill_rows(heads, shape, device, True, options.libraries):
                if row.get("failed"):
                    sys.stdout.write(f"{row['library']}: {row['failed']}\n")
        for batch in options.batches if heads != "kimi bounded" else ():
            list(decode_rows(heads, batch, device, True, options.libraries))
        return 0
    shorten_autotuning(None, 1)
    rows: list[Row] = []
    missing = absent()
    for name, reason in missing.items():
        sys.stdout.write(f"{name} is absent: {reason}\n")
    start = time.monotonic()
    skipped: list[str] = []
    record = {
        "card": torch.cuda.get_device_name(device),
        "versions": versions(),
        "absent": missing,
        "date": options.date,
        "command": " ".join(["python -m benchmarks.kernels.compare", *sys.argv[1:]]),
        "skipped": skipped,
        "rows": rows,
    }
    for function, heads, shape in listed:
        if time.monotonic() - start > options.budget_s:
            skipped.append(f"{heads} {shape}")
            continue
        for row in function(heads, shape, device, False, options.libraries):
            rows.append(row)
            sys.stdout.write(f"{time.monotonic() - start:5.0f} s {summary(row)}\n")
            sys.stdout.flush()
            if options.out:
                save(record, options.out)
        torch.cuda.empty_cache()
    if options.out:
        save(record, options.out)
    sys.stdout.write(f"skipped for time: {skipped}\n")
    return int(any("us" not in r for r in rows if r["library"].startswith("ours")))


if __name__ == "__main__":
    sys.exit(main())
