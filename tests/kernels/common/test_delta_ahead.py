"""What a program of the scan brings into L2 for the one after it."""

from __future__ import annotations

import pytest
import torch

from hybridplan.kernels.common import delta_ahead, delta_launch
from hybridplan.kernels.common.delta_inputs import Sizes
from hybridplan.kernels.gated_delta.chunk import STAGES, chunk_prefill

ON_GPU = torch.cuda.is_available()


@pytest.mark.skipif(ON_GPU, reason="the interpreter shows addresses")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_only_memory_of_the_call_is_read_ahead(delta_case, slot_ids, monkeypatch, dtype):
    made, asked = [], []

    def piece(self, shape, dtype, make=delta_launch.Scratch.piece):
        made.append(make(self, shape, dtype))
        return made[-1]

    monkeypatch.setattr(delta_launch.Scratch, "piece", piece)
    monkeypatch.setattr(delta_launch, "programs_ahead", lambda *_: 3)
    monkeypatch.setattr(delta_ahead, "prefetch", lambda p: asked.append(p.handle.data))
    c = delta_case([200, 64, 260, 0, 1], H=2, HV=2, K=64, V=64)
    ids = [2, 0, 3, 5, 1]
    pool = c.pool(6, ids, dtype)
    chunk_prefill(c.q, c.k, c.v, c.b, pool, slot_ids(ids), c.cu_seqlens, **c.gates())
    room = [(x.data_ptr(), x.data_ptr() + x.nbytes) for x in (pool, c.q, c.k, c.v, *made)]
    assert len(asked) > 6
    for addresses in asked:
        assert any(((start <= addresses) & (addresses < end)).all() for start, end in room)


@pytest.mark.parametrize("K", [16, 32, 64, 96, 128])
def test_only_rows_of_whole_lines_are_read_ahead(device, monkeypatch, K):
    """Lines have 128 bytes; rows of no whole number of lines, or of three, would not compile."""
    asked = []
    monkeypatch.setattr(delta_launch, "programs_ahead", lambda *given: asked.append(given[-1]) or 0)
    T, HV, V = 64, 2, delta_launch.WIDE_ROWS
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    b = delta_launch.Batch(
        delta_launch.plan((T,), (), 0, device, True), slots, slots, V, False, True
    )
    k = torch.zeros((T, HV, K), dtype=torch.bfloat16, device=device)
    v = torch.zeros((T, HV, V), dtype=torch.bfloat16, device=device)
    tile = torch.zeros((T * HV, 64), dtype=torch.bfloat16, device=device)
    pool = torch.zeros((1, HV, V, K), device=device)
    delta_launch.scan(
        Sizes(T, HV, HV, K, V, 1), b, delta_launch.Scratch(device), k, k, k, (HV * K, HV * K), v,
        None, tile, tile, pool, v, pool, False, STAGES,
    )  # fmt: skip
    assert asked == [K in (64, 128)]
