"""How much faster the replay is than driving SGLang's own tree over the same trace.

    python benchmarks/sim/sglang_replay.py --sglang-src DIR [--backend rust] [--out FILE]

DIR holds an unpacked sglang==0.5.23 wheel (tests/conformance/sglang_oracle.py says what else it
needs). Both run in one process on one core, on explicit tokens, one request at a time. Hits and
evictions of every event are compared first; a speed-up is only given where all agree.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridplan.sim.sglang.events import ScriptedReplay

ROOT = Path(__file__).parents[2]
STORED = ("t15_nb_agentic", "t16_eb_agentic", "t17_eb_agentic_chunked")
COMPARED = ("hit", "tracked", "evicted_states", "evicted_kv_tokens", "totals")


def load_oracle(sglang_src: str) -> Any:
    path = ROOT / "tests" / "conformance" / "sglang_oracle.py"
    spec = importlib.util.spec_from_file_location("sglang_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    oracle.bootstrap(sglang_src)
    logging.disable(logging.ERROR)
    return oracle


def agents(sessions: int = 40, turns: int = 8) -> dict[str, Any]:
    """Chats behind one system prompt, turn by turn, on pools that hold a part of them."""
    rng = random.Random(7)
    events, histories, fresh = [], [], 1_000_000
    for _ in range(sessions):
        histories.append([{"run": [0, 2000]}])
    for turn in range(turns):
        for session, history in enumerate(histories):
            asked, answered = rng.randint(100, 900), rng.randint(50, 500)
            history.append({"run": [fresh, asked]})
            output = [{"run": [fresh + asked, answered]}]
            name = f"{session}.{turn}"
            events.append({"op": "request", "rid": name, "input": list(history), "output": output})
            history += output
            fresh += asked + answered
    config = {"strategy": "extra_buffer", "kv_tokens": 60_000, "mamba_slots": 60}
    return {"name": "agents_320", "config": config, "events": events}


def timed(run: Callable[[], list[dict[str, Any]]], repeats: int) -> tuple[float, list[Any]]:
    """Median seconds, and what the last run answered."""
    seconds, answer = [], []
    for _ in range(repeats):
        begin = time.perf_counter()
        answer = run()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), answer


def measure(oracle: Any, trace: dict[str, Any], backend: str, repeats: int) -> dict[str, Any]:
    ours_s, ours = timed(lambda: list(ScriptedReplay(trace)), repeats)
    theirs_s, theirs = timed(lambda: oracle.run_events(trace, backend, nodes=False), repeats)
    differ = sum(
        any(a.get(key) != b.get(key) for key in COMPARED) for a, b in zip(ours, theirs, strict=True)
    )
    return {
        "trace": trace["name"],
        "events": len(ours),
        "events_that_differ": differ,
        "hybridplan_s": round(ours_s, 4),
        "sglang_s": round(theirs_s, 4),
        "times_as_fast": round(theirs_s / ours_s, 1) if not differ else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang-src", required=True)
    parser.add_argument("--backend", choices=["rust", "python"], default="rust")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    oracle = load_oracle(args.sglang_src)
    stored = ROOT / "tests" / "golden" / "sglang" / "traces"
    traces = [json.loads((stored / f"{name}.json").read_text()) for name in STORED]
    rows = [measure(oracle, trace, args.backend, args.repeats) for trace in [*traces, agents()]]
    result = {
        "what": f"hybridplan's replay against driving SGLang 0.5.23's own tree ({args.backend})",
        "command": f"python benchmarks/sim/sglang_replay.py --backend {args.backend}",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "repeats": args.repeats,
        "rows": rows,
    }
    text = json.dumps(result, indent=2) + "\n"
    sys.stdout.write(text)
    if args.out:
        args.out.write_text(text)
    return 1 if any(row["events_that_differ"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
