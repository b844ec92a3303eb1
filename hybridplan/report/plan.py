"""A pool plan on a terminal: one screen that answers, the groups drawn as a table."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.ledger.lengths.fill import Concurrency
from hybridplan.ledger.planning.result import (
    FitResult,
    GroupLine,
    LengthsResult,
    Memory,
    RequestCost,
    SglangResult,
    Tensor,
    VllmResult,
)
from hybridplan.report.units import count, exact, size


def vllm_screen(plan: VllmResult) -> list[RenderableType]:
    """Memory, block, groups, costs, boot lines and warnings of vLLM's plan."""
    parts: list[RenderableType] = [_vllm_head(plan), _memory(plan.memory), _vllm_answers(plan)]
    parts += ["", _groups(plan), "", _strides(plan), "", _costs(plan.costs, "blocks by group")]
    if plan.lengths is not None:
        parts += ["", *_lengths(plan.lengths)]
    return [*parts, *_closing(plan.boot_lines, plan.warnings)]


def sglang_screen(plan: SglangResult) -> list[RenderableType]:
    """Memory, both pools, costs, boot lines and warnings of SGLang's plan."""
    head = _head(plan.model, f"sglang, {_parallel(plan.deployment)}, strategy {plan.strategy}")
    parts: list[RenderableType] = [head, _memory(plan.memory), _sglang_answers(plan)]
    parts += ["", _costs(plan.costs, "state slots")]
    if plan.lengths is not None:
        parts += ["", *_lengths(plan.lengths)]
    return [*parts, *_closing(plan.boot_lines, plan.warnings)]


def fit_screen(result: FitResult) -> list[RenderableType]:
    """The verdict and what is possible around it."""
    verdict = "fits" if result.fits else "does not fit"
    head = _head(
        result.model,
        f"{verdict}: {result.max_model_len:,} tokens on {result.gpu}, "
        f"{_parallel(result.deployment)}",
    )
    grid = _grid()
    grid.add_row("Because", result.reason)
    if result.change:
        grid.add_row("Change", result.change)
    if result.gpu != "--kv-memory":
        smallest = f"{result.smallest_tp}" if result.smallest_tp else "none up to 32"
        grid.add_row("Smallest tp", smallest)
    longest = f"{result.largest_context_tokens:,} tokens" if result.largest_context_tokens else "-"
    grid.add_row("Largest context", f"{longest} at tp {result.deployment.tp}")
    if result.fits:
        grid.add_row("Concurrency", f"{result.largest_concurrency:.2f} requests of the full length")
        grid.add_row("For the cache", exact(result.available_bytes))
    return [head, grid]


def _head(name: str, rest: str) -> Text:
    text = Text()
    text.append(name, style="bold")
    text.append(f"  {rest}")
    return text


def _parallel(deployment: object) -> str:
    words = []
    for name in ("tp", "pp", "dcp"):
        value = getattr(deployment, name)
        if value > 1 or name == "tp":
            words.append(f"{name} {value}")
    drafts = getattr(deployment, "drafts", 0)
    return ", ".join([*words, f"drafts {drafts}"] if drafts else words)


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    return grid


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for title, right in columns:
        table.add_column(title, justify="right" if right else "left")
    return table


def _vllm_head(plan: VllmResult) -> Text:
    caching = "prefix caching on" if plan.prefix_caching else "prefix caching off"
    words = [
        f"vllm {plan.rules}",
        _parallel(plan.deployment),
        f"{caching} (state mode {plan.state_mode})",
        f"layout {plan.layout}",
    ]
    if plan.backends:
        words.append(f"backend {', '.join(plan.backends)}")
    return _head(plan.model, ", ".join(words))


def _memory(memory: Memory) -> RenderableType:
    grid = _grid()
    if memory.usable_bytes is None:
        grid.add_row("For the cache", f"{exact(memory.available_bytes)}, as given")
        return grid
    grid.add_row("Usable", f"{size(memory.usable_bytes)} of {memory.gpu}'s memory")
    for index, part in enumerate(part for part in memory.parts if part.value):
        said = f"{part.name} {size(part.value)} ({part.how}; {part.source})"
        grid.add_row("" if index else "Taken off", said)
    grid.add_row("For the cache", f"{exact(memory.available_bytes)} ({memory.how})")
    return grid


