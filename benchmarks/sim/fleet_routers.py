"""What each router loses on the traces that ship with the tests: eight replicas, two models.

    python benchmarks/sim/fleet_routers.py [--limit N]

Timed arrival with step times of a datasheet (assumed). Nothing depends on the machine or on how
fast it is: the same version prints the same JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import hybridplan
from hybridplan.ledger.calibration import read_calibration
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.planning.ask import MemoryAsk
from hybridplan.sim.arrival import Timed
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.compare import compare_routers
from hybridplan.sim.fleet.result import FleetResult
from hybridplan.sim.fleet.run import OTHER_REPLICA
from hybridplan.sim.run import SimulateAsk
from hybridplan.sim.setup import EngineAsk, VllmFlags
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.load import flop_dtype
from hybridplan.sim.traces import open_trace

DATA = Path(__file__).parents[2] / "tests" / "data" / "traces"
REPLICAS = 8
TRACES = {
    "mooncake_conversation.jsonl.gz": None,
    "lmcache_agent_derived.jsonl.gz": 1.0,
}
MODELS = {"qwen3.5-0.8b": ("l4", 1), "qwen3-next-80b-a3b": ("h100", 4)}


def ask(trace: str, model: str, limit: int | None) -> FleetAsk:
    card, tp = MODELS[model]
    spec = hybridplan.load(model)
    engine = EngineAsk(
        spec,
        hybridplan.Deployment("vllm", "0.33", tp),
        VllmFlags(),
        MemoryAsk(gpu=find_gpu(card)),
    )
    name = f"preset:{card}"
    timing = TimeAsk(calibration=read_calibration(name, flop_dtype(spec)), calibration_name=name)
    opened = open_trace(DATA / trace, limit=limit)
    return FleetAsk(
        SimulateAsk(engine, opened, Timed(), TRACES[trace], timing=timing), replicas=REPLICAS
    )


def row(answer: FleetResult) -> dict[str, Any]:
    total, times = answer.total, answer.total.latencies
    lost = sum(loss.tokens for loss in answer.losses if loss.cause == OTHER_REPLICA)
    assert times is not None
    return {
        "hit_rate": round(total.hit_rate, 4),
        "elsewhere": round(lost / total.prompt_tokens, 4),
        "busiest": round(answer.imbalance.busy or 0.0, 2),
        "ttft_p50_s": round(times.ttft.p50_s, 4),
        "ttft_p99_s": round(times.ttft.p99_s, 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--limit", type=int)
    limit = parser.parse_args().limit
    cases = []
    for trace in TRACES:
        for model, (card, tp) in MODELS.items():
            compared = compare_routers(ask(trace, model, limit))
            first = compared.answers[0]
            assert first.ceiling_tokens is not None
            cases.append(
                {
                    "trace": trace,
                    "model": model,
                    "card": card,
                    "tp": tp,
                    "requests": first.total.requests,
                    "ceiling": round(first.ceiling_tokens / first.total.prompt_tokens, 4),
                    "one_pool": round(first.references[0].hit_rate, 4),
                    "routers": {one.router.kind: row(one) for one in compared.answers},
                }
            )
    result = {
        "what": f"{REPLICAS} replicas under every router; step times assumed from datasheets",
        "command": "python benchmarks/sim/fleet_routers.py"
        + (f" --limit {limit}" if limit else ""),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "version": hybridplan.__version__,
        "replicas": REPLICAS,
        "cases": cases,
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
