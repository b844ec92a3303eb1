"""Host time of one eager call of each kernel wrapper, by stage, without a GPU.

Run: python -m benchmarks.kernels.host_overhead [--calls N] [--json FILE]. Kernels are compiled for
sm_90 and go through Triton's own C launcher into a driver that does nothing (idle_driver), on CPU
tensors: what is left out is the driver's share of a launch and CUDA's allocator (malloc stands in).
Stages are exclusive of one another: checks (layouts, slot ids), plan (tables of a batch),
allocation, launch (Launcher in Python), c_launch (argument parsing and driver calls in C), rest.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.kernels import idle_driver
from benchmarks.kernels.registry import make


@dataclass(frozen=True)
class Cost:
    """Host time of one warm call in us, and what it asked of the driver."""

    operator: str
    us: float
    launches: int
    maps_encoded: int
    pointers_asked: int
    stages_us: dict[str, float]
    refusals: tuple[str, ...]


class Stages:
    """Exclusive times of wrapped functions, less the measured cost of wrapping."""

    def __init__(self) -> None:
        self.ns: dict[str, float] = {}
        self._open: list[list[Any]] = []

    def wrap(self, stage: str, f: Callable[..., Any]) -> Callable[..., Any]:
        """``f``, adding its time to ``stage`` and not to the stage that called it."""

        @functools.wraps(f, updated=())
        def timed(*args: Any, **kwargs: Any) -> Any:
            frame = [0]
            self._open.append(frame)
            start = time.perf_counter_ns()
            try:
                return f(*args, **kwargs)
            finally:
                spent = time.perf_counter_ns() - start
                self._open.pop()
                self.ns[stage] = self.ns.get(stage, 0) + spent - frame[0]
                if self._open:
                    self._open[-1][0] += spent

        return timed


def stand_in_for_cuda() -> None:
    """Let CPU tensors through, and make large allocations as cheap as a caching allocator's."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 1 << 30)
    libc.mallopt(-1, (1 << 31) - 1)
    from hybridplan.kernels.common import checks, delta_inputs, delta_launch, launch, recipe, slots

    launch.require_device = delta_inputs.require_device = lambda _: None
    launch.has_tma = delta_launch.has_tma = lambda _: True
    for module in (checks, recipe, delta_launch, slots):
        module.is_capturing = lambda _: False
    launch.sm_count.cache_clear()
    launch.sm_count = delta_launch.sm_count = lambda _: 132


