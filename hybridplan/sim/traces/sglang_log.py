"""SGLang's request log (--log-requests), JSON or text lines among others.

``request.finished`` (or "Finish:") carries ``meta_info`` with the true lengths and
``e2e_latency`` (s). The arrival is the ``request.received`` date of the same ``rid``, else the
finish date less the latency. Requests come out in order of receipt as far as the window reaches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.clock import iso_ns
from hybridplan.sim.traces.facts import BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.values import number, shown, tokens
from hybridplan.sim.traces.waiting import Queue

_EVENT = re.compile(r'"event":\s*"request\.(received|finished)')
_TEXT = re.compile(r"(Receive|Finish): obj=\w*ReqInput\(.*?rid='([^']*)'")
_META = {
    "prompt_tokens": re.compile(r"'prompt_tokens': (\d+)"),
    "completion_tokens": re.compile(r"'completion_tokens': (\d+)"),
    "e2e_latency": re.compile(r"'e2e_latency': ([\d.]+)"),
}
_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?")


class SglangLog(Format):
    """``request.received`` / ``request.finished`` events, or "Receive:" / "Finish:" lines."""

    name = "sglang-log"
    containers = ("log",)

    def matches(self, sample: Sample) -> bool:
        head = sample.head.decode(errors="replace")
        return bool(_EVENT.search(head) or _TEXT.search(head))

    def plan(self, opening: Opening) -> Plan:
        return Plan(
            "request log",
            unit=Fact("1", "read", "input_ids where the log level includes them, else none"),
            tail=Fact("ceil", "format"),
            ids=Fact("unit", "format"),
            id_scope=opening.scope("file", "token ids of the served model"),
            time_unit=Fact("date", "read", "log dates, counted from the first"),
            clock_scope=Fact("global", "format"),
            outputs=Fact("actual", "format", "completion_tokens"),
        )

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return SglangLogRows(opening, plan, tally)


class SglangLogRows(Rows):
    """One request per finish; a receipt holds its place in the order."""

    def __init__(self, opening: Opening, plan: Plan, tally: Tally) -> None:
        super().__init__(tally)
        self._queue = Queue(opening.options.window)
        self._scope = opening.scope_name(plan.id_scope)
        self._base_ns: int | None = None

    def read(self, row: Any) -> Sequence[Request]:
        event = _EVENT.search(row)
        if event:
            self._event(row, event[1])
        else:
            text = _TEXT.search(row)
            if text:
                meta = {name: found[1] for name, at in _META.items() if (found := at.search(row))}
                date = _DATE.search(row)
                done = text[1] == "Finish"
                self._one(text[2], done, date[0] if date else None, meta, None)
        return self._left(False)

    def finish(self) -> Iterable[Request]:
        return self._left(True)

    def _left(self, everything: bool) -> list[Request]:
        found = []
        for _, request in self._queue.pop_ready(everything):
            if request.output_tokens < 0:
                self.tally.note("unfinished", "a request was received and never finished; left out")
            else:
                found.append(request)
        return found

    def _event(self, row: str, kind: str) -> None:
        try:
            record = json.loads(row[row.index("{") :])
        except (ValueError, RecursionError) as error:
            raise BadRow(f"its event is no JSON ({error})") from None
        if not isinstance(record, dict):
            raise BadRow("its event is no JSON object")
        obj = record.get("obj")
        obj = obj if isinstance(obj, dict) else {}
        out = record.get("out")
        meta = out.get("meta_info") if isinstance(out, dict) else None
        rid = record.get("rid")
        if isinstance(rid, list):
            raise BadRow("it logs a batch of requests under one line")
        meta = meta if isinstance(meta, dict) else {}
        self._one(rid, kind == "finished", record.get("timestamp"), meta, obj.get("input_ids"))

    def _one(self, rid: Any, finished: bool, date: Any, meta: dict[str, Any], ids: Any) -> None:
        if not isinstance(rid, str):
            raise BadRow(f"rid is {shown(rid)}, not text")
        stamp_ns = iso_ns(date, "timestamp") if date is not None else None
        received = self._queue.get(rid)
        if not finished:
            if received is None:
                arrival_s = self._since_first(stamp_ns)
                self._queue.add(rid, Request(rid, Prompt(0), -1, arrival_s))
            return
        length_tokens = tokens(meta.get("prompt_tokens"), "prompt_tokens")
        output_tokens = tokens(meta.get("completion_tokens"), "completion_tokens")
        if received is None:
            latency = meta.get("e2e_latency")
            if stamp_ns is not None and latency is not None:
                stamp_ns -= round(number(latency, "e2e_latency") * 10**9)
            received = Request(rid, Prompt(0), -1, self._since_first(stamp_ns))
            self._queue.add(rid, received)
        prompt = self._prompt(length_tokens, ids)
        self._queue.settle(rid, replace(received, prompt=prompt, output_tokens=output_tokens))

    def _prompt(self, length_tokens: int, ids: Any) -> Prompt:
        if isinstance(ids, list) and len(ids) == length_tokens:
            if all(type(item) is int for item in ids):
                return Prompt(length_tokens, 1, tuple(ids), False, self._scope)
        elif ids is not None:
            self.tally.note(
                "cut-ids", "logged input_ids are cut or absent; the prompt shares nothing"
            )
        return Prompt(length_tokens)

    def _since_first(self, stamp_ns: int | None) -> float | None:
        if stamp_ns is None:
            return None
        if self._base_ns is None:
            self._base_ns = stamp_ns
        return (stamp_ns - self._base_ns) / 10**9
