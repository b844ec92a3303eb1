"""vLLM's request log (--enable-log-requests), as text among other log lines.

Older versions put prompt and token ids on the "Received request" line; newer ones log them at
DEBUG on a "Request ... details" line before it. Output lengths come from "Generated response"
lines (--enable-log-outputs), streamed ones from their deltas; without one, the request's
``max_tokens`` stands in, a cap. The
log's dates have no year; arrivals count from the first request. --max-log-len cuts ids without a
mark, so equal greatest lengths are pointed out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.clock import iso_ns
from hybridplan.sim.traces.facts import BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.text import Texts, open_texts
from hybridplan.sim.traces.waiting import Queue

_STRING = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None)"""
_IDS = re.compile(r"prompt_token_ids: (\[[\d, ]*\]|None)")
_RECEIVED = re.compile(r"Received request (\S+): (?:prompt: " + _STRING + r", )?")
_DETAILS = re.compile(r"Request (\S+) details: prompt: " + _STRING)
_GENERATED = re.compile(
    r"Generated response (\S+?)(?: \(streaming (?P<kind>delta|complete)\))?"
    r"(?: details)?: (?:output: (?P<output>" + _STRING + r"))?"
)
_OUTPUT_IDS = re.compile(r"output_token_ids: (\[[\d, ]*\])")
_MAX_TOKENS = re.compile(r"max_tokens=(\d+)")
_DATE = re.compile(r"\b(?:(\d{4})-)?(\d\d)-(\d\d) (\d\d:\d\d:\d\d)(?:[.,](\d+))?")

HALF_YEAR_NS = 183 * 86400 * 10**9
LEAP_YEAR_NS = 366 * 86400 * 10**9

Known = tuple[str | None, tuple[int, ...]]


class VllmLog(Format):
    """Lines "Received request ID: ...", "Generated response ID: ..."."""

    name = "vllm-log"
    containers = ("log",)

    def matches(self, sample: Sample) -> bool:
        return re.search(rb"Received request \S+: |Request \S+ details: ", sample.head) is not None

    def plan(self, opening: Opening) -> Plan:
        head = opening.sample.head.decode(errors="replace")
        why = "prompt_token_ids of the log" if _IDS.search(head) else "tokens of the logged prompts"
        outputs = "actual" if "Generated response" in head else "cap"
        return Plan(
            "request log",
            unit=Fact("1", "read", why),
            tail=Fact("ceil", "format"),
            ids=Fact("unit", "format"),
            id_scope=opening.scope("file", "token ids of the served model"),
            time_unit=Fact("date", "read", "log dates, to the second, counted from the first"),
            clock_scope=Fact("global", "format"),
            outputs=Fact(outputs, "read", "max_tokens where no response is logged"),
        )

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return VllmLogRows(opening, plan, tally)


class VllmLogRows(Rows):
    """Requests in order of receipt; each waits for its response within the window."""

    def __init__(self, opening: Opening, plan: Plan, tally: Tally) -> None:
        super().__init__(tally)
        options = opening.options
        self._texts: Texts | None = None
        if options.tokenizer is not None or options.tokens_per_char is not None:
            self._texts = open_texts(opening)
        self._scope = opening.scope_name(plan.id_scope)
        self._queue = Queue(options.window)
        self._details: dict[str, Known] = {}
        self._deltas: dict[str, list[int]] = {}
        self._first_ns: int | None = None
        self._latest_ns = 0
        self._greatest = (0, 0)

    def read(self, row: Any) -> Sequence[Request]:
        details = _DETAILS.search(row)
        if details:
            self._details[details[1]] = _known(details[2], row[details.end() :])
            return ()
        received = _RECEIVED.search(row)
        if received:
            self._receive(row, received)
        else:
            generated = _GENERATED.search(row)
            if generated:
                self._respond(generated, row)
        return [request for _, request in self._queue.pop_ready()]

    def finish(self) -> Iterable[Request]:
        if self._greatest[1] > 2:
            self.tally.note(
                "cut-ids",
                f"{self._greatest[1]} prompts have the greatest length, {self._greatest[0]} ids; "
                "--max-log-len may have cut them",
            )
        return [request for _, request in self._queue.pop_ready(everything=True)]

    def _receive(self, row: str, received: re.Match[str]) -> None:
        name = received[1]
        if self._queue.get(name) is not None:
            raise BadRow(f"request {name} is received again before its response")
        text, ids = self._details.pop(name, (None, ()))
        if received[2] is not None:
            text, ids = _known(received[2], row[received.end() :])
        if ids:
            prompt = Prompt(len(ids), 1, ids, False, self._scope)
            times = self._greatest[1] + 1 if len(ids) == self._greatest[0] else 1
            self._greatest = max(self._greatest, (len(ids), times))
        elif text is not None and self._texts is not None:
            prompt, _, _ = self._texts.exchange(text, "")
        elif text is not None:
            raise BadRow("it logs text without token ids; say --tokenizer or --tokens-per-char")
        else:
            raise BadRow(
                "the log holds neither prompt nor token ids; newer versions log them with "
                "VLLM_LOGGING_LEVEL=DEBUG"
            )
        cap = _MAX_TOKENS.search(row, received.end())
        self._queue.add(name, Request(name, prompt, int(cap[1]) if cap else 0, self._arrival(row)))

    def _respond(self, generated: re.Match[str], row: str) -> None:
        name = generated[1]
        request = self._queue.get(name)
        if request is None:
            return
        listing = _OUTPUT_IDS.search(row, generated.end())
        ids = _ids(listing[1]) if listing else ()
        if generated["kind"] == "delta":
            self._deltas.setdefault(name, []).extend(ids)
            return
        ids = ids or tuple(self._deltas.pop(name, ()))
        text = ast.literal_eval(generated["output"]) if generated["output"] else None
        if ids:
            prompt = request.prompt
            sequence = None
            if prompt.unit_tokens == 1:
                whole = tuple(prompt.ids) + ids
                sequence = Prompt(len(whole), 1, whole, False, prompt.scope)
            request = replace(request, output_tokens=len(ids), sequence=sequence)
        elif text is not None and self._texts is not None:
            request = replace(request, output_tokens=self._texts.count(text))
        else:
            self.tally.note("output-cap", "a response's length is not logged; max_tokens is taken")
            return
        self._queue.settle(name, request)

    def _arrival(self, row: str) -> float | None:
        date = _DATE.search(row)
        if date is None:
            return None
        year, month, day, clock, fraction = date.groups()
        stamp = iso_ns(f"{year or 2000}-{month}-{day} {clock}.{fraction or 0}", "the log's date")
        if self._first_ns is None:
            self._first_ns = self._latest_ns = stamp
        while not year and self._latest_ns - stamp > HALF_YEAR_NS:
            stamp += LEAP_YEAR_NS
        self._latest_ns = stamp
        return (stamp - self._first_ns) / 10**9


def _known(literal: str, rest: str) -> Known:
    ids = _IDS.search(rest)
    return ast.literal_eval(literal), _ids(ids[1]) if ids and ids[1] != "None" else ()


def _ids(listing: str) -> tuple[int, ...]:
    return tuple(int(item) for item in listing[1:-1].split(",") if item.strip())
