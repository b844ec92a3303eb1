"""Usage exports of hosted APIs: prompt lengths with and without what the provider cached.

OpenAI's ``prompt_tokens`` include cached tokens. Anthropic's ``input_tokens`` exclude both cache
fields, so a prompt is the sum of three. What a provider cached is not read as prefix sharing:
it reflects that provider's cache, not the prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.facts import BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.values import label, shown, tokens

CACHE_FIELDS = ("cache_read_input_tokens", "cache_creation_input_tokens")


class Usage(Format):
    """``usage: {prompt_tokens, completion_tokens}`` or Anthropic's fields, nested or flat."""

    name = "usage"
    containers = ("json-lines", "json-values", "csv")

    def matches(self, sample: Sample) -> bool:
        return isinstance(sample.first.get("usage"), dict) or CACHE_FIELDS[0] in sample.keys

    def plan(self, opening: Opening) -> Plan:
        first = opening.sample.first
        inner = first.get("usage", first)
        anthropic = isinstance(inner, dict) and "input_tokens" in inner
        why = "input_tokens exclude both cache fields: the three are added"
        if not anthropic:
            why = "prompt_tokens include cached tokens"
        dialect = "anthropic" if anthropic else "openai"
        return Plan(dialect, inputs=Fact("cumulative", "format", why))

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return UsageRows(tally)


class UsageRows(Rows):
    """One request per row, lengths only."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(tally)
        self._count = 0

    def read(self, row: Any) -> Sequence[Request]:
        usage = row.get("usage", row)
        if not isinstance(usage, dict):
            raise BadRow(f"usage is {shown(usage)}, not an object (a streamed call without usage?)")
        if "input_tokens" in usage:
            length_tokens = tokens(usage["input_tokens"], "input_tokens")
            for name in CACHE_FIELDS:
                if usage.get(name) not in (None, ""):
                    length_tokens += tokens(usage[name], name)
            output_tokens = tokens(usage.get("output_tokens"), "output_tokens")
        else:
            length_tokens = tokens(usage.get("prompt_tokens"), "prompt_tokens")
            output_tokens = tokens(usage.get("completion_tokens"), "completion_tokens")
        request_id = label(row.get("id")) or str(self._count)
        self._count += 1
        return (Request(request_id, Prompt(length_tokens), output_tokens),)
