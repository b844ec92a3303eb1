#!/usr/bin/env python3
"""Deterministic synthetic request traces in the Marconi artifact's schema.

The published traces (about 700 MB packed) are on a file host and are not part
of the artifact's repository, so these stand in for them. Pure stdlib; the same
seed gives the same tokens on every Python 3.

    python make_traces.py OUT_DIR      # writes one JSONL per trace
"""

import json
import random
import sys
from pathlib import Path


def _poisson(rng, lam):
    """Knuth's method: enough for the small means used here."""
    import math

    limit, k, p = math.exp(-lam), 0, 1.0
    while True:
        p *= rng.random()
        if p <= limit:
            return k
        k += 1


def chat(seed, sessions, sps, turns, user, answer, preamble=6, limit=32_768):
    """Multi-turn chat: session i starts at i / sps; the next turn comes after the
    user typed their words at 90 words a minute (3/4 word a token). Every session
    opens with the same few template tokens."""
    rng = random.Random(seed)
    out = []
    for s in range(sessions):
        base, used = 1_000_000 * (s + 1), 0
        history, ts = list(range(preamble)), s / sps
        for turn in range(rng.randint(*turns)):
            u, a = rng.randint(*user), rng.randint(*answer)
            inp = history + list(range(base + used, base + used + u))
            ans = list(range(base + used + u, base + used + u + a))
            used += u + a
            if len(inp) > limit:
                break
            if turn:
                ts += 0.75 * u / 1.5
            out.append((ts, s, turn, inp, ans))
            history = inp + ans
    return _rows(out)


def agent(seed, sessions, sps, art, turns, system, obs, act, keep=5, limit=32_768):
    """Tool-using agent: a shared system prompt, one observation and one action a
    turn, a Poisson(art) pause. Once more than `keep` full rounds are there, the
    observation `keep` rounds back is dropped, so the prompt changes in its middle."""
    rng = random.Random(seed)
    out = []
    for s in range(sessions):
        base, used, ts = 1_000_000 * (s + 1), 0, s / sps
        rounds = []
        for turn in range(rng.randint(*turns)):
            history = [t for r in rounds for part in r for t in part]
            o, a = rng.randint(*obs), rng.randint(*act)
            user = list(range(base + used, base + used + o))
            if turn == 0:
                user = list(range(system)) + user
            ans = list(range(base + used + o, base + used + o + a))
            used += o + a
            if turn:
                ts += _poisson(rng, art)
            if len(history) + len(user) > limit:
                break
            out.append((ts, s, turn, history + user, ans))
            if sum(len(r) == 2 for r in rounds) >= keep + 1:
                rounds[-keep].pop(0)
            rounds.append([user, ans])
    return _rows(out)


def _rows(items):
    items.sort(key=lambda x: x[0])  # stable: ties keep session order
    return [
        {
            "session_id": s,
            "turn_id": t,
            "ts": ts,
            "num_input_tokens": len(i),
            "num_output_tokens": len(o),
            "input_tokens": i,
            "output_tokens": o,
        }
        for ts, s, t, i, o in items
    ]


TRACES = {
    "chat_long": lambda: chat(1, 40, 1.0, (10, 16), (20, 120), (100, 600)),
    "chat_short": lambda: chat(2, 60, 1.0, (10, 14), (10, 60), (20, 150)),
    "agent": lambda: agent(3, 16, 0.5, 5, (10, 24), 1200, (80, 1500), (40, 300)),
    "tiny": lambda: chat(4, 6, 1.0, (4, 6), (20, 60), (50, 200)),
}


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, make in TRACES.items():
        (out / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in make()))


if __name__ == "__main__":
    main()
