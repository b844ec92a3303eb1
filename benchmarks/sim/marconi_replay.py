"""How much faster the replay is than the Marconi artifact's published simulator loop.

    python benchmarks/sim/marconi_replay.py --artifact DIR [--out FILE]

DIR is a checkout of GitHub ruipeterpan/marconi (commit 0801661; CC BY-NC 4.0, run and not
copied). Both run the same synthetic traces in one process on one core; Marconi's grid search is
the exception: the artifact spreads it over all cores, ours stays on one, and processor seconds
count the workers. Runs come in pairs, one side right after the other, first one then the other
leading; given are medians over pairs, of the seconds and of each pair's ratio. Hit tokens of every
request and the final size are compared first; a speed-up is only given where all agree.

Where several alphas save as many FLOPs, the artifact takes that of the worker which ended first, so
that its own runs differ; here it waits for them in the order of its grid, and takes the smallest.

The replay is the whole of ours: requests made, driven, and an outcome for each. The loop is what
the artifact does and no more: look up and insert, token lists in, hit lengths out.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import io
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridplan.sim.marconi.artifact import ArtifactCache
from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.replayed import MarconiConfig, ReplayedMarconi
from hybridplan.sim.marconi.tuning import ArtifactMarconi
from hybridplan.sim.marconi.vllm_plus import VllmPlusCache
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.sequence import TokenSequence

ROOT = Path(__file__).parents[2]
# As many sessions, rounds and gigabytes as published runs; the other traces are small.
PUBLISHED_SCALE = {
    "agent_100_sessions": ("agent", (11, 100, 1.0, 5, (10, 50), 1200, (80, 1500), (40, 300))),
    "chat_100_sessions": ("chat", (12, 100, 1.0, (10, 20), (20, 120), (100, 600))),
}
RUNS = (
    ("agent_100_sessions", 60_000_000_000, "static_alpha", 1.0),
    ("agent_100_sessions", 60_000_000_000, "sglang+", 0.0),
    ("chat_100_sessions", 5_000_000_000, "marconi", 0.0),
    ("chat_100_sessions", 5_000_000_000, "sglang+", 0.0),
    ("chat_100_sessions", 5_000_000_000, "vllm+", 0.0),
    ("agent", 10_000_000_000, "marconi", 0.0),
    ("agent", 10_000_000_000, "static_alpha", 1.0),
    ("chat_short", 2_000_000_000, "marconi", 0.0),
    ("chat_short", 2_000_000_000, "static_alpha", 1.0),
    ("chat_short", 2_000_000_000, "sglang+", 0.0),
    ("chat_short", 2_000_000_000, "vllm+", 0.0),
)
FEWEST_PAIRS, MOST_PAIRS, ENOUGH_S = 3, 15, 10.0

Answer = tuple[list[int], int]  # hit tokens of each request, bytes at the end


@dataclass(frozen=True)
class Timed:
    wall_s: float
    cpu_s: float
    answer: Answer


def timed(run: Callable[[], Answer]) -> Timed:
    gc.collect()
    cpu, begin = cpu_s(), time.perf_counter()
    answer = run()
    return Timed(time.perf_counter() - begin, cpu_s() - cpu, answer)


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
) -> Answer:
    """The published loop."""
    version = {"sglang+": 1, "marconi": 2, "static_alpha": 3}.get(policy, 0)
    make = artifact.vllm if policy == "vllm+" else artifact.hybrid
    cache = make(
        capacity_bytes=capacity, evict_policy_version=version, eff_weight=alpha, block_size=32
    )
    hits = []
    with contextlib.redirect_stdout(io.StringIO()):
        for row in rows:
            hits.append(len(cache.match_prefix(row["input_tokens"])[0]))
            cache.insert(
                token_ids=row["input_tokens"] + row["output_tokens"],
                state_at_leaf=row["session_id"],
                state_at_branchoff=row["session_id"],
            )
    return hits, cache.get_tree_size()


def run_replay(rows: list[dict[str, Any]], capacity: int, policy: Any, alpha: float) -> Answer:
    """The same by our replay; making requests and reading their tokens is inside the time."""
    config = MarconiConfig(ModelCosts.from_paper(), capacity, policy, mode="artifact", alpha=alpha)
    engine = ReplayedMarconi(config, attribute_losses=False)
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
    return hits, engine.totals().bytes


def run_loop(rows: list[dict[str, Any]], capacity: int, policy: str, alpha: float) -> Answer:
    """The same by our caches alone; reading the tokens is inside the time."""
    costs = ModelCosts.from_paper()
    cache: ArtifactCache | VllmPlusCache
    server: ArtifactCache | VllmPlusCache | ArtifactMarconi
    if policy == "marconi":
        server = ArtifactMarconi(costs, capacity)
        cache = server.cache
    elif policy == "vllm+":
        server = cache = VllmPlusCache(costs, capacity)
    else:
        server = cache = ArtifactCache(costs, capacity, alpha, lru_leaves=policy == "sglang+")
    hits = [
        server.serve(
            TokenSequence.of_tokens(row["input_tokens"] + row["output_tokens"]),
            row["num_input_tokens"],
        )
        for row in rows
    ]
    return hits, cache.bytes


def compare(
    artifact: Any, rows: list[dict[str, Any]], capacity: int, policy: str, alpha: float
) -> dict[str, Any]:
    """One row of the table."""

    def ours() -> tuple[Timed, Timed]:
        return (
            timed(lambda: run_replay(rows, capacity, policy, alpha)),
            timed(lambda: run_loop(rows, capacity, policy, alpha)),
        )

    def theirs() -> Timed:
        return timed(lambda: run_theirs(artifact, rows, capacity, policy, alpha))

    replays: list[Timed] = []
    loops: list[Timed] = []
    published: list[Timed] = []
    while len(published) < MOST_PAIRS:
        if len(published) % 2:
            published.append(theirs())
            pair = ours()
        else:
            pair = ours()
            published.append(theirs())
        replays.append(pair[0])
        loops.append(pair[1])
        if len(published) >= FEWEST_PAIRS and sum(run.wall_s for run in published) > ENOUGH_S:
            break
    answers = [run.answer for run in (*replays, *loops, *published)]
    agree = all(answer == answers[0] for answer in answers)

    def median(values: list[float], digits: int = 4) -> float:
        return round(statistics.median(values), digits)

    def ratio(side: list[Timed], what: str) -> float | None:
        pairs = zip(published, side, strict=True)
        ratios = [getattr(their, what) / getattr(our, what) for their, our in pairs]
        return median(ratios, 1) if agree else None

    return {
        "requests": len(rows),
        "pairs": len(published),
        "agree": agree,
        "artifact_s": median([run.wall_s for run in published]),
        "artifact_cpu_s": median([run.cpu_s for run in published]),
        "replay_s": median([run.wall_s for run in replays]),
        "replay_cpu_s": median([run.cpu_s for run in replays]),
        "loop_cpu_s": median([run.cpu_s for run in loops]),
        "replay_times_as_fast": ratio(replays, "wall_s"),
        "replay_times_less_cpu": ratio(replays, "cpu_s"),
        "loop_times_as_fast": ratio(loops, "wall_s"),
        "loop_times_less_cpu": ratio(loops, "cpu_s"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artifact", required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    artifact = load(ROOT / "tests" / "conformance" / "marconi_artifact.py").load_artifact(
        args.artifact
    )
    sys.modules["config_tuner"].as_completed = iter  # type: ignore[attr-defined]
    traces = load(ROOT / "tests" / "golden" / "marconi" / "make_traces.py")
    table: list[dict[str, Any]] = []
    for name in dict.fromkeys(run[0] for run in RUNS):
        # One trace in memory at a time: the collector walks through all there are.
        if name in PUBLISHED_SCALE:
            kind, arguments = PUBLISHED_SCALE[name]
            rows = getattr(traces, kind)(*arguments)
        else:
            rows = traces.TRACES[name]()
        for _, capacity, policy, alpha in (run for run in RUNS if run[0] == name):
            named = policy if policy != "static_alpha" else f"static_alpha={alpha}"
            about = {"trace": name, "capacity_bytes": capacity, "policy": named}
            table.append(about | compare(artifact, rows, capacity, policy, alpha))
        del rows
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
