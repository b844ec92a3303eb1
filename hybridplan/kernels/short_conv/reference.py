"""fp64 reference of the depthwise causal convolution that precedes every linear-attention layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def conv_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_window: Tensor,
    cu_seqlens: Sequence[int],
    *,
    activation: bool = True,
    export_at: Sequence[tuple[int, int]] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolve each sequence behind its window of earlier inputs, then SiLU if asked.

    x: [T, C]; weight: [C, W], the newest token last; bias: [C]; initial_window: [N, W - 1, C],
    oldest first. ``export_at`` lists (sequence, tokens consumed). Returns output [T, C], final
    windows [N, W - 1, C] and exported windows [len(export_at), W - 1, C], all fp64.
    """
    width = weight.shape[1]
    taps = weight.double().T
    outs, finals = [], []
    exported = initial_window.double().new_zeros((len(export_at), width - 1, x.shape[1]))
    for n in range(len(cu_seqlens) - 1):
        fresh = x[cu_seqlens[n] : cu_seqlens[n + 1]].double()
        line = torch.cat([initial_window[n].double(), fresh])
        tokens = len(fresh)
        y = sum(taps[i] * line[i : i + tokens] for i in range(width)) + torch.zeros_like(fresh)
        y = y if bias is None else y + bias.double()
        outs.append(torch.nn.functional.silu(y) if activation else y)
        finals.append(line[tokens:])
        for e, (sequence, position) in enumerate(export_at):
            if sequence == n:
                exported[e] = line[position : position + width - 1]
    return torch.cat(outs), torch.stack(finals), exported
