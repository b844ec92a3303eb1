"""Pools in device memory exactly where the plan puts them, and views that kernels can use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import RefusalError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import canonical
from hybridplan.ledger.vllm import layout as layouts
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.page import AttentionCache, LayerCache, StateCache
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm


def plan_of(
    spec: ModelSpec, blocks: int, max_model_len: int | None = None, drafts: int = 0
) -> PoolPlan:
    """vLLM's plan for that many blocks. Raises RefusalError where vLLM would refuse."""
    length = max_model_len if max_model_len is not None else min(spec.max_tokens or 4096, 4096)
    if spec.max_tokens:
        length = min(length, spec.max_tokens)
    options = VllmOptions(max_model_len=length)
    deployment = Deployment("vllm", drafts=drafts)
    least = plan_vllm(spec, deployment, options, 1 << 46)
    blocks = max(blocks, sum(least.blocks_per_request) + 1)
    exact = replace(options, num_gpu_blocks_override=blocks)
    return plan_vllm(spec, deployment, exact, blocks * least.bytes_per_block)


@dataclass(frozen=True)
class Group:
    """Layers that share a block table, by the plan's names."""

    names: tuple[str, ...]
    block_tokens: int
    state: bool


class PlanPool:
    """One allocation of ``plan.pool_bytes``, seen layer by layer.

    A layer's page of a block starts at the plan's offset. Within a page our kernels keep all keys
    and then all values; vLLM interleaves them entry by entry, in the same bytes.
    """

    def __init__(self, plan: PoolPlan, device: Any) -> None:
        """Allocate. Raises RefusalError for a layout whose pages are not whole."""
        if not layouts.whole_pages(plan.layout):
            raise RefusalError(
                f"layout {plan.layout} cuts pages into pieces, which the kernels cannot address"
            )
        self.plan = plan
        self.buffer = torch.empty(plan.pool_bytes, dtype=torch.uint8, device=device)
        self.groups = tuple(
            Group(group.layers, group.block_tokens, isinstance(group.caches[0], StateCache))
            for group in plan.groups
        )

    def start_bytes(self, name: str, block: int = 0) -> int:
        """Byte of the buffer where the layer's page of ``block`` begins, from the plan."""
        entry = self.plan.tensor_of(name)
        place = entry.layers.index(name)
        return (
            entry.offset_bytes + place * entry.layer_stride_bytes + block * entry.block_stride_bytes
        )

    def pages(self, name: str) -> Tensor:
        """The layer's pages as bytes: uint8 [blocks, page bytes]."""
        entry = self.plan.tensor_of(name)
        size = (self.plan.num_blocks, entry.cache.page_bytes)
        return self.buffer.as_strided(size, (entry.block_stride_bytes, 1), self.start_bytes(name))

    def states(self, name: str) -> tuple[Tensor, ...]:
        """Pools of a recurrent layer in the plan's order: [blocks, *shape] each."""
        cache = self._cache(name)
        assert isinstance(cache, StateCache)
        found = []
        at = 0
        for shape, dtype in zip(cache.shapes, cache.dtypes, strict=True):
            view = self._view(name, at, shape, dtype)
            found.append(view)
            at += view[0].numel() * view.element_size()
        return tuple(found)

    def state_and_window(self, name: str) -> tuple[Tensor | None, Tensor | None]:
        """The recurrent states [blocks, HV, V, K] and the windows [blocks, W - 1, C]."""
        state = window = None
        for view in self.states(name):
            if view.dim() == 4:
                state = view
            elif view.dim() == 3:
                window = view
        return state, window

    def caches(self, name: str) -> tuple[Tensor, ...]:
        """Keys and values [blocks, tokens, heads, width], or MLA's latent [blocks, tokens, width].

        Raises RefusalError where the page holds packed or pooled entries.
        """
        cache = self._cache(name)
        assert isinstance(cache, AttentionCache)
        if cache.entry_bytes is not None or cache.tokens_per_entry != 1 or cache.dtype == "uint8":
            raise RefusalError(f"{name} stores packed entries, which no kernel here reads")
        if cache.kind == "mla":
            return (self._view(name, 0, (cache.entries, cache.key_dim), cache.dtype),)
        keys = self._view(name, 0, (cache.entries, cache.slots, cache.key_dim), cache.dtype)
        after = keys[0].numel() * keys.element_size()
        shape = (cache.entries, cache.slots, cache.value_dim)
        return keys, self._view(name, after, shape, cache.dtype)

    def fill(self, seed: int = 0) -> None:
        """Random bf16 numbers everywhere, so that nothing is timed or tested on zeros."""
        generator = torch.Generator(device=self.buffer.device).manual_seed(seed)
        even = self.buffer.numel() // 2 * 2
        self.buffer[:even].view(torch.bfloat16).normal_(generator=generator)

    def _cache(self, name: str) -> LayerCache:
        return self.plan.tensor_of(name).cache

    def _view(self, name: str, at_bytes: int, shape: Sequence[int], dtype: str) -> Tensor:
        kind = getattr(torch, canonical(dtype))
        size = torch.empty((), dtype=kind).element_size()
        entry = self.plan.tensor_of(name)
        start, stride = self.start_bytes(name) + at_bytes, entry.block_stride_bytes
        if start % size or stride % size:
            raise RefusalError(f"{name} starts at byte {start}, not a multiple of {size}")
        whole = self.buffer[: self.buffer.numel() // size * size].view(kind)
        inner: list[int] = []
        step = 1
        for width in reversed(shape):
            inner.insert(0, step)
            step *= width
        return whole.as_strided(
            (self.plan.num_blocks, *shape), (stride // size, *inner), start // size
        )


class Blocks:
    """Hands out block ids; 0 is vLLM's null block."""

    def __init__(self, count: int) -> None:
        self._next, self._count = 1, count

    def take(self, number: int) -> list[int]:
        """The next ``number`` ids. Raises RefusalError when the pool is used up."""
        first = self._next
        if first + number > self._count:
            raise RefusalError(
                f"{number} blocks were asked for, {self._count - first} of {self._count} are left"
            )
        self._next += number
        return list(range(first, first + number))
