"""Run every kernel on small shapes and wait: what compute-sanitizer and ncu are given.

    compute-sanitizer --tool memcheck --error-exitcode 9 python -m benchmarks.kernels.small
    ncu --set full -k regex:_scan python -m benchmarks.kernels.small --only gated_delta

Results are not checked here; the tests do that. Lengths are no multiples of a chunk or a page, so
that masked rows and padding are part of what is looked at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.kernels import cases_gated_linear as gla
from benchmarks.kernels import cases_paged_attention as attention
from benchmarks.kernels import cases_scalar_decay as scalar
from benchmarks.kernels import cases_short_conv as conv
from benchmarks.kernels import cases_state_copy as states
from benchmarks.kernels import peers
from benchmarks.kernels.case import Prepared
from benchmarks.kernels.registry import make
from hybridplan.kernels.gated_delta.replay import advance, make_ring, replay_step

LENGTHS = (130, 65, 1)
Runs = Iterator[tuple[str, Callable[[], object]]]


def _delta(heads: str, device: torch.device) -> Runs:
    x = make(heads, LENGTHS, device, 1)
    yield "prefill", partial(peers.ours_prefill, x, {})
    many = make(heads, (200,) * 11 + (1,), device, 6)
    yield "prefill, more programs than processors", partial(peers.ours_prefill, many, {})
    pool = torch.randn((8, *x.pool.shape[1:]), device=device)
    x.pool = pool
    ends = [(0, 64, 5), (0, 77, 6), (1, 64, 7)]
    yield "prefill, exports", partial(peers.ours_prefill, x, {}, exports=ends)
    long = make(heads, (2100,), device, 2)
    yield "prefill, segments", partial(peers.ours_prefill, long, {}, segment_chunks=16)
    for dtype in (torch.float32, torch.bfloat16):
        step = make(heads, (1,) * 3, device, 3, state=dtype)
        step.slots[1] = -1
        yield f"decode, {dtype}", partial(peers.ours_decode, step, {})
        batch = make(heads, (1,) * 24, device, 3, state=dtype)
        batch.slots[-1] = -1
        yield f"decode that reads ahead, {dtype}", partial(peers.ours_decode, batch, {})
        drafts = make(heads, (1,) * 6, device, 4, state=dtype)
        drafts.slots = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32, device=device)
        yield f"3 drafts, {dtype}", partial(peers.ours_decode, drafts, {})


def _replay(device: torch.device) -> Runs:
    x = make("next", (1,) * 6, device, 5)
    (H, K), (HV, V) = x.q.shape[1:], x.v.shape[1:]
    slots = torch.tensor([1, 2], dtype=torch.int32, device=device)
    ring = make_ring(7, H, HV, K, V, 4, 3, torch.bfloat16, device)
    kept = torch.tensor([3, 2], dtype=torch.int32, device=device)

    def step() -> None:
        for _ in range(3):  # fills the ring of 4 and folds it
            replay_step(
                x.q, x.k, x.v, x.beta_logit, x.pool, slots, ring, beta_is_logit=True,
                gate_input=x.gate_input, a_log=x.a_log, dt_bias=x.dt_bias,
            )  # fmt: skip
            advance(ring, slots, 3, kept)

    yield "replay", step


def _first(name: str, prepared: Prepared) -> Runs:
    yield name, prepared.calls[0]


def _scalar(device: torch.device) -> Runs:
    for shape in scalar.SHAPES:
        prepare = partial(scalar.prefill, device, shape)
        yield from _first(f"{shape}, prefill", prepare(list(LENGTHS)))
        yield from _first(f"{shape}, exports", prepare([200], exports=2))
        yield from _first(f"{shape}, decode", scalar.decode(device, shape, 3))
        yield from _first(f"{shape}, drafts", scalar.decode(device, shape, 2, drafts=2))


def _others(name: str, device: torch.device) -> Runs:
    if name == "gated_linear":
        yield from _first("prefill", gla.prefill(device, 130))
        yield from _first("decode", gla.decode(device, 3))
    elif name == "short_conv":
        yield from _first("prefill", conv.prefill(device, 6144, list(LENGTHS)))
        yield from _first("decode", conv.decode(device, 6144, 3))
    elif name == "paged_attention":
        yield from _first("gqa", attention.gqa(device, 2, 256, 16))
        yield from _first("mla", attention.mla(device, 2, 256, 16))
    else:
        yield from _first("copy", states.copy(device, 1))


OPERATORS: dict[str, Callable[[torch.device], Runs]] = {
    "gated_delta": partial(_delta, "next"),
    "kimi_delta": partial(_delta, "kimi"),
    "kimi_bounded": partial(_delta, "kimi bounded"),
    "replay": _replay,
    "scalar_decay": _scalar,
    **{
        name: partial(_others, name)
        for name in ("gated_linear", "short_conv", "paged_attention", "state_copy")
    },
}


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen operators; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=OPERATORS, default=list(OPERATORS))
    options = parser.parse_args(arguments)
    device = torch.device("cuda", torch.cuda.current_device())
    for operator in options.only:
        for name, call in OPERATORS[operator](device):
            call()
            torch.cuda.synchronize()
            sys.stdout.write(f"{operator}: {name}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
