"""Random small traces through vLLM's own scheduler and through ours, step by step.

    python tests/conformance/vllm_fuzz.py VLLM_PYTHON VLLM_SRC [COUNT] [FIRST_SEED]

VLLM_PYTHON is an interpreter that has the packages vLLM imports, VLLM_SRC the folder of an unpacked
wheel (vllm_import.py says how to set them up). With VLLM_PYTHON and VLLM_SRC in the environment,
and optionally VLLM_FUZZ_TRACES, test_vllm_agreement.py does the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "sim" / "vllm"))

import random_cases
import traced_cases

NO_GROUPS: dict[str, Any] = {"resolved": {"groups": []}}
BATCH = 200


def vllm_answers(
    python: str, source: str, cases: list[dict[str, Any]], *, timing: bool = False
) -> list[dict[str, Any]]:
    """What the vLLM unpacked in ``source`` answers, run by another interpreter."""
    command = [python, str(Path(__file__).with_name("vllm_oracle.py"))]
    if source:
        command += ["--src", source]
    if timing:
        command.append("--time")
    text = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"vLLM ended with {done.returncode}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(
    python: str, source: str, count: int, first_seed: int
) -> Iterator[tuple[int, str, list[str]]]:
    """(seed, kind, differences) of every case; kind is agreed, refused or differs."""
    for start in range(first_seed, first_seed + count, BATCH):
        seeds = range(start, min(start + BATCH, first_seed + count))
        cases = [random_cases.random_case(seed) for seed in seeds]
        answers = vllm_answers(python, source, cases)
        for seed, case, answer in zip(seeds, cases, answers, strict=True):
            if "refused" in answer:
                yield seed, "refused", [answer["refused"]]
                continue
            config = traced_cases.config_of(case, NO_GROUPS, answer["vllm_version"][:4])
            found = traced_cases.differences(traced_cases.replay_case(case, config), answer)
            yield seed, "differs" if found else "agreed", found


def main() -> None:
    python, source = sys.argv[1], sys.argv[2]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    first_seed = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    kinds: Counter[str] = Counter()
    for seed, kind, found in compare(python, source, count, first_seed):
        kinds[kind] += 1
        if kind == "differs" or (kind == "refused" and kinds[kind] <= 3):
            sys.stdout.write(f"seed {seed} {kind}: {found[:3]}\n")
    sys.stdout.write(f"{dict(kinds)}\n")
    sys.exit(1 if kinds["differs"] else 0)


if __name__ == "__main__":
    main()
