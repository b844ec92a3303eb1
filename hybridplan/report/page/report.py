"""``hybridplan report``: a trace and a model on one page, from typed results alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from hybridplan import __version__
from hybridplan.ledger.planning.result import SglangResult, VllmResult
from hybridplan.ledger.result import Ledger
from hybridplan.report.page import svg
from hybridplan.report.page.assets import asset, escape, fill
from hybridplan.report.page.latency_figures import latency_section
from hybridplan.report.page.plan_figures import (
    groups_section,
    memory_section,
    plan_section,
    section,
)
from hybridplan.report.page.rate_figures import rates_section
from hybridplan.report.page.replay_figures import hits_section, losses_section, pool_section
from hybridplan.report.units import size
from hybridplan.sim.rates import RateCurve
from hybridplan.sim.result import SimulateResult


@dataclass(frozen=True, slots=True)
class ReportParts:
    """What the page shows. ``ledger`` is accounted at the contexts of the memory curve, ``command``
    is what made the page, ``rates`` exist where there is a clock and a rate to vary."""

    ledger: Ledger
    plan: VllmResult | SglangResult
    replay: SimulateResult
    command: str
    rates: RateCurve | None = None


def report_page(parts: ReportParts) -> str:
    """The page as text; the same parts give the same bytes."""
    replay, plan = parts.replay, parts.plan
    setup = replay.setup
    trace = PurePath(replay.trace.path).name
    words = [setup.rules, f"tp {setup.deployment.tp}"]
    if setup.deployment.drafts:
        words.append(f"{setup.deployment.drafts} drafts")
    lead = f"{trace}: {replay.requests:,} requests through {', '.join(words)}, {replay.arrival}."
    sections = [hits_section(replay), latency_section(replay.time), rates_section(parts.rates)]
    sections += [losses_section(replay), pool_section(replay)]
    sections.append(plan_section(plan))
    if isinstance(plan, VllmResult):
        sections.append(groups_section(plan))
    sections += [memory_section(parts.ledger), _trace_section(replay), _assumed(parts)]
    sections.append(_command(parts))
    partial = ""
    if replay.partial:
        said = f"Partial: the replay stopped after {replay.requests:,} requests."
        partial = f'<p class="alert">{escape(said)}</p>'
    return fill(
        "report.html",
        generator=f"hybridplan {__version__}",
        version=escape(__version__),
        title=escape(f"{setup.model} on {trace}"),
        style=asset("page.css"),
        heading=escape(f"{setup.model} on {trace}").replace("_", "_<wbr>"),
        lead=escape(lead),
        hatch=svg.HATCH_SVG,
        partial=partial,
        cards=_cards(parts),
        sections="\n".join(found for found in sections if found),
    )


def _cards(parts: ReportParts) -> str:
    replay, plan = parts.replay, parts.plan
    hits = replay.hits
    known = replay.trace.unit_tokens is not None and replay.requests > 0
    rate = f"{hits.usable_rate:.1%}" if known else "unknown"
    ceiling = (
        "" if hits.ceiling_rate is None or not known else f"of {hits.ceiling_rate:.1%} possible"
    )
    largest = replay.losses[0] if replay.losses and known else None
    if isinstance(plan, VllmResult):
        block = ("Block", f"{plan.block.tokens:,}", "tokens", _padding(plan))
        fit = f"{plan.max_concurrency:.2f}"
        each = f"of {plan.max_model_len:,} tokens"
    else:
        block = ("State slots", f"{plan.slots:,}", "", f"{size(plan.slot_bytes)} each")
        fit, each = f"{plan.max_running_requests:,}", f"bound by {plan.binds}"
    lost = f"{largest.share:.0%}" if largest else "none"
    cause = largest.cause.value.replace("_", " ") if largest else ""
    cards = (
        ("Usable hit", rate, "", ceiling),
        ("First cause of loss", lost, "of the loss" if largest else "", cause),
        block,
        ("Requests at once", fit, "", each),
    )
    return "".join(
        f'<div class="card"><dt>{escape(name)}</dt><dd>{escape(value)}'
        + (f' <span class="unit">{escape(unit)}</span>' if unit else "")
        + f'</dd><dd class="was">{escape(note)}</dd></div>'
        for name, value, unit, note in cards
    )


def _padding(plan: VllmResult) -> str:
    return f"state padding {plan.block.padding_percent:.2f}%" if plan.block.state_bytes else ""


def _trace_section(replay: SimulateResult) -> str:
    info = replay.trace
    facts = (
        ("format", info.format, info.chosen, ""),
        ("unit of prefix ids", info.unit.value, info.unit.how, info.unit.why),
        ("ids are valid in", info.id_scope.value, info.id_scope.how, info.id_scope.why),
        ("inputs", info.inputs.value, info.inputs.how, info.inputs.why),
        ("outputs", info.outputs.value, info.outputs.how, info.outputs.why),
        ("sessions", info.sessions.value, info.sessions.how, info.sessions.why),
        ("time unit", info.time_unit.value, info.time_unit.how, info.time_unit.why),
    )
    said = (
        f"{replay.requests:,} requests, {replay.prompt_tokens:,} prompt tokens and "
        f"{replay.output_tokens:,} output tokens were replayed."
    )
    heads = ("what", "value", "how it is known", "evidence")
    notes = "".join(
        f"<li>{escape(found.sentence)} ({found.count:,} times)</li>" for found in info.warnings
    )
    refused = "".join(
        f"<li>{found.requests:,} refused, the first {escape(found.first)}: {escape(found.reason)}"
        "</li>"
        for found in replay.refused
    )
    lists = f'<ul class="plain">{refused}{notes}</ul>' if refused or notes else ""
    return section(
        "trace", "The trace", said, svg.table(heads, facts, "What the reader found", wrap=3) + lists
    )


def _assumed(parts: ReportParts) -> str:
    said = dict.fromkeys((*parts.replay.assumptions, *parts.ledger.assumptions))
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in said)
    if not items:
        return ""
    lead = "What neither the trace nor the model states."
    return section("assumed", "Assumed", lead, f'<ul class="plain">{items}</ul>')


def _command(parts: ReportParts) -> str:
    said = "It makes the same page again."
    if parts.replay.time is None:
        said += (
            " With --calibration preset:CARD (or a FILE of hybridplan measure --save) and --arrival"
            " timed, the page shows latency too."
        )
    return section("command", "The command", said, f"<pre>{escape(parts.command)}</pre>")
