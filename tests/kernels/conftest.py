"""Kernel tests run on the GPU where there is one, and under Triton's interpreter elsewhere."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any import


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu where no CUDA device is present."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; results are under benchmarks/results")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device kernels run on: CUDA, or the CPU under the interpreter."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class DeltaCase:
    """Inputs of one delta-rule call, small enough for the interpreter, with realistic gates."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    b: torch.Tensor
    x: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    lengths: tuple[int, ...]
    state: torch.Tensor

    @property
    def cu_seqlens(self) -> tuple[int, ...]:
        """0 and the end of each sequence."""
        return (0, *itertools.accumulate(self.lengths))

    def gates(self) -> dict[str, torch.Tensor | bool]:
        """Gate arguments of the kernels (softplus gate, beta as a logit)."""
        return {
            "gate_input": self.x,
            "a_log": self.a_log,
            "dt_bias": self.dt_bias,
            "beta_is_logit": True,
        }

    def log_decay(self) -> torch.Tensor:
        """What the softplus gate makes of ``x``, in fp64."""
        y = torch.nn.functional.softplus(self.x.double() + self.dt_bias.double())
        rate = self.a_log.double().exp()
        return -(rate[:, None] if y.dim() == 3 else rate) * y

    def part(self, n: int, start: int, end: int) -> DeltaCase:
        """Tokens [start, end) of sequence n alone."""
        a = self.cu_seqlens[n] + start
        z = self.cu_seqlens[n] + end
        return replace(
            self,
            q=self.q[a:z],
            k=self.k[a:z],
            v=self.v[a:z],
            b=self.b[a:z],
            x=self.x[a:z],
            lengths=(end - start,),
            state=self.state[n : n + 1],
        )

    def pool(self, slots: int, at: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A pool of NaN with sequence n's state in slot at[n] (-1: left out)."""
        pool = torch.full((slots, *self.state.shape[1:]), math.nan, device=self.q.device)
        for n, slot in enumerate(at):
            if slot >= 0:
                pool[slot] = self.state[n]
        return pool.to(dtype)


@pytest.fixture(scope="session")
def delta_case(device: torch.device) -> Callable[..., DeltaCase]:
    """Maker of random delta-rule inputs: (lengths, H, HV, K, V, per_channel, dtype, seed)."""

    def make(
        lengths: Sequence[int],
        H: int = 1,
        HV: int = 2,
        K: int = 32,
        V: int = 32,
        per_channel: bool = False,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> DeltaCase:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        T, gate = sum(lengths), (HV, K) if per_channel else (HV,)
        step = torch.exp(torch.rand(gate, generator=generator) * math.log(100) + math.log(1e-3))
        return DeltaCase(
            *(t.to(device, dtype) for t in (normal(T, H, K), normal(T, H, K), normal(T, HV, V))),
            normal(T, HV).to(device, dtype),
            normal(T, *gate).to(device, dtype),
            (torch.rand(HV, generator=generator) * 15 + 1).log().to(device),
            (step + torch.log(-torch.expm1(-step))).to(device),
            tuple(lengths),
            (normal(len(lengths), HV, V, K) * 0.1).to(device),
        )

    return make


@pytest.fixture(scope="session")
def slot_ids(device: torch.device) -> Callable[[Sequence[int]], torch.Tensor]:
    """Maker of slot id tensors."""
    return lambda ids: torch.tensor(ids, dtype=torch.int32, device=device)


@pytest.fixture(scope="session")
def relative_error() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """|x - reference| / |reference| in fp64."""

    def error(x: torch.Tensor, reference: torch.Tensor) -> float:
        reference = reference.double()
        return float((x.double() - reference).norm() / reference.norm())

    return error
