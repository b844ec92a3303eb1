"""The ledger and the plan as HTML sections with figures drawn to scale."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from hybridplan.ledger.planning.result import GroupLine, Memory, SglangResult, VllmResult
from hybridplan.ledger.result import Ledger
from hybridplan.report.page import svg
from hybridplan.report.page.assets import escape
from hybridplan.report.simulate import KINDS
from hybridplan.report.units import count, size

_WINDOWED = ("sliding", "chunked")
_KV = ("full", "mla")
_TABLE_CONTEXTS = (1_024, 4_096, 16_384, 65_536, 131_072, 262_144, 1_048_576)


def kind_class(kind: str) -> str:
    """The colour of what a group holds."""
    return "full" if kind in _KV else "window" if kind in _WINDOWED else "state"


def kind_name(kind: str) -> str:
    """What a group holds, in words; kinds that are no attention are states."""
    return KINDS.get(kind, "states")


def memory_section(ledger: Ledger) -> str:
    """Memory of one request against its context, with the crossover."""
    cross = ledger.crossover
    lines = ledger.contexts
    hybrid = ledger.model.recurrent_layers > 0 and ledger.crossover.twin_attention_layers > 0
    twin = hybrid and all(line.twin_bytes is not None for line in lines)
    meeting = (
        f"it holds less than with attention in every layer from {cross.tokens:,} tokens on"
        if cross.tokens is not None
        else f"no crossover: {cross.reason}"
    )
    fixed = size(ledger.per_request.bytes)
    said = (
        f"A request holds {fixed} at any length and {count(ledger.per_token.bytes)} B more with "
        f"each token, on one rank; {meeting}."
    )

    def draw(width: int) -> tuple[int, str]:
        values = [line.hybrid_bytes for line in lines]
        values += [line.twin_bytes or 0 for line in lines] if twin else []
        low, high = _octaves(min(v for v in values if v), max(values))
        first, last = lines[0].tokens, lines[-1].tokens
        axes = svg.Axes(width, (first, last), (low, high), height=340, log_x=True, log_y=True)
        x_ticks = svg.thinned(_powers(first, last), 9 if width > svg.ROOMY else 4)
        y_ticks = svg.thinned(_powers(low, high), 7)
        parts = [
            axes.frame(
                [(n, _short(n)) for n in x_ticks],
                [(n, size(n).replace(".00 ", " ").replace(".0 ", " ")) for n in y_ticks],
                "context, tokens",
            )
        ]
        if twin:
            points = [(axes.x(li.tokens), axes.y(li.twin_bytes or 0)) for li in lines]
            parts.append(svg.curve(points, "twin"))
        parts.append(
            svg.curve([(axes.x(li.tokens), axes.y(li.hybrid_bytes)) for li in lines], "full")
        )
        if cross.tokens is not None and first <= cross.tokens <= last:
            at = axes.x(cross.tokens)
            parts.append(svg.line(at, axes.top, at, axes.height - axes.bottom, "mark"))
            words = f"crossover {cross.tokens:,}"
            middle = min(max(at, axes.left + 60), width - axes.right - 60)
            parts.append(svg.text(middle, axes.top - 5, words, "middle", "strong"))
        return axes.height, "".join(parts)

    entries = [("curve full", "this model")]
    if twin:
        entries.append(("curve twin", "the same with attention in every layer"))
    rows = [
        (
            f"{line.tokens:,}",
            size(line.kv_bytes),
            size(line.fixed_bytes),
            size(line.hybrid_bytes),
            "-" if line.twin_bytes is None else size(line.twin_bytes),
        )
        for line in lines
        if line.tokens in _TABLE_CONTEXTS or line.tokens == lines[-1].tokens
    ]
    heads = ("context", "grows", "fixed", "together", "attention everywhere")
    return section(
        "memory",
        "Memory of one request against its context",
        said,
        svg.legend(entries)
        + svg.figure(said, draw)
        + svg.folded(
            "The same as a table", svg.table(heads, rows, "Bytes of one request by context")
        )
        + svg.folded("What every layer holds", _holdings(ledger)),
    )


def _holdings(ledger: Ledger) -> str:
    rows = [
        (
            f"{line.name} x {line.layers} layers",
            f"{line.heads} x ({line.key_dim} + {line.value_dim})",
            line.dtype,
            f"{count(line.bytes_per_token)} B a token",
        )
        for line in ledger.token_caches
    ]
    rows += [
        (
            f"{line.name} ({line.mixer}) x {line.layers} layers",
            " x ".join(map(str, line.shape)),
            line.dtype,
            f"{size(line.bytes)} a request",
        )
        for line in ledger.states
    ]
    return svg.table(("what", "shape on a rank", "dtype", "all layers"), rows, ledger.model.name)


def plan_section(plan: VllmResult | SglangResult) -> str:
    """The pool: where its bytes come from, the block, and what fits."""
    if isinstance(plan, SglangResult):
        said = (
            f"{plan.slots:,} state slots of {size(plan.slot_bytes)} and {plan.kv_tokens:,} KV "
            f"tokens of {count(plan.kv_bytes_per_token)} B; {plan.max_running_requests:,} "
            f"requests run at once, bound by {plan.binds}."
        )
        parts = _split(
            "the two pools",
            [("fill-state", "state slots", plan.slots_bytes), ("fill-full", "KV", plan.kv_bytes)],
        )
    else:
        said = (
            f"{plan.num_blocks:,} blocks of {size(plan.bytes_per_block)}, one of them the null "
            f"block. A block has {plan.block.tokens:,} tokens: {plan.block.reason}. A request of "
            f"{plan.max_model_len:,} tokens takes {plan.blocks_per_request:,} blocks, so "
            f"{plan.max_concurrency:.2f} fit."
        )
        parts = ""
    costs = svg.table(
        ("a request of", "takes", "fit at once"),
        [
            (f"{cost.tokens:,} tokens", size(cost.bytes), f"{cost.concurrent:,}")
            for cost in plan.costs
        ],
        "What requests take of the pool",
    )
    boot = "".join(f"{escape(line)}\n" for line in plan.boot_lines)
    extra = svg.folded("What the boot log will say", f"<pre>{boot}</pre>") if boot else ""
    mind = "".join(f"<li>{escape(sentence)}</li>" for sentence in plan.warnings)
    if mind:
        extra = f'<h3>Mind</h3><ul class="plain">{mind}</ul>' + extra
    return section("plan", "The pool", said, _memory(plan.memory) + parts + costs + extra)


def _memory(memory: Memory) -> str:
    if memory.usable_bytes is None:
        words = f"{size(memory.available_bytes)} for the cache of a rank, as given."
        return f'<p class="note">{escape(words)}</p>'
    parts = [("fill-other", part.name, int(part.value)) for part in memory.parts if part.value]
    cache = ("fill-full", "cache", memory.available_bytes)
    notes = "; ".join(f"{part.name} {part.how}" for part in memory.parts if part.value)
    return _split(f"usable memory of {memory.gpu}", [*parts, cache]) + (
        f'<p class="note">{escape(notes)}.</p>'
    )


def _split(what: str, parts: list[tuple[str, str, int]]) -> str:
    total = sum(part[2] for part in parts)
    said = f"{what}: " + ", ".join(f"{name} {size(value)}" for _, name, value in parts)

    def draw(width: int) -> tuple[int, str]:
        drawn, x = [], 0.0
        for look, _, value in parts:
            share = width * value / max(total, 1)
            drawn.append(svg.rect(x, 0, share, 34, look))
            x += share
            drawn.append(svg.line(x, 0, x, 34, "seam"))
        return 34, "".join(drawn)

    names = "".join(
        f"<li>{escape(f'{name} {size(value)}')}</li>" for _, name, value in parts if value
    )
    return (
        f"<h3>{escape(what[:1].upper() + what[1:])}, from the left</h3>"
        + svg.figure(said, draw)
        + f'<ul class="legend">{names}</ul>'
    )


def groups_section(plan: VllmResult) -> str:
    """The groups, one box a layer, to scale."""
    rows = _alike(plan.groups)
    waste = sum(group.padding_bytes for group in plan.groups)
    share = waste / (plan.bytes_per_block * len(plan.groups))
    number = len(plan.groups)
    cut = f"{number} groups share one pool" if number > 1 else "There is one group"
    said = (
        f"{cut}. A block id stands for {size(plan.bytes_per_block)}; averaged over the groups, "
        f"{share:.2%} of it is empty. Bars are drawn to scale, one box a layer."
    )

    def draw(width: int) -> tuple[int, str]:
        narrow = width < svg.ROOMY
        left = 0 if narrow else 190
        pitch, bar = (72, 38) if narrow else (54, 38)
        room = width - left
        parts = []
        for index, (first, last, group) in enumerate(rows):
            y = index * pitch + (24 if narrow else 4)
            name = f"Group {first}" if first == last else f"Groups {first} to {last}"
            holds = f"{len(group.layers)} layers, {kind_name(group.kind)}"
            if narrow:
                parts.append(svg.text(0, y - 7, f"{name}: {holds}", name="strong"))
            else:
                parts.append(svg.text(0, y + 16, name, name="strong"))
                parts.append(svg.text(0, y + 33, holds))
            parts.append(svg.rect(left, y, room, bar, "hatched"))
            parts += _boxes(plan, group, first, left, room, y, bar)
            parts.append(svg.rect(left, y, room, bar, "frame"))
        return len(rows) * pitch + 6, "".join(parts)

    kinds = dict.fromkeys(kind_class(group.kind) for _, _, group in rows)
    names = {"full": "KV", "window": "windowed KV", "state": "states"}
    entries = [(f"fill-{kind}", names[kind]) for kind in kinds]
    heads = ("group", "holds", "layers", "tokens a block", "page", "filled", "empty", "a request")
    body = [
        (
            str(first) if first == last else f"{first}-{last}",
            kind_name(group.kind) + (" (draft)" if group.draft else ""),
            str(len(group.layers)),
            f"{group.block_tokens:,}",
            " + ".join(f"{page:,} B" for page in group.page_bytes),
            size(group.content_bytes),
            size(group.padding_bytes),
            f"{group.blocks_per_request:,}",
        )
        for first, last, group in rows
    ]
    caption = "Per block id; the last column is the blocks one longest request takes"
    return section(
        "groups",
        "Groups and pages",
        said,
        svg.legend([*entries, ("hatched", "empty")])
        + svg.figure(said, draw)
        + svg.table(heads, body, caption),
    )


def _alike(groups: tuple[GroupLine, ...]) -> list[tuple[int, int, GroupLine]]:
    """Neighbours that differ in nothing but their layers, as one row."""

    def look(pair: tuple[int, GroupLine]) -> tuple[object, ...]:
        group = pair[1]
        return group.kind, len(group.layers), group.page_bytes, group.draft, group.block_tokens

    rows = []
    for _, found in groupby(enumerate(groups), look):
        members = list(found)
        rows.append((members[0][0], members[-1][0], members[0][1]))
    return rows


def _boxes(
    plan: VllmResult, group: GroupLine, index: int, left: float, room: float, y: float, bar: float
) -> Iterable[str]:
    pages = [t.page_bytes for t in plan.tensors if t.group == index for _ in range(t.layers)]
    filled = group.content_bytes / max(sum(pages), 1)
    scale = room / plan.bytes_per_block
    x = left
    for page in pages:
        yield svg.rect(x, y, page * filled * scale, bar, f"fill-{kind_class(group.kind)}")
        x += page * scale
        if page * scale > 5:
            yield svg.line(x, y, x, y + bar, "seam")


def section(name: str, title: str, said: str, inside: str) -> str:
    """One panel of the page: a heading, a sentence that answers, and HTML below it."""
    return (
        f'<section class="panel" aria-labelledby="h-{name}"><h2 id="h-{name}">{escape(title)}</h2>'
        f'<p class="note">{escape(said)}</p>{inside}</section>'
    )


def _octaves(low: int, high: int) -> tuple[int, int]:
    bottom = 1 << (max(low, 1).bit_length() - 1)
    top = 1 << max(high - 1, 1).bit_length()
    return bottom, max(top, 2 * bottom)


def _powers(low: int, high: int) -> list[int]:
    return [1 << n for n in range(64) if low <= 1 << n <= high]


def _short(tokens: int) -> str:
    if tokens >= 1 << 20:
        return f"{tokens >> 20}M"
    return f"{tokens >> 10}k" if tokens >= 1024 else str(tokens)