def _vllm_answers(plan: VllmResult) -> RenderableType:
    grid = _grid()
    block = plan.block
    grid.add_row("Block", f"{block.tokens:,} tokens: {block.reason}")
    if block.padded_state_bytes > block.state_bytes:
        grid.add_row(
            "",
            f"each state is padded from {block.state_bytes:,} to {block.padded_state_bytes:,} B "
            f"({block.padding_percent:.2f}%)",
        )
    waste = sum(group.padding_bytes for group in plan.groups)
    whole = plan.bytes_per_block * len(plan.groups)
    longest = _longest_waste(plan)
    grid.add_row(
        "Pool",
        f"{plan.num_blocks:,} blocks of {plan.bytes_per_block:,} B, one of them the null block; "
        f"{size(plan.unused_bytes)} left over",
    )
    grid.add_row(
        "Waste",
        f"padding takes {waste:,} B of the {whole:,} B of one block in each group "
        f"({waste / whole:.2%}), {size(longest)} of a request of {plan.max_model_len:,} tokens "
        f"({longest / (plan.blocks_per_request * plan.bytes_per_block):.2%})",
    )
    grid.add_row(
        "A request",
        f"of {plan.max_model_len:,} tokens takes {plan.blocks_per_request:,} blocks; "
        f"{plan.max_concurrency:.2f} fit; the longest that fits alone is "
        f"{plan.longest_request_tokens:,} tokens",
    )
    grid.add_row(
        "Step",
        f"max_num_batched_tokens {plan.max_num_batched_tokens:,}, "
        f"max_num_seqs {plan.max_num_seqs:,}",
    )
    grid.add_row(
        "Units",
        f"scheduler {plan.scheduler_block_tokens:,}, hash {plan.hash_block_tokens:,}; "
        f"a hit ends on a multiple of {plan.hit_alignment_tokens:,} tokens",
    )
    return grid


def _longest_waste(plan: VllmResult) -> int:
    """Padding bytes that the longest request holds."""
    return sum(group.blocks_per_request * group.padding_bytes for group in plan.groups)


def _groups(plan: VllmResult) -> RenderableType:
    table = _table(
        ("group", True),
        ("holds", False),
        ("layers", True),
        ("block", True),
        ("page", True),
        ("used of a block", True),
        ("padding", True),
        ("per request", True),
        ("which", False),
    )
    for index, group in enumerate(plan.groups):
        table.add_row(
            str(index),
            f"{group.kind}{' (draft)' if group.draft else ''}",
            str(len(group.layers)),
            count(group.block_tokens),
            " + ".join(f"{page:,}" for page in group.page_bytes) + " B",
            size(group.content_bytes),
            size(group.padding_bytes),
            count(group.blocks_per_request),
            _layer_list(group),
        )
    return table


def _layer_list(group: GroupLine) -> str:
    numbers: list[str] = []
    for name in group.layers:
        found = [part for part in name.split(".") if part.isdigit()]
        numbers.append(found[0] if found else name)
    unique = list(dict.fromkeys(numbers))
    shown = ",".join(unique[:8])
    return shown if len(unique) <= 8 else f"{shown},..."


def _strides(plan: VllmResult) -> RenderableType:
    table = _table(
        ("tensor of group", True),
        ("layers", True),
        ("page", True),
        ("offset", True),
        ("next layer", True),
        ("next block", True),
        ("block b is", False),
    )
    for tensor in plan.tensors:
        table.add_row(
            str(tensor.group),
            str(tensor.layers),
            f"{tensor.page_bytes:,}",
            f"{tensor.offset_bytes:,}",
            f"{tensor.layer_stride_bytes:,}",
            f"{tensor.block_stride_bytes:,}",
            _units(tensor),
        )
    return table


