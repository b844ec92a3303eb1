"""What ``plan`` and ``fit`` return. Bytes are per rank; lengths are in tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.figure import Figure
from hybridplan.ledger.lengths.fill import Concurrency

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the pool's bytes come from.

    ``parts`` are what was taken off (empty when the size was given). ``how`` is "exact" for a
    given size, "assumed" for one derived from a card.
    """

    gpu: str | None
    total_bytes: int | None
    usable_bytes: int | None
    available_bytes: int
    parts: tuple[Figure, ...]
    how: str


@dataclass(frozen=True, slots=True)
class BlockSize:
    """The block and why: ``reason`` is a sentence with the numbers that decide."""

    tokens: int
    start_tokens: int
    granularity_tokens: int
    token_bytes: int
    state_bytes: int
    padded_state_bytes: int
    padding_percent: float
    reason: str


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group: its layers by the engine's names, and one block's bytes in it."""

    kind: str
    layers: tuple[str, ...]
    block_tokens: int
    page_bytes: tuple[int, ...]
    content_bytes: int
    padding_bytes: int
    blocks_per_request: int
    draft: bool


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where layers of one shape lie: block b of layer i starts at the sum of three products.

    ``offset_bytes`` + i x ``layer_stride_bytes`` + b x ``block_stride_bytes``.
    ``unit`` is what the attention kernel addresses ("kernel block" where it fixes one, else
    "row"): ``units_per_page`` of ``unit_bytes`` each make a page, and a block lies
    ``units_to_next_block`` of them after the one before. No unit for states.
    """

    group: int
    layers: int
    page_bytes: int
    offset_bytes: int
    layer_stride_bytes: int
    block_stride_bytes: int
    unit: str
    unit_bytes: int | None
    units_per_page: int
    units_to_next_block: int | None


@dataclass(frozen=True, slots=True)
class RequestCost:
    """What one request of ``tokens`` takes, and how many such requests the pool holds."""

    tokens: int
    blocks: tuple[int, ...]
    bytes: int
    concurrent: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of the setting that was searched, and the requests it lets run."""

    value: str
    concurrency: Concurrency


@dataclass(frozen=True, slots=True)
class LengthsResult:
    """The pools against a length distribution.

    ``knob`` is the flag that was searched ("--block-size" or "--mamba-full-memory-ratio"),
    ``choices`` its values in order, ``best`` the one with the most requests (the default where it
    ties). ``gain`` is best over default. ``twin`` is the all-attention twin at the same bytes.
    """

    name: str
    default: Concurrency
    knob: str
    choices: tuple[Choice, ...]
    best: str
    gain: float
    twin: Concurrency | None


@dataclass(frozen=True, slots=True)
class VllmResult:
    """vLLM's plan. ``kv_tokens`` and ``max_concurrency`` are the boot log's figures."""

    schema_version: int
    model: str
    deployment: Deployment
    rules: str
    memory: Memory
    block: BlockSize
    layout: str
    grouping: str
    backends: tuple[str, ...]
    state_mode: str
    prefix_caching: bool
    groups: tuple[GroupLine, ...]
    tensors: tuple[Tensor, ...]
    bytes_per_block: int
    stride_alignment_bytes: int
    num_blocks: int
    unused_bytes: int
    scheduler_block_tokens: int
    hash_block_tokens: int
    hit_alignment_tokens: int
    max_model_len: int
    blocks_per_request: int
    max_concurrency: float
    kv_tokens: int
    longest_request_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    costs: tuple[RequestCost, ...]
    boot_lines: tuple[str, ...]
    warnings: tuple[str, ...]
    lengths: LengthsResult | None = None


@dataclass(frozen=True, slots=True)
class SglangResult:
    """SGLang's plan; ``slots`` is max_mamba_cache_size. ``outside_bytes`` no split term covers."""

    schema_version: int
    model: str
    deployment: Deployment
    memory: Memory
    strategy: str
    slots_per_request: int
    tracking_slots: int
    slot_bytes: int
    state_bytes: int
    conv_bytes: int
    kv_bytes_per_token: int
    ratio: float
    balanced_ratio: float
    slots: int
    slots_bytes: int
    intermediate_bytes: int
    intermediate_allocated_bytes: int
    ring_bytes: int
    kv_bytes: int
    kv_tokens: int
    requests_by_slots: int
    max_running_requests: int
    binds: str
    context_tokens: int
    checkpoint_grid_tokens: int
    track_grid_tokens: int
    outside_bytes: Mapping[str, int]
    host_slots: int | None
    host_kv_tokens: int | None
    host_bytes: int | None
    host_coverage: float | None
    pd_decode_slots: int
    costs: tuple[RequestCost, ...]
    boot_lines: tuple[str, ...]
    warnings: tuple[str, ...]
    lengths: LengthsResult | None = None


@dataclass(frozen=True, slots=True)
class FitResult:
    """What fits on a card, and for "no" the smallest change that would.

    ``smallest_tp`` serves ``max_model_len`` on that many cards; ``largest_context_tokens`` and
    ``largest_concurrency`` are at the asked tensor parallel size (0: does not fit).
    """

    schema_version: int
    model: str
    deployment: Deployment
    gpu: str
    max_model_len: int
    fits: bool
    smallest_tp: int | None
    largest_context_tokens: int
    largest_concurrency: float
    available_bytes: int
    reason: str
    change: str
