"""The three gates of the scalar-decay family, as arguments and as device arithmetic."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridplan.kernels.common.checks import FLOATS, check_tensor
from hybridplan.kernels.common.gates import softplus

LOG2E = tl.constexpr(1.4426950408889634)


class GateKind(enum.IntEnum):
    """What a kernel reads per token and head: nothing, a log decay, or Mamba-2's raw step."""

    PER_HEAD = 0
    PER_TOKEN = 1
    MAMBA = 2


@dataclass(frozen=True, eq=False)
class HeadDecay:
    """One constant natural-log decay per v-head, fp32 [HV] (lightning attention, RetNet)."""

    log_decay: Tensor


@dataclass(frozen=True, eq=False)
class TokenDecay:
    """A natural-log decay per token and v-head, [rows, HV], finite and not positive (GLA)."""

    log_decay: Tensor


@dataclass(frozen=True, eq=False)
class MambaStep:
    """Mamba-2's step: raw ``dt`` [rows, HV], ``a_log`` and ``dt_bias`` fp32 [HV].

    The step is dt + dt_bias, through softplus unless told otherwise, and not negative. The decay of
    a token is -exp(a_log) * step, and its input v is multiplied by the step.
    """

    dt: Tensor
    a_log: Tensor
    dt_bias: Tensor | None = None
    softplus: bool = True


Gate = HeadDecay | TokenDecay | MambaStep


@dataclass(frozen=True)
class GateArguments:
    """A gate as kernel arguments; absent tensors are None."""

    kind: GateKind
    values: Tensor
    a_log: Tensor | None
    dt_bias: Tensor | None
    softplus: bool


def gate_arguments(gate: Gate) -> GateArguments:
    """A gate's tensors by their role in a kernel."""
    if isinstance(gate, MambaStep):
        return GateArguments(GateKind.MAMBA, gate.dt, gate.a_log, gate.dt_bias, gate.softplus)
    kind = GateKind.PER_HEAD if isinstance(gate, HeadDecay) else GateKind.PER_TOKEN
    return GateArguments(kind, gate.log_decay, None, None, False)


def check_gate(
    args: GateArguments, leading: tuple[int, ...], heads: int, device: torch.device
) -> None:
    """Check a gate's tensors against the batch's leading dimensions and number of v-heads."""
    if args.kind == GateKind.PER_HEAD:
        check_tensor("log_decay", args.values, (heads,), (torch.float32,), device)
        return
    name = "dt" if args.kind == GateKind.MAMBA else "log_decay"
    check_tensor(name, args.values, (*leading, heads), FLOATS, device)
    for name, x in (("a_log", args.a_log), ("dt_bias", args.dt_bias)):
        if x is not None:
            check_tensor(name, x, (heads,), (torch.float32,), device)


@triton.jit
def mamba_step(dt, dt_bias, HAS_BIAS: tl.constexpr, SOFTPLUS: tl.constexpr):
    """Step of Mamba-2 from its raw value, fp32; ``dt_bias`` is read only if HAS_BIAS."""
    step = dt.to(tl.float32)
    if HAS_BIAS:
        step += dt_bias
    if SOFTPLUS:
        step = softplus(step)
    return step
