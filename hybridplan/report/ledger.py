"""A Ledger on a terminal: one screen that answers, and the rest by flag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hybridplan.ledger.pattern import LEGEND
from hybridplan.ledger.result import Ledger, TokenCacheLine
from hybridplan.report.units import count, exact, layers, ratio, size


def screen(ledger: Ledger) -> list[RenderableType]:
    """The default answer."""
    parts: list[RenderableType] = [_head(ledger), *_answers(ledger), "", _caches(ledger)]
    parts += _replication(ledger)
    parts += ["", _contexts(ledger), "", _checkpoints(ledger), ""]
    parts += _costs(ledger)
    parts += _stages(ledger)
    parts += _notes(ledger)
    return parts


def comparison(ledgers: Sequence[Ledger]) -> list[RenderableType]:
    """Models side by side, one column each."""
    table = _table("")
    for ledger in ledgers:
        table.add_column(fill(ledger.model.name, 12), justify="right", overflow="fold")
    for title, cells in _comparison_rows(ledgers):
        table.add_row(title, *cells)
    asked = ledgers[0].deployment
    head = Text(f"{asked.engine}, tp {asked.tp}; bytes of one request on one rank")
    return [head, "", table]


def _head(ledger: Ledger) -> Text:
    model = ledger.model
    signs = "".join(_signs(model.pattern))
    legend = ", ".join(f"{sign} {LEGEND[sign]}" for sign in signs)
    text = Text()
    text.append(model.name, style="bold")
    text.append(f"  {layers(model.layers)}: {model.pattern}")
    text.append(f"  ({legend})\n", style="dim")
    longest = f"up to {model.max_tokens:,} tokens" if model.max_tokens else "no stated maximum"
    text.append(f"{_deployment(ledger)}\n{model.model_type}, {longest}")
    if model.confidence:
        text.append(f"; config: {model.confidence}", style="dim")
    return text


def _signs(pattern: str) -> list[str]:
    """Signs of LEGEND that a pattern uses, in order."""
    return list(dict.fromkeys(sign for sign in pattern.replace(" x ", " ") if sign in LEGEND))


def _deployment(ledger: Ledger) -> str:
    deployment = ledger.deployment
    version = f" {deployment.version}" if deployment.version else ""
    words = [f"{deployment.engine}{version}"]
    for name in ("tp", "pp", "dcp"):
        if getattr(deployment, name) > 1 or name == "tp":
            words.append(f"{name} {getattr(deployment, name)}")
    for name, dtype in (
        ("KV", deployment.kv_dtype),
        ("state", deployment.state_dtype),
        ("conv", deployment.conv_dtype),
    ):
        if dtype is not None:
            words.append(f"{name} {dtype}")
    if deployment.drafts:
        words.append(f"drafts {deployment.drafts}")
    return ", ".join(words)


def _answers(ledger: Ledger) -> Iterator[RenderableType]:
    per_token, request = ledger.per_token, ledger.per_request
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    grows = f"{count(per_token.bytes)} B"
    if per_token.windowed_bytes:
        grows += f", and {count(per_token.windowed_bytes)} B until the windows are full"
    if per_token.twin_bytes and ledger.model.recurrent_layers:
        grows += f"; its all-attention twin {count(per_token.twin_bytes)} B"
    grid.add_row("A token adds", grows)
    parts = [f"state {exact(request.state_bytes)}", f"conv {exact(request.conv_bytes)}"]
    if request.other_bytes:
        parts.append(f"other {exact(request.other_bytes)}")
    split = f": {', '.join(parts)}" if request.bytes else ""
    grid.add_row("A request holds", f"{exact(request.bytes)}{split}")
    crossover = ledger.crossover
    if crossover.tokens is None:
        grid.add_row("Crossover", f"none: {crossover.reason}")
    else:
        grid.add_row(
            "Crossover",
            f"{crossover.tokens:,} tokens; from there on it holds no more than the same model with "
            f"attention in all {crossover.twin_attention_layers} mixing layers",
        )
        moved = [
            f"{m.change} {m.tokens:,}" if m.tokens is not None else f"{m.change} none"
            for m in crossover.movers
        ]
        cancels = "" if "(" in ledger.model.pattern else "; the share of attention cancels out"
        grid.add_row("  it moves with", ", ".join(moved) + cancels)
    yield grid


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _caches(ledger: Ledger) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    tp = ledger.deployment.tp * ledger.deployment.pp
    for title in ("cache", "shape on a rank", "dtype"):
        table.add_column(title)
    for title in ("layers", "one layer", "all layers", *(("all ranks",) if tp > 1 else ())):
        table.add_column(title, justify="right")
    for line in ledger.token_caches:
        each = f"{count(line.bytes_per_entry)} B/{_entry(line)}"
        cells = [_cache_name(line), _shape(line), line.dtype, str(line.layers), each]
        cells.append(f"{count(line.bytes_per_token)} B/token")
        table.add_row(
            *cells, *((f"{count(line.total_bytes_per_token)} B/token",) if tp > 1 else ())
        )
    for state in ledger.states:
        shape = " x ".join(str(n) for n in state.shape)
        name = state.name if state.mixer == state.name else f"{state.mixer} {state.name}"
        cells = [name, shape, state.dtype, str(state.layers)]
        cells += [size(state.layer_bytes), size(state.bytes)]
        table.add_row(*cells, *((size(state.total_bytes),) if tp > 1 else ()))
    return table


def _cache_name(line: TokenCacheLine) -> str:
    return f"{line.name}, window {line.window_tokens:,}" if line.window_tokens else line.name


def _entry(line: TokenCacheLine) -> str:
    return "token" if line.tokens_per_entry == 1 else f"{line.tokens_per_entry} tokens"


def _shape(line: TokenCacheLine) -> str:
    heads = f"{line.heads} x " if line.heads > 1 or line.value_dim else ""
    both = f"({line.key_dim} + {line.value_dim})" if line.value_dim else f"{line.key_dim}"
    return heads + both


def _replication(ledger: Ledger) -> list[RenderableType]:
    if not ledger.replicated:
        return []
    return [Text(f"replicated: {'; '.join(ledger.replicated)}", style="dim")]


def _contexts(ledger: Ledger) -> RenderableType:
    if not ledger.model.recurrent_layers:
        table = _table("context", "one request")
        for line in ledger.contexts:
            table.add_row(f"{line.tokens:,}", size(line.hybrid_bytes))
        return table
    table = _table("context", "KV", "state", "hybrid", "all-attention twin", "twin / hybrid")
    for line in ledger.contexts:
        table.add_row(
            f"{line.tokens:,}",
            size(line.kv_bytes),
            size(line.fixed_bytes),
            size(line.hybrid_bytes),
            size(line.twin_bytes) if line.twin_bytes is not None else "-",
            f"{line.ratio:.2f}" if line.ratio is not None else "-",
        )
    return table


def _checkpoints(ledger: Ledger) -> RenderableType:
    held = ledger.checkpoints
    if not held.checkpoint_bytes:
        return Text("No state to checkpoint: a prefix is its KV alone.")
    table = _table("checkpoint every", "checkpoint", "KV of those tokens", "ratio", "state share")
    for cost in held.costs:
        table.add_row(
            f"{cost.every_tokens:,}",
            size(held.checkpoint_bytes),
            size(cost.kv_bytes),
            ratio(cost.ratio),
            f"{cost.state_share:.1%}" if cost.state_share is not None else "-",
        )
    return table


def _costs(ledger: Ledger) -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    spec = ledger.speculation
    drafts = "1 draft" if spec.drafts == 1 else f"{spec.drafts} drafts"
    for scheme in spec.schemes:
        grid.add_row(drafts, f"{scheme.name}: {size(scheme.extra_bytes)} more; {scheme.rule}")
        drafts = ""
    if spec.wider_conv_bytes:
        wider = f"the convolution window grows by {exact(spec.wider_conv_bytes)} in every state"
        grid.add_row(drafts, wider)
    for note in spec.notes:
        grid.add_row(drafts, note)
        drafts = ""
    if spec.draft_layers:
        grid.add_row(
            "MTP",
            f"drafting with the checkpoint's {layers(spec.draft_layers)} adds "
            f"{count(spec.draft_kv_bytes_per_token)} B/token",
        )
    moved = ledger.transfer.moved[-1]
    sent = f"{moved.tokens:,} tokens: {size(moved.kv_bytes)} KV + {size(moved.state_bytes)} state"
    if ledger.transfer.break_even_tokens:
        sent += f"; up to {ledger.transfer.break_even_tokens:,} tokens the state is the larger part"
    grid.add_row("Prefill to decode", sent)
    if ledger.checkpoints.checkpoint_bytes:
        kept = ledger.transfer.offload[-1]
        every = ledger.checkpoints.costs[-1].every_tokens
        grid.add_row(
            "Host offload",
            f"{kept.tokens:,} tokens, a state every {every:,}: {size(kept.host_bytes)}, "
            f"{kept.state_share or 0:.1%} of it states",
        )
    grid.add_row("Weights", _weights(ledger))
    yield grid


def _weights(ledger: Ledger) -> str:
    held = ledger.weights
    if not held.total_params:
        return "not counted"
    largest = sorted(held.components, key=lambda part: -part.bytes)
    parts = ", ".join(f"{part.name} {size(part.bytes)}" for part in largest if part.bytes)
    apart = [
        name
        for name, params in (
            ("draft", held.draft_params),
            ("tables", held.table_params),
            ("vision", held.vision_params),
        )
        if params
    ]
    without = f" without {' and '.join(apart)}" if apart else ""
    return (
        f"whole model, {held.method} {size(held.total_bytes)}: {parts}; {count(held.params)} "
        f"parameters{without}, {count(held.active_params)} of them active for a token"
    )


def _stages(ledger: Ledger) -> Iterator[RenderableType]:
    if len(ledger.stages) == 1:
        return
    table = _table("pipeline stage", "layers", "a token adds", "a request holds", "longest request")
    for number, stage in enumerate(ledger.stages):
        table.add_row(
            str(number),
            f"{stage.first} to {stage.last}",
            f"{count(stage.bytes_per_token)} B",
            size(stage.fixed_bytes),
            size(stage.longest_request_bytes),
        )
    yield ""
    yield table


def _notes(ledger: Ledger) -> Iterator[RenderableType]:
    for sentence in ledger.assumptions:
        yield Text(f"assumed: {sentence}")
    for note in (*ledger.model.notes, *ledger.weights.notes):
        yield Text(f"note: {note}", style="dim")


def _comparison_rows(ledgers: Sequence[Ledger]) -> Iterator[tuple[str, list[str]]]:
    yield "layers", [ledger.model.pattern for ledger in ledgers]
    yield "KV dtype", [ledger.deployment.kv_dtype or "-" for ledger in ledgers]
    yield "state dtype", [ledger.deployment.state_dtype or "-" for ledger in ledgers]
    yield "a token adds", [f"{count(ledger.per_token.bytes)} B" for ledger in ledgers]
    yield "state", [size(ledger.per_request.state_bytes) for ledger in ledgers]
    yield "conv", [size(ledger.per_request.conv_bytes) for ledger in ledgers]
    yield "a request holds", [size(ledger.per_request.bytes) for ledger in ledgers]
    yield "parameters", [count(ledger.weights.params) for ledger in ledgers]
    yield "active per token", [count(ledger.weights.active_params) for ledger in ledgers]
    yield "weights", [size(ledger.weights.total_bytes) for ledger in ledgers]
    yield "crossover, tokens", [_or_none(ledger.crossover.tokens) for ledger in ledgers]
    yield "break-even, tokens", [_or_none(ledger.transfer.break_even_tokens) for ledger in ledgers]
    lengths = list(dict.fromkeys(line.tokens for line in ledgers[0].contexts))
    for tokens in lengths:
        found = [[x for x in ledger.contexts if x.tokens == tokens] for ledger in ledgers]
        yield f"request of {tokens:,}", [size(x[0].hybrid_bytes) if x else "-" for x in found]
    for tokens in (cost.every_tokens for cost in ledgers[0].checkpoints.costs):
        costs = [
            next(cost for cost in ledger.checkpoints.costs if cost.every_tokens == tokens)
            for ledger in ledgers
        ]
        yield f"checkpoint / KV of {tokens:,}", [ratio(cost.ratio or None) for cost in costs]


def _or_none(value: int | None) -> str:
    return f"{value:,}" if value else "none"
