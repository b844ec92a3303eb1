"""Outputs' ids, read off the next turn: an assumption, made only when asked for.

Prefix ids of most traces cover prompts only. When a later prompt of the same session starts with
all of this request's whole units and is at least prompt plus output long, it is *assumed* to
hold the output right behind the prompt; its ids then identify prompt plus output up to the last
whole unit. A session whose history was rewritten (reasoning dropped, context compacted) fails
one of the two conditions in general, and its outputs stay unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.waiting import Queue


def shown_sequence(request: Request, later: Prompt) -> Prompt | None:
    """Prompt plus output as a later prompt shows it, or None where the later prompt differs."""
    prompt = request.prompt
    length_tokens = prompt.length_tokens + request.output_tokens
    if (
        later.scope != prompt.scope
        or later.unit_tokens != prompt.unit_tokens
        or later.chained != prompt.chained
        or later.length_tokens < length_tokens
    ):
        return None
    whole = prompt.length_tokens // prompt.unit_tokens
    covered = length_tokens // prompt.unit_tokens
    if len(prompt.ids) < whole or len(later.ids) < covered or covered <= whole:
        return None
    if prompt.chained and whole and prompt.ids[whole - 1] != later.ids[whole - 1]:
        return None
    if not prompt.chained and prompt.ids[:whole] != later.ids[:whole]:
        return None
    return Prompt(
        length_tokens=length_tokens,
        unit_tokens=prompt.unit_tokens,
        ids=later.ids[:covered],
        chained=prompt.chained,
        scope=prompt.scope,
    )


def link_sessions(stream: Iterator[Request], window: int) -> Iterator[Request]:
    """Fill ``sequence`` from the session's next request; order is kept.

    A request waits for its session's next one while at most ``window`` requests are held.
    """
    queue = Queue(window)
    newest: dict[str, int] = {}
    for key, request in enumerate(stream):
        session = request.session
        if session is not None:
            before = newest.get(session)
            earlier = queue.get(before) if before is not None else None
            if before is not None and earlier is not None:
                queue.settle(before, _linked(earlier, request.prompt))
            newest[session] = key
        queue.add(key, request, settled=session is None)
        for left, done in queue.pop_ready():
            if done.session is not None and newest.get(done.session) == left:
                del newest[done.session]
            yield done
    for _, done in queue.pop_ready(everything=True):
        yield done


def _linked(request: Request, later: Prompt) -> Request:
    if request.sequence is not None:
        return request
    return replace(request, sequence=shown_sequence(request, later))
