"""Random traces that vLLM answered once, for machines that cannot run it."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import traced_cases

GOLDEN = Path(__file__).parents[2] / "golden" / "vllm"
ECHO = {"resolved": {"groups": []}}


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_replay_agrees_on_every_stored_random_trace(version: str) -> None:
    with gzip.open(GOLDEN / version / "random_traces.jsonl.gz", "rt") as lines:
        stored = [json.loads(line) for line in lines]
    assert len(stored) == 120
    preempted = evicted = copied = 0
    for one in stored:
        config = traced_cases.config_of(one["case"], ECHO, version[:4])
        ours = traced_cases.replay_case(one["case"], config)
        assert traced_cases.differences(ours, one["result"]) == [], one["name"]
        preempted += sum("preempted" in step for step in ours["steps"])
        evicted += sum("evicted" in step for step in ours["steps"])
        copied += sum("block_copies" in step for step in ours["steps"])
    assert min(preempted, evicted, copied) > 0
