"""How much faster the replay is than the Marconi artifact's published simulator loop.

    python benchmarks/sim/marconi_replay.py --artifact DIR [--out FILE]

DIR is a checkout of GitHub ruipeterpan/marconi (commit 0801661; CC BY-NC 4.0, run and not
copied). Both run the same synthetic traces in one process on one core; Marconi's grid search is
the exception: the artifact spreads it over all cores, ours stays on one, and processor seconds
count the workers. Hit tokens of every
request and the final size are compared first; a speed-up is only given where all agree.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.replayed import MarconiConfig, ReplayedMarconi
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Prompt, Request

ROOT = Path(__file__).parents[2]
# As many sessions, rounds and gigabytes as published runs; the other traces are small.
PUBLISHED_SCALE = {
    "agent_100_sessions": ("agent", (11, 100, 1.0, 5, (10, 50), 1200, (80, 1500), (40, 300))),
    "chat_100_sessions": ("chat", (12, 100, 1.0, (10, 20), (20, 120), (100, 600))),
}
RUNS = (
    ("agent_100_sessions", 60_000_000_000, "static_alpha", 1.0),
    ("chat_100_sessions", 5_000_000_000, "marconi", 0.0),
    ("agent", 10_000_000_000, "marconi", 0.0),
    ("agent", 10_000_000_000, "static_alpha", 1.0),
    ("chat_short", 2_000_000_000, "marconi", 0.0),
    ("chat_short", 2_000_000_000, "static_alpha", 1.0),
    ("chat_short", 2_000_000_000, "sglang+", 0.0),
    ("chat_short", 2_000_000_000, "vllm+", 0.0),
)


def cpu_s() -> float:
    """Processor seconds of this process and of the workers it has waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_theirs(
    artifact: Any, rows: list[dict[str, Any]], capacity: int, policy: str, alpha: float
) -> tuple[float, list[int], int]:
    """(seconds, hit tokens of each request, bytes at the end) of the published loop."""
    version = {"sglang+": 1, "marconi": 2, "static_alpha": 3}.get(policy, 0)
    make = artifact.vllm if policy == "vllm+" else artifact.hybrid
    cache = make(
        capacity_bytes=capacity, evict_policy_version=version, eff_weight=alpha, block_size=32
    )
    hits = []
    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        for row in rows:
            hits.append(len(cache.match_prefix(row["input_tokens"])[0]))
            cache.insert(
                token_ids=row["input_tokens"] + row["output_tokens"],
                state_at_leaf=row["session_id"],
                state_at_branchoff=row["session_id"],
            )
    return time.perf_counter() - begin, hits, cache.get_tree_size()


def run_ours(
    rows: list[dict[str, Any]], capacity: int, policy: Any, alpha: float
) -> tuple[float, list[int], int]:
    """The same of our replay; reading the tokens is inside the time."""
    config = MarconiConfig(ModelCosts.from_paper(), capacity, policy, mode="artifact", alpha=alpha)
    engine = ReplayedMarconi(config, attribute_losses=False)
    begin = time.perf_counter()
    requests = (
        Request(
            str(index),
            Prompt(row["num_input_tokens"], 1, row["input_tokens"]),
            row["num_output_tokens"],
            sequence=Prompt(
                row["num_input_tokens"] + row["num_output_tokens"],
                1,
                row["input_tokens"] + row["output_tokens"],
            ),
        )
        for index, row in enumerate(rows)
    )
    hits = [outcome.hit_tokens for outcome in Replay(requests, engine)]
    return time.perf_counter() - begin, hits, engine.totals().bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artifact", required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    artifact = load(ROOT / "tests" / "conformance" / "marconi_artifact.py").load_artifact(
        args.artifact
    )
    traces = load(ROOT / "tests" / "golden" / "marconi" / "make_traces.py")
    made = {name: make() for name, make in traces.TRACES.items()}
    made |= {
        name: getattr(traces, kind)(*arguments)
        for name, (kind, arguments) in PUBLISHED_SCALE.items()
    }
    table = []
    for name, capacity, policy, alpha in RUNS:
        before = cpu_s()
        ours_s, our_hits, our_bytes = run_ours(made[name], capacity, policy, alpha)
        between = cpu_s()
        theirs_s, hits, held = run_theirs(artifact, made[name], capacity, policy, alpha)
        our_cpu_s, their_cpu_s = between - before, cpu_s() - between
        agree = (our_hits, our_bytes) == (hits, held)
        table.append(
            {
                "trace": name,
                "capacity_bytes": capacity,
                "policy": policy if policy != "static_alpha" else f"static_alpha={alpha}",
                "requests": len(hits),
                "agree": agree,
                "hybridplan_s": round(ours_s, 4),
                "artifact_s": round(theirs_s, 4),
                "hybridplan_cpu_s": round(our_cpu_s, 4),
                "artifact_cpu_s": round(their_cpu_s, 4),
                "times_as_fast": round(theirs_s / ours_s, 1) if agree else None,
                "times_less_cpu": round(their_cpu_s / our_cpu_s, 1) if agree else None,
            }
        )
    result = {
        "what": "hybridplan's replay against the Marconi artifact's simulator loop",
        "command": "python benchmarks/sim/marconi_replay.py",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rows": table,
    }
    text = json.dumps(result, indent=2) + "\n"
    sys.stdout.write(text)
    if args.out:
        args.out.write_text(text)
    return 0 if all(row["agree"] for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