def _units(tensor: Tensor) -> str:
    if tensor.unit_bytes is None or tensor.units_to_next_block is None:
        return ""
    step = f"{tensor.units_to_next_block:,}"
    return (
        f"{tensor.unit} {step} b ... {step} b + {tensor.units_per_page - 1:,} "
        f"({tensor.unit_bytes:,} B each)"
    )


def _costs(costs: Iterable[RequestCost], what: str) -> RenderableType:
    table = _table(("a request of", True), (what, True), ("bytes", True), ("fit at once", True))
    for cost in costs:
        blocks = " + ".join(count(blocks) for blocks in cost.blocks)
        table.add_row(f"{cost.tokens:,} tokens", blocks, size(cost.bytes), count(cost.concurrent))
    return table


def _sglang_answers(plan: SglangResult) -> RenderableType:
    grid = _grid()
    grid.add_row(
        "State slots",
        f"{plan.slots:,} (and one dummy) of {plan.slot_bytes:,} B: {size(plan.slots_bytes)}; "
        f"{plan.slots_per_request} a request",
    )
    if plan.intermediate_bytes:
        grid.add_row(
            "Verify states",
            f"{size(plan.intermediate_bytes)} charged, "
            f"{size(plan.intermediate_allocated_bytes)} allocated",
        )
    if plan.ring_bytes:
        grid.add_row("Verify ring", size(plan.ring_bytes))
    grid.add_row(
        "KV",
        f"{plan.kv_tokens:,} tokens of {plan.kv_bytes_per_token:,} B: {size(plan.kv_bytes)}",
    )
    grid.add_row(
        "Running",
        f"{plan.max_running_requests:,} requests, bound by {plan.binds}; slots alone allow "
        f"{plan.requests_by_slots:,}",
    )
    grid.add_row(
        "Ratio",
        f"{plan.ratio:g}; both pools would bind together at {plan.balanced_ratio:.3g} for requests "
        f"of {plan.context_tokens:,} tokens",
    )
    if plan.host_slots is not None:
        grid.add_row(
            "Host tier",
            f"{plan.host_slots:,} slots and {plan.host_kv_tokens:,} tokens, "
            f"{size(plan.host_bytes or 0)}; states cover {plan.host_coverage:.0%} of the KV at one "
            f"every {plan.track_grid_tokens} tokens",
        )
    if plan.pd_decode_slots:
        grid.add_row("PD decode", f"{plan.pd_decode_slots:,} slots")
    return grid


def _lengths(result: LengthsResult) -> list[RenderableType]:
    table = _table(
        (result.knob, False),
        ("requests at once", True),
        ("p5", True),
        ("p95", True),
        ("tokens cached", True),
        ("bound by", False),
    )
    for choice in result.choices:
        mark = " *" if choice.value == result.best else ""
        table.add_row(f"{choice.value}{mark}", *_run(choice.concurrency))
    if result.twin is not None:
        table.add_row("all-attention twin", *_run(result.twin))
    default = result.default
    said = (
        f"{result.name}: {default.mean:.1f} requests run at once ({default.p5} to {default.p95}, "
        f"{default.resamples} resamples, seed {default.seed})"
    )
    if result.gain > 1:
        said += f"; {result.knob} {result.best} would run {result.gain:.2f}x as many"
    else:
        said += f"; no other {result.knob} tried runs more"
    return [Text(said), table]


def _run(run: Concurrency) -> tuple[str, str, str, str, str]:
    bound = max(run.binds, key=lambda name: run.binds[name])
    return (
        f"{run.mean:.1f}",
        str(run.p5),
        str(run.p95),
        f"{round(run.tokens):,}",
        f"{bound} ({run.binds[bound]:.0%})",
    )


def _closing(boot_lines: tuple[str, ...], warnings: tuple[str, ...]) -> list[RenderableType]:
    parts: list[RenderableType] = ["", Text("The boot log will say", style="bold")]
    parts += [_indented(line) for line in boot_lines]
    if warnings:
        parts += ["", Text("Mind", style="bold")]
        parts += [_indented(sentence) for sentence in warnings]
    return parts


def _indented(line: str) -> RenderableType:
    return Padding(Text(line), (0, 0, 0, 2))
