"""A log of served requests with their times: what a calibration is fitted to.

Rows are JSON objects or CSV lines with the request's tokens and the stamps that vLLM keeps of it
(``RequestStateStats``: ``arrival_time``, ``queued_ts``, ``first_token_ts``, ``last_token_ts``), as
LLMServingSim's bench writes them; ``ttft_s`` and ``e2e_s`` do in place of the last two, as in the
files of ``simulate --per-request``. vLLM takes ``arrival_time`` from the date and the others from a
monotonic clock. The two differ by one number for a whole run; the least ``queued_ts -
arrival_time`` is taken for it, so that no request is queued before it arrives and one, at least, as
it arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridplan.errors import InputError
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.facts import BadRow
from hybridplan.sim.traces.records import container_of, records
from hybridplan.sim.traces.source import Source
from hybridplan.sim.traces.values import id_list, label, number, tokens

_INPUT = ("input_toks", "prompt_tokens", "input_tokens", "input_length")
_OUTPUT = ("output_toks", "output_tokens", "output_length")
_ARRIVAL = ("arrival_time", "arrival_s")
_QUEUED = ("queued_ts",)
_LEAST_DELAY_S = 60.0
_LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Logged:
    """A served request. Seconds count from the first arrival of the log."""

    request: Request
    first_token_s: float
    last_token_s: float

    @property
    def arrival_s(self) -> float:
        return self.request.arrival_s or 0.0

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> float:
        return self.last_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time between tokens; None for an output of one."""
        steps = self.request.output_tokens - 1
        return (self.last_token_s - self.first_token_s) / steps if steps > 0 else None


@dataclass(frozen=True, slots=True)
class RequestLog:
    """The requests of a log by arrival. ``clock`` says what arrivals were read from."""

    path: str
    requests: tuple[Logged, ...]
    clock: str


def read_log(path: str | Path) -> RequestLog:
    """Read a request log, plain or packed.

    Raises InputError naming the line and field for a row without tokens or stamps, for stamps that
    run backwards, and for a file without requests.
    """
    source = Source(path)
    rows: list[tuple[int, _Stamps]] = []
    for line, row in records(source, container_of(source)):
        try:
            rows.append((line, _stamps(row, len(rows))))
        except BadRow as error:
            raise InputError(
                f"{source.path}, line {line}: {error}; a calibration needs tokens, an arrival or "
                f"queued_ts, first_token_ts and last_token_ts of every request"
            ) from None
    if not rows:
        raise InputError(f"{source.path} holds no request")
    offset, clock = _clock([stamps for _, stamps in rows])
    arrivals = [_arrival(stamps, offset) for _, stamps in rows]
    start = min(arrivals)
    found = []
    for (line, stamps), arrival in zip(rows, arrivals, strict=True):
        if not arrival <= stamps.first <= stamps.last:
            raise InputError(
                f"{source.path}, line {line}: its arrival, first and last token are not in this "
                "order; are the stamps of one run and one unit?"
            )
        request = replace(stamps.request, arrival_s=arrival - start)
        found.append(Logged(request, stamps.first - start, stamps.last - start))
    names = {logged.request.request_id for logged in found}
    if len(names) < len(found):
        raise InputError(
            f"{source.path} has {len(found)} rows and {len(names)} request_ids among them; log one"
            " row a request"
        )
    found.sort(key=lambda logged: logged.arrival_s)
    return RequestLog(str(source.path), tuple(found), clock)


@dataclass(frozen=True, slots=True)
class _Stamps:
    request: Request
    arrival: float | None
    queued: float | None
    first: float
    last: float


def _stamps(row: Any, index: int) -> _Stamps:
    if isinstance(row, BadRow):
        raise row
    if not isinstance(row, Mapping):
        raise BadRow("it is no object with named fields")
    length = tokens(_of(row, _INPUT), _INPUT[0])
    output = tokens(_of(row, _OUTPUT), _OUTPUT[0])
    if not length or not output:
        raise BadRow("its prompt or output has no token")
    ids = id_list(row.get("input_tok_ids"), "input_tok_ids")
    if ids and len(ids) != length:
        raise BadRow(f"it has {len(ids)} input_tok_ids for {length} tokens")
    arrival, queued = _of(row, _ARRIVAL), _of(row, _QUEUED)
    if arrival is None and queued is None:
        raise BadRow("it has neither arrival_time nor queued_ts")
    return _Stamps(
        request=Request(
            label(row.get("request_id")) or str(index),
            Prompt(length, 1, ids, False, "log" if ids else ""),
            output,
        ),
        arrival=None if arrival is None else float(number(arrival, _ARRIVAL[0])),
        queued=None if queued is None else float(number(queued, _QUEUED[0])),
        first=_token(row, "first_token_ts", "ttft_s", arrival),
        last=_token(row, "last_token_ts", "e2e_s", arrival),
    )


def _token(row: Mapping[str, Any], name: str, since: str, arrival: Any) -> float:
    """When a token came: its stamp, or how long after the arrival."""
    stamp = _of(row, (name,))
    if stamp is None and arrival is not None and _of(row, (since,)) is not None:
        return float(number(arrival, _ARRIVAL[0])) + float(number(row[since], since))
    return float(number(stamp, name))


def _of(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _clock(rows: list[_Stamps]) -> tuple[float, str]:
    """Seconds from the arrivals' clock to the other stamps', and what was assumed of it."""
    if any(row.arrival is None for row in rows):
        return 0.0, "a request arrives when the engine queues it (no arrival_time)"
    delays = [
        row.queued - row.arrival
        for row in rows
        if row.queued is not None and row.arrival is not None
    ]
    if delays and not 0 <= min(delays) < _LEAST_DELAY_S:
        return min(delays), "two clocks, joined where the least delayed request was queued"
    if not delays and any(row.first - (row.arrival or 0.0) > _LONGEST_WAIT_S for row in rows):
        raise InputError(
            f"a first token comes more than {_LONGEST_WAIT_S:,.0f} s after its arrival and no row"
            " has queued_ts; are arrivals and tokens on one clock? log queued_ts too"
        )
    return 0.0, "arrivals and tokens are on one clock"


def _arrival(row: _Stamps, offset: float) -> float:
    if row.arrival is None:
        return row.queued or 0.0
    return row.arrival + offset
