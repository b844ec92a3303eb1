"""Random small traces through SGLang's own tree and through ours, event by event.

    python tests/conformance/sglang_fuzz.py SGLANG_SRC [COUNT] [FIRST_SEED] [python|rust]

or, with SGLANG_SRC (the folder of the unpacked wheel) and optionally SGLANG_FUZZ_TRACES in the
environment, `pytest tests/conformance/sglang_fuzz.py`. sglang_oracle.py says what to install.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from hybridplan.sim.sglang.config import PoolExhaustedError
from hybridplan.sim.sglang.events import ScriptedReplay
from hybridplan.sim.sglang.integrity import check_integrity

_NODE_KEYS = ("nodes", "mamba_lru")


def load_oracle(sglang_src: str) -> Any:
    """The driver beside this file, with SGLang importable."""
    path = Path(__file__).with_name("sglang_oracle.py")
    spec = importlib.util.spec_from_file_location("sglang_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    oracle.bootstrap(sglang_src)
    logging.disable(logging.ERROR)
    return oracle


def random_trace(seed: int) -> dict[str, Any]:
    """Up to three requests at once that share, extend and repeat each other's prompts, on pools
    small enough that most traces evict."""
    rng = random.Random(seed)
    strategy = rng.choice(["no_buffer", "extra_buffer", "extra_buffer", "extra_buffer_lazy"])
    live_max = rng.choice([1, 1, 2, 3])
    config = {
        "strategy": strategy,
        "page_size": 1 if strategy == "no_buffer" else rng.choice([1, 1, 4, 16]),
        "chunk_size": rng.choice([16, 32]),
        "overlap": strategy == "extra_buffer_lazy" or rng.random() < 0.8,
        "track_interval": rng.choice([32, 64, 128]),
        "kv_tokens": rng.choice([640, 1280, 2560]) * live_max,
        "mamba_slots": live_max * 5 + rng.randint(0, 12),
        "chunked_prefill_size": rng.choice([None, None, 48, 96]),
        "max_states_per_path": rng.choice([-1, -1, -1, 1, 2]),
        "skip_decode_lock": rng.random() < 0.2,
    }
    fresh = 10_000

    def new(count: int) -> list[int]:
        nonlocal fresh
        fresh += count
        return list(range(fresh - count, fresh))

    events: list[dict[str, Any]] = []
    seen: list[list[int]] = []
    live: list[tuple[str, list[int]]] = []
    bases = [new(rng.randint(20, 150)) for _ in range(3)]
    for index in range(rng.randint(15, 45)):
        if live and (len(live) >= live_max or rng.random() < 0.4):
            request_id, tokens = live.pop(rng.randrange(len(live)))
            output = new(rng.randint(1, 160))
            events.append({"op": "decode", "rid": request_id, "output": output})
            events.append({"op": "finish", "rid": request_id})
            seen.append(tokens + output)
            continue
        if seen and rng.random() < 0.55:
            tokens = rng.choice(seen[-8:])
            kept = rng.randint(max(1, len(tokens) // 2), len(tokens))
            tokens = tokens[:kept] + new(rng.randint(0, 60))
        else:
            tokens = rng.choice(bases) + new(rng.randint(1, 120))
        tokens = tokens[-420:]
        events.append({"op": "start", "rid": f"r{index}", "input": tokens})
        live.append((f"r{index}", tokens))
    for request_id, _ in live:
        events.append({"op": "decode", "rid": request_id, "output": new(rng.randint(1, 40))})
        events.append({"op": "finish", "rid": request_id})
    return {"name": f"fuzz{seed}", "config": config, "events": events}


def compare(trace: dict[str, Any], answer: list[dict[str, Any]], with_nodes: bool) -> str | None:
    """The first event in which the two differ, in words; None if there is none."""
    replay = ScriptedReplay(trace)
    for step, (ours, theirs) in enumerate(zip(replay, answer, strict=True)):
        if with_nodes:
            ours["nodes"], ours["mamba_lru"] = replay.nodes(), replay.state_order()
        check_integrity(replay.cache)
        for key, value in ours.items():
            if theirs[key] != value:
                where = f"event {step} ({ours['op']} {ours['rid']})"
                return f"{trace['name']} {where}: {key} ours {value}, SGLang's {theirs[key]}"
    return None


def run(oracle: Any, count: int, first_seed: int, backend: str) -> tuple[list[str], int, int]:
    """(differences, traces both sides refuse, traces with evictions)."""
    differences, refused, evicting = [], 0, 0
    for seed in range(first_seed, first_seed + count):
        trace = random_trace(seed)
        try:
            answer = oracle.run_events(trace, backend, nodes=backend == "python")
        except (AssertionError, RuntimeError) as error:
            if "alloc" not in str(error) and "emory" not in str(error):
                raise
            try:
                list(ScriptedReplay(trace))
            except PoolExhaustedError:
                refused += 1
            else:
                differences.append(f"{trace['name']}: SGLang runs out ({error}), ours does not")
            continue
        evicting += any(event["evicted_states"] for event in answer)
        difference = compare(trace, answer, with_nodes=backend == "python")
        if difference:
            differences.append(difference)
    return differences, refused, evicting


@pytest.fixture(scope="module")
def oracle() -> Any:
    source = os.environ.get("SGLANG_SRC")
    if not source or not (Path(source) / "sglang").is_dir():
        pytest.skip("SGLANG_SRC does not name a folder with an unpacked sglang==0.5.23 wheel")
    return load_oracle(source)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["python", "rust"])
def test_random_traces_agree(oracle: Any, backend: str) -> None:
    count = int(os.environ.get("SGLANG_FUZZ_TRACES", "50"))
    differences, _, evicting = run(oracle, count, 1, backend)
    assert differences == []
    assert evicting > count // 2


def main(arguments: list[str]) -> int:
    source, count, first, backend = [*arguments, *["200", "1", "python"][len(arguments) - 1 :]]
    differences, refused, evicting = run(load_oracle(source), int(count), int(first), backend)
    lines = [
        *differences[:20],
        f"{count} traces from seed {first} ({backend} core): {len(differences)} differ,"
        f" {refused} refused by both, {evicting} with state evictions",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
