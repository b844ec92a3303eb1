"""``hybridplan explore``: one page whose sliders move a model and its pool."""

from __future__ import annotations

import shlex
from dataclasses import asdict

from hybridplan import __version__
from hybridplan.config.find import load
from hybridplan.config.spec import ModelSpec
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.pool import DoesNotFitError
from hybridplan.ledger.vllm.rules import rules_of
from hybridplan.report.page.assets import asset, escape, fill, script_json
from hybridplan.report.page.controls import EXAMPLES, STATE_FIELDS, controls
from hybridplan.report.page.of_model import of_model
from hybridplan.report.page.settings import ENGINE_RULES, Answer, Settings, answer
from hybridplan.report.units import size


def explore_page(
    spec: ModelSpec, deployment: Deployment, model: str, command: str, memory_gib: int = 80
) -> str:
    """The page as text; ``model`` is what the user called it, ``command`` what made the page.

    Raises RefusalError for a model that has caches without sliders, HybridplanError for a
    deployment that the engine or the model's shapes refuse.
    """
    start = of_model(spec, deployment, memory_gib)
    served = spec.architecture not in rules_of(ENGINE_RULES).unserved
    data = {
        "settings": asdict(start),
        "command": command,
        "command_model": shlex.quote(model),
        "served": served,
        "rules": ENGINE_RULES,
        "states": _states(start),
        "defaults": asdict(of_model(spec, Deployment("vllm", ENGINE_RULES))),
        "max_tokens": spec.max_tokens,
    }
    return fill(
        "explore.html",
        generator=f"hybridplan {__version__}",
        title=escape(f"{spec.name}: explore its memory"),
        style=asset("page.css"),
        model=escape(spec.name),
        lead=_lead(start, served),
        controls=controls(start),
        noscript=_noscript(start),
        footer=_footer(command),
        data=script_json(data),
        rules=asset("rules.js"),
        figures=asset("figures.js"),
        script=asset("explore.js"),
    )


def _states(start: Settings) -> dict[str, dict[str, object]]:
    """The shapes that each kind of state starts with: the model's own, else a published one."""
    found = {start.state_kind: start}
    for kind, model in EXAMPLES.items():
        if kind not in found:
            found[kind] = of_model(load(model), Deployment())
    return {
        kind: {name: getattr(settings, name) for name in STATE_FIELDS}
        for kind, settings in found.items()
    }


def _lead(s: Settings, served: bool) -> str:
    said = (
        "Move the model and its deployment; crossover, block size, padding and groups follow. "
        f"Figures are bytes on one rank by vLLM {ENGINE_RULES}'s rules on an H100 or H200, and "
        "start at the model's own shapes."
    )
    if not served:
        said += f" vLLM {ENGINE_RULES} has no class for this architecture; its rules are applied."
    return escape(said)


def _footer(command: str) -> str:
    return (
        f"hybridplan {escape(__version__)}, self-contained: this page loads nothing. Made by "
        f"<code>{escape(command)}</code>."
    )


def _noscript(start: Settings) -> str:
    """What the sliders would show first, for readers without scripts."""
    try:
        found = answer(start)
    except DoesNotFitError as error:
        inside = f"<p>{escape(error.sentence)}.</p>"
    else:
        inside = _facts(start, found)
    return (
        '<noscript><section class="panel"><h2>At the model\'s own shapes</h2>'
        f"<p>The sliders need scripts.</p>{inside}</section></noscript>"
    )


def _facts(start: Settings, found: Answer) -> str:
    crossing = "none" if found.crossover_tokens is None else f"{found.crossover_tokens:,} tokens"
    rows = (
        ("Crossover", crossing),
        ("Block", f"{found.block_tokens:,} tokens"),
        ("State", f"{found.state_bytes:,} B, padded to {found.padded_state_bytes:,} B"),
        ("Groups", " + ".join(f"{group.layers} {group.kind}" for group in found.groups)),
        ("A block id", size(found.bytes_per_block)),
        (f"A request of {start.context_tokens:,} tokens", f"{found.blocks_per_request:,} blocks"),
    )
    cells = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><tbody>{cells}</tbody></table>"