def calls(tokens: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """A call of each operator on small inputs; ``tokens`` are a prefill's."""
    from hybridplan.kernels.gated_delta import chunk as gdn
    from hybridplan.kernels.gated_delta import recurrent as gdn_step
    from hybridplan.kernels.gated_linear import chunk as gla
    from hybridplan.kernels.gated_linear import recurrent as gla_step
    from hybridplan.kernels.kimi_delta import chunk as kda
    from hybridplan.kernels.kimi_delta import recurrent as kda_step
    from hybridplan.kernels.paged_attention import recurrent as attention
    from hybridplan.kernels.scalar_decay import chunk as ssd
    from hybridplan.kernels.scalar_decay import recurrent as ssd_step
    from hybridplan.kernels.scalar_decay.gates import HeadDecay, MambaStep
    from hybridplan.kernels.short_conv import chunk as conv
    from hybridplan.kernels.short_conv import recurrent as conv_step
    from hybridplan.kernels.state_copy.recurrent import StateCopier

    cpu = torch.device("cpu")
    bf16 = torch.bfloat16
    for heads, prefill, step in (("0.8B", gdn, gdn_step), ("kimi", kda, kda_step)):
        name = "gated_delta" if prefill is gdn else "kimi_delta"
        for label, lengths, more in (
            ("prefill", (tokens,), {"segment_chunks": 0}),
            ("prefill, segments", (tokens,), {"segment_chunks": tokens // 256}),
            ("prefill, 8 sequences", (tokens // 8,) * 8, {"segment_chunks": 0}),
        ):
            x = make(heads, lengths, cpu, 0)
            f = functools.partial(
                prefill.chunk_prefill, x.q, x.k, x.v, x.beta_logit, x.pool, x.slots, x.cu_seqlens,
                gate_input=x.gate_input, a_log=x.a_log, dt_bias=x.dt_bias, beta_is_logit=True,
                **more,
            )  # fmt: skip
            yield f"{name} {label}", f
        x = make(heads, (1,) * 8, cpu, 0)
        yield f"{name} decode", functools.partial(
            step.recurrent_step, x.q, x.k, x.v, x.beta_logit, x.pool, x.slots,
            gate_input=x.gate_input, a_log=x.a_log, dt_bias=x.dt_bias, beta_is_logit=True,
        )  # fmt: skip

    def some(*shape: int, dtype: torch.dtype = bf16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    slots = torch.arange(8, dtype=torch.int32)
    q, k, v = some(tokens, 8, 128), some(tokens, 8, 128), some(tokens, 64, 64)
    pool, head = some(9, 64, 64, 128, dtype=torch.float32), some(64, dtype=torch.float32)
    for label, gate in (
        ("Mamba-2", MambaStep(some(tokens, 64), head, head.clone())),
        ("lightning", HeadDecay(head)),
    ):
        yield (
            f"scalar_decay prefill, {label}",
            functools.partial(ssd.chunk_prefill, q, k, v, gate, pool, slots[:1]),
        )
    yield (
        "scalar_decay prefill, segments",
        functools.partial(
            ssd.chunk_prefill,
            q,
            k,
            v,
            HeadDecay(head),
            pool,
            slots[:1],
            segment_chunks=tokens // 256,
        ),
    )
    yield "scalar_decay decode", functools.partial(
        ssd_step.recurrent_step, q[:8], k[:8], v[:8], MambaStep(some(8, 64), head, head.clone()),
        pool, slots,
    )  # fmt: skip
    g = some(tokens, 16, 128)
    pool = some(9, 16, 128, 128, dtype=torch.float32)
    qkvg = (g, *(g.clone() for _ in "kvg"))  # one tensor in two places is not repeated by recipe
    yield "gated_linear prefill", functools.partial(gla.chunk_prefill, *qkvg, pool, slots[:1])
    yield (
        "gated_linear decode",
        functools.partial(gla_step.recurrent_step, g[:8], g[:8], g[:8], g[:8], pool, slots),
    )
    x1, w, windows = some(tokens, 6144), some(6144, 4), some(9, 3, 6144)
    yield (
        "short_conv prefill",
        functools.partial(conv.chunk_prefill, x1, w, None, windows, slots[:1]),
    )
    yield (
        "short_conv decode",
        functools.partial(conv_step.recurrent_step, x1[:8], w, None, windows, slots),
    )
    cache, table = some(2048, 16, 2, 256), torch.arange(2048, dtype=torch.int32).view(8, 256)
    yield "paged_attention decode", functools.partial(
        attention.decode_gqa, some(8, 8, 256), cache, cache, table,
        torch.full((8,), 4000, dtype=torch.int32),
    )  # fmt: skip
    copier = StateCopier([some(16, 16, 128, 128) for _ in range(18)])
    yield "state_copy", functools.partial(copier.copy, slots[:1], slots[1:2].clone())


def measure(operator: str, call: Callable[[], object], idle: Any, count: int) -> Cost:
    """Time warm calls: the best round's mean, then their stages in a separate round."""
    for _ in range(3):
        call()
    before = (idle.launches, idle.maps, idle.pointer_queries)
    call()
    asked = [
        b - a for a, b in zip(before, (idle.launches, idle.maps, idle.pointer_queries), strict=True)
    ]
    us = min(_mean_us(call, count // 5) for _ in range(25))
    with staged() as stages:
        per_call = statistics.mean(_mean_us(call, count) for _ in range(5))
        spent = {k: v / 5 / count / 1e3 for k, v in stages.ns.items()}
    inside = sum(spent.values())
    share = {k: round(v * us / per_call, 2) for k, v in sorted(spent.items())}
    share["rest"] = round(max(per_call - inside, 0.0) * us / per_call, 2)
    refusals = {r for launcher in launchers() for r in launcher.refusals}
    return Cost(operator, round(us, 2), *asked, share, tuple(sorted(refusals)))


def _mean_us(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


def launchers() -> list[Any]:
    """Every Launcher of the kernel modules loaded so far."""
    from hybridplan.kernels.common.launch import Launcher

    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("hybridplan.kernels"):
            found |= {id(x): x for x in vars(module).values() if isinstance(x, Launcher)}
    return list(found.values())


@contextmanager
def staged() -> Iterator[Stages]:
    """Wrap the functions of each stage wherever a kernel module has them, for a while."""
    from hybridplan.kernels.common import (
        checks,
        delta_inputs,
        delta_launch,
        launch,
        recipe,
        slots,
        spans,
        varlen,
    )

    stages = Stages()
    functions = {
        "checks": (
            delta_inputs.checked_sizes, slots.check_prefill_slots, slots.check_decode_slots,
            checks.check_slots,
        ),
        "plan": (delta_launch.batch, varlen.chunk_index, varlen.sequence_lengths, spans.spans_of),
    }  # fmt: skip
    undo: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, stage: str) -> None:
        old = getattr(owner, name)
        undo.append((owner, name, old))
        setattr(owner, name, stages.wrap(stage, old))

    modules = [m for n, m in sys.modules.items() if n.startswith("hybridplan.kernels")]
    for stage, wrapped in functions.items():
        for module in modules:
            for name, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType) and value in wrapped:
                    patch(module, name, stage)
    patch(torch, "empty", "allocation")
    patch(launch.Scratch, "__init__", "allocation")
    patch(launch.Scratch, "piece", "allocation")
    patch(checks.Passed, "key", "checks")
    patch(launch.Launcher, "__call__", "launch")
    for launcher in launchers():
        for compiled in launcher._kinds.values():
            if compiled.direct is not None and not isinstance(compiled.direct, str):
                patch(compiled.direct, "_raw", "c_launch")
    recipe._calls.clear()  # they hold what was patched
    try:
        yield stages
    finally:
        recipe._calls.clear()
        for owner, name, old in reversed(undo):
            setattr(owner, name, old)


def cpu_name() -> str:
    """Model of the processor, where Linux tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def main() -> None:
    """Print a table; with --json also keep the rows and the versions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    idle = idle_driver.activate()
    stand_in_for_cuda()
    torch.set_grad_enabled(False)
    rows = [measure(name, call, idle, args.calls) for name, call in calls(args.tokens)]
    for row in rows:
        stages = ", ".join(f"{k} {v:.1f}" for k, v in row.stages_us.items())
        line = f"{row.operator:36s} {row.us:7.1f} us  {row.launches} launches  {stages}"
        sys.stdout.write(line + "\n")
    for refusal in sorted({r for row in rows for r in row.refusals}):
        sys.stdout.write(f"direct launch refused: {refusal}\n")
    if args.json:
        found = {"triton": triton.__version__, "torch": torch.__version__, "cpu": cpu_name()}
        text = json.dumps({**found, "rows": [asdict(r) for r in rows]}, indent=1)
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
