"""A million synthetic requests through the vLLM replay: CPU seconds and memory that stays put.

    python benchmarks/sim/million_requests.py [--requests N]

Requests come from a generator, one at a time: 600 to 2,599 prompt tokens, the first 1,024 of them
one of 2,000 prefixes, the rest their own. Qwen3.5-0.8B in a pool of 2,904 blocks (what an L4 has),
one request in flight, no ceiling or causes. Resident memory is the process's peak after each
twentieth of the run; the run fails if the last is more than a tenth above the second. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

import hybridplan
from hybridplan.sim import Prompt, Request
from hybridplan.sim.replay import Progress
from hybridplan.sim.setup import EngineAsk, VllmFlags, build

UNIT_TOKENS = 512
PREFIXES = 2_000
NUM_BLOCKS = 2_904
SHARED_UNITS = 2
MARKS = 20


def requests(count: int) -> Iterator[Request]:
    rng = Random(7)
    for index in range(count):
        length = rng.randrange(600, 2600)
        first = rng.randrange(PREFIXES) * SHARED_UNITS
        own = (PREFIXES + index) * 8
        units = -(-length // UNIT_TOKENS)
        ids = [first + k if k < SHARED_UNITS else own + k for k in range(units)]
        yield Request(str(index), Prompt(length, UNIT_TOKENS, ids, True), rng.randrange(1, 60))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    count = parser.parse_args().requests
    ask = EngineAsk(
        hybridplan.load("qwen3.5-0.8b"),
        hybridplan.Deployment("vllm", "0.33"),
        VllmFlags(num_blocks=NUM_BLOCKS),
    )
    peaks_kib: list[int] = []

    def see(progress: Progress) -> None:
        if progress.finished % max(count // MARKS, 1) == 0:
            peaks_kib.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    start = time.process_time()
    engine = build(ask).engine(losses=False)
    summary = hybridplan.simulate(requests(count), engine, progress=see)
    seconds = time.process_time() - start
    result = {
        "benchmark": "million_requests",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": f"python benchmarks/sim/million_requests.py --requests {count}",
        "python": platform.python_version(),
        "requests": summary.requests,
        "prompt_tokens": summary.prompt_tokens,
        "num_blocks": NUM_BLOCKS,
        "hit_rate": round(summary.hit_rate, 6),
        "evictions": summary.use.evictions,
        "cpu_s": round(seconds, 1),
        "requests_per_s": round(summary.requests / seconds, 1),
        "peak_rss_mib": [round(kib / 1024, 1) for kib in peaks_kib],
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 0 if peaks_kib[-1] <= 1.1 * peaks_kib[1] else 1


if __name__ == "__main__":
    sys.exit(main())
