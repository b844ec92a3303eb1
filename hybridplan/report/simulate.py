"""A replay on a terminal: the hit rate, where the rest went, and which flag would fix it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridplan.report import simulate_time
from hybridplan.report.units import size
from hybridplan.sim.advice import LEAST_GAIN
from hybridplan.sim.result import Advice, Setup, SimulateResult, Suggestion, Use

KINDS = {
    "full": "KV",
    "mla": "MLA KV",
    "sliding": "windowed KV",
    "chunked": "chunked KV",
    "ring": "state ring",
    "state": "states",
    "mamba_align": "states",
    "mamba_none": "states",
    "mamba_all": "states",
}


def screen(result: SimulateResult) -> list[RenderableType]:
    """The default answer: hits first, then causes and advice, then what the pool went through."""
    parts: list[RenderableType] = [_head(result), _set(result)]
    if result.partial:
        parts.append(
            Text(f"PARTIAL: stopped after {result.requests:,} requests", style="bold yellow")
        )
    parts += ["", _hits(result)]
    if result.time is not None:
        parts += simulate_time.screen(result.time)
    if result.losses:
        parts += ["", Text("Where the rest went", style="bold"), _losses(result)]
    parts += _advice(result)
    parts += ["", _use(result), _facts(result)]
    parts += _assumptions(result)
    return parts


def _head(result: SimulateResult) -> Text:
    text = Text()
    text.append(result.setup.model, style="bold")
    setup = result.setup
    words = [setup.rules, f"tp {setup.deployment.tp}"]
    if setup.deployment.drafts:
        words.append(f"drafts {setup.deployment.drafts}")
    if setup.policy != "engine":
        words.append(f"policy {setup.policy}")
    trace = PurePath(result.trace.path).name
    text.append(f"  {', '.join(words)}; {trace}")
    return text


def _set(result: SimulateResult) -> Table:
    setup = result.setup
    grid = _grid()
    grid.add_row("Pool", Text(pool_line(setup)))
    grid.add_row("Units", Text(_units(result)))
    grid.add_row("Arrival", Text(result.arrival))
    return grid


def pool_line(setup: Setup) -> str:
    """The pool of an engine, in one line."""
    unit = "token" if setup.block_tokens == 1 else f"block of {setup.block_tokens:,} tokens"
    block = f"{size(setup.bytes_per_block)} a {unit}"
    if setup.num_blocks is None:
        return f"unlimited (no --gpu, --kv-memory or --num-blocks given); {block}"
    total = size(setup.num_blocks * setup.bytes_per_block)
    source = ""
    if setup.memory is not None and setup.memory.gpu is not None:
        source = f" on {setup.memory.gpu}"
        source += ", allowances assumed" if setup.memory.how == "assumed" else ""
    slots = setup.settings.get("state_slots")
    if slots is None:
        return f"{setup.num_blocks:,} blocks, {total} a rank{source}; {block}"
    slot_bytes = setup.groups[-1].block_bytes
    return (
        f"{setup.num_blocks * setup.block_tokens:,} KV tokens ({total}) and {slots:,} state slots "
        f"({size(int(slots) * slot_bytes)}) a rank{source}"
    )


def _units(result: SimulateResult) -> str:
    setup, unit = result.setup, result.trace.unit_tokens
    known = "no prefix ids in the trace" if unit is None else f"the trace knows every {unit:,}"
    settings = setup.settings
    budget = settings.get("max_num_batched_tokens") or settings.get("chunked_prefill_size")
    step = f"a step has {budget:,} tokens"
    if settings.get("prefix_caching") is False:
        return f"prefix caching is off ({known}); {step}"
    return f"a hit ends on a multiple of {setup.hit_alignment_tokens:,} tokens ({known}); {step}"


def _hits(result: SimulateResult) -> Table:
    hits = result.hits
    grid = _grid()
    if not result.requests:
        refused = sum(found.requests for found in result.refused)
        none = f"none: not one request was replayed, {_requests(refused)} refused (see Refused)"
        grid.add_row("Usable hit", Text(none, style="bold"))
        return grid
    if result.trace.unit_tokens is None:
        unknown = "unknown: the trace has no prefix ids, so nothing tells which prompts start alike"
        grid.add_row("Usable hit", Text(unknown, style="bold"))
        prompts = f"{result.prompt_tokens:,} prompt tokens of {_requests(result.requests)}"
        grid.add_row("", f"all {prompts} count as new")
        return grid
    usable = f"{hits.usable_rate:.1%}: {hits.usable_tokens:,} of {result.prompt_tokens:,} prompt "
    usable += f"tokens, in {result.requests_hit:,} of {result.requests:,} requests"
    grid.add_row("Usable hit", Text(usable, style="bold"))
    if not hits.exact:
        grid.add_row("", Text(_bounds(result)))
    grid.add_row("KV-only hit", f"{hits.kv_rate:.1%}: {hits.kv_tokens:,}{_without_states(result)}")
    if hits.ceiling_tokens is not None and hits.ceiling_rate is not None:
        unit = result.trace.unit_tokens
        at = f", at the trace's {unit:,} tokens" if unit and unit > 1 else ""
        grid.add_row(
            "Ceiling", f"{hits.ceiling_rate:.1%}: {hits.ceiling_tokens:,}, an infinite cache{at}"
        )
        if not hits.ceiling_tokens:
            grid.add_row("", "no two prompts of the trace start alike")
    else:
        grid.add_row("Ceiling", "not followed (--no-causes)")
    return grid


def _without_states(result: SimulateResult) -> str:
    if result.states is None:
        return ""
    return ", had no state been needed"


def _bounds(result: SimulateResult) -> str:
    hits, unit = result.hits, result.trace.unit_tokens or 0
    hash_tokens = result.setup.hash_block_tokens
    why = f"{unit:,}-token ids do not tell what lies at {hash_tokens:,}-token edges"
    if hits.upper_tokens is None or hits.upper_rate is None:
        return f"a lower bound: {why}"
    if hits.upper_tokens == hits.usable_tokens:
        return f"{why}, and both readings of them give this"
    return f"the lower bound; the upper is {hits.upper_rate:.1%}: {hits.upper_tokens:,} ({why})"


def _losses(result: SimulateResult) -> RenderableType:
    table = _table(("tokens", True), ("of the loss", True), ("why", False))
    for loss in result.losses:
        table.add_row(f"{loss.tokens:,}", f"{loss.share:.1%}", loss.sentence)
    table.add_row(f"{result.lost_tokens:,}", "100.0%", "ceiling less usable hit", style="dim")
    return Padding(table, (0, 0, 0, 2))


def _advice(result: SimulateResult) -> list[RenderableType]:
    advice = result.advice
    if advice is None:
        return []
    parts: list[RenderableType] = ["", Text("What would help", style="bold")]
    if advice.suggestions:
        parts.append(Padding(_suggestions(advice), (0, 0, 0, 2)))
    else:
        parts.append(_indented(_nothing(advice, result)))
    if advice.requests and not advice.whole_trace:
        parts.append(
            _indented(
                f"re-run on the first {advice.requests:,} requests unless it says otherwise; "
                "--advice full re-runs the whole trace"
            )
        )
    without = _without_gain(advice)
    if without:
        parts.append(_indented(f"tried without gain: {without}"))
    if advice.note:
        parts.append(_indented(advice.note))
    return parts


def _without_gain(advice: Advice) -> str:
    return ", ".join(
        f"{' '.join(found.flags)} ({found.base_rate:.1%} -> {found.hit_rate:.1%})"
        for found in advice.tried
        if found.hit_rate - found.base_rate < LEAST_GAIN
    )


def _nothing(advice: Advice, result: SimulateResult) -> str:
    if result.lost_tokens < LEAST_GAIN * result.prompt_tokens:
        return "next to nothing is lost, so no flag is worth setting"
    if not advice.tried:
        return "no flag answers these causes"
    return "nothing that was tried gains 0.1 points"


def _suggestions(advice: Advice) -> Table:
    table = _table(("hit rate", False), ("of the loss", True), ("with", False), ("", False))
    for found in advice.suggestions:
        won = "" if found.recovered is None else f"{found.recovered:.0%} back"
        table.add_row(
            f"{found.base_rate:.1%} -> {found.hit_rate:.1%}",
            won,
            Text("\n".join(found.flags)),
            Text(_meaning(found, advice)),
        )
    return table


def _meaning(found: Suggestion, advice: Advice) -> str:
    words = [found.why]
    if found.price:
        words.append(f"price: {found.price}")
    if found.requests != advice.requests:
        words.append("re-run on the whole trace")
    return "; ".join(words)


def _use(result: SimulateResult) -> RenderableType:
    bounded = result.num_blocks is not None
    table = _table(
        ("Blocks held by requests", False),
        ("groups", True),
        ("layers", True),
        ("peak", True),
        ("mean", True),
        ("taken in all", True),
    )
    for use, groups, layers in _merged(result):
        peak = f"{use.peak_blocks:,}"
        if bounded and result.num_blocks and use.kind != "state":
            peak += f" ({use.peak_blocks / result.num_blocks:.1%})"
        table.add_row(
            KINDS.get(use.kind, use.kind),
            str(groups),
            str(layers),
            peak,
            f"{use.mean_blocks:,.1f}",
            f"{use.allocated_blocks:,}",
        )
    return table


def _merged(result: SimulateResult) -> Iterable[tuple[Use, int, int]]:
    """Groups of one kind with the same figures make one row."""
    rows: dict[tuple[object, ...], tuple[Use, int, int]] = {}
    for use, group in zip(result.use, result.setup.groups, strict=True):
        key = (use.kind, use.peak_blocks, use.mean_blocks, use.allocated_blocks)
        known = rows.get(key, (use, 0, 0))
        rows[key] = (use, known[1] + 1, known[2] + group.layers)
    return rows.values()


def _facts(result: SimulateResult) -> Table:
    grid = _grid()
    if result.states is not None and result.states.kept:
        states = result.states
        line = f"{states.kept:,} kept, {states.ever_hit:,} ever hit, {states.useless:,} useless"
        line += f" ({states.useless / states.kept:.0%})"
        if states.bytes_per_state:
            line += (
                f"; {size(states.bytes_per_state)} each, {size(states.kept_bytes)} over the replay"
            )
        grid.add_row("States", line)
    elif result.states is not None:
        grid.add_row("States", "none kept")
    if result.num_blocks is None:
        kept = f"none; the cache ends with {result.held_blocks:,} blocks, {size(result.held_bytes)}"
        grid.add_row("Evictions", kept)
    else:
        grid.add_row("Evictions", f"{result.evictions:,} blocks")
    queue = result.queue
    grid.add_row(
        "Queue",
        f"at most {queue.peak_running:,} running and {queue.peak_waiting:,} waiting; "
        f"{_requests(queue.requests_waited)} waited{_waited(result)}",
    )
    if queue.preemptions:
        grid.add_row(
            "Preemptions",
            f"{queue.preemptions:,}; {queue.recomputed_tokens:,} tokens computed twice",
        )
    for refused in result.refused:
        grid.add_row(
            "Refused",
            Text(f"{_requests(refused.requests)}; the first, {refused.first}: {refused.reason}"),
        )
    return grid


def _waited(result: SimulateResult) -> str:
    queue = result.queue
    if queue.waited_s is not None and result.time is None:
        mean = queue.waited_s / max(result.requests, 1)
        return (
            f"; {mean:,.2f} s from arrival to start on average; the replay ended after "
            f"{queue.elapsed_s or 0:,.0f} s"
        )
    if not queue.requests_waited:
        return ""
    return f", {queue.waited_steps / queue.requests_waited:,.1f} steps on average"


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number:,} requests"


def _assumptions(result: SimulateResult) -> list[RenderableType]:
    said = [line for line in result.assumptions if not line.startswith("arrival ")]
    if not said:
        return []
    return ["", Text("Assumed", style="bold"), *(_indented(line) for line in said)]


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    return grid


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for title, right in columns:
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    return table


def _indented(line: str) -> RenderableType:
    return Padding(Text(line), (0, 0, 0, 2))
