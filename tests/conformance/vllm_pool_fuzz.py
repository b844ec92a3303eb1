"""Random architectures and layer lists through vLLM's own planner and through ours.

    python tests/conformance/vllm_pool_fuzz.py VLLM_PYTHON VLLM_SRC [COUNT] [FIRST_SEED]

Half of the cases are models, half explicit layers. VLLM_PYTHON and VLLM_SRC as vllm_import.py says;
with both in the environment test_vllm_pool.py does the same.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
# Answers that show the pretended machine, not vLLM: its stub objects cannot be hashed or added.
_STUBS = ("unhashable type: 'types.SimpleNamespace'", "'_Placeholder'")


def load(path: Path) -> ModuleType:
    """A module by its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pool_cases = load(HERE / "vllm_pool_cases.py")
engine_cases = load(HERE.parent / "ledger" / "vllm" / "engine_cases.py")


def cases_of(count: int, first_seed: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Named cases by GPU generation."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for seed in range(first_seed, first_seed + count):
        model = seed % 2 == 0
        case = pool_cases.model_case(seed) if model else pool_cases.layers_case(seed)
        name = f"{'model' if model else 'layers'}-{seed}"
        found.setdefault(case.get("gpu", "sm90"), []).append((name, case))
    return found


def vllm_answers(
    python: str, source: str, gpu: str, cases: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What the vLLM unpacked in ``source`` answers on a pretended GPU."""
    command = [python, str(HERE / "vllm_pool_oracle.py"), "--src", source, "--gpu", gpu]
    text = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"vLLM ended with {done.returncode}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(
    python: str, source: str, count: int, first_seed: int
) -> Iterator[tuple[str, str, list[str]]]:
    """(name, kind, differences) of every case; kind is agreed, refused (by both) or differs."""
    for gpu, named in cases_of(count, first_seed).items():
        answers = vllm_answers(python, source, gpu, [case for _, case in named])
        for (name, case), answer in zip(named, answers, strict=True):
            error = answer.get("error", "")
            if any(stub in error for stub in _STUBS):
                yield name, "not answered", [error]
                continue
            version = answer["vllm_version"]
            found = engine_cases.differences(case, answer, version, log=False)
            kind = "differs" if found else "refused" if error else "agreed"
            yield name, kind, found


def main() -> None:
    python, source = sys.argv[1], sys.argv[2]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 300
    first_seed = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    kinds: Counter[str] = Counter()
    for name, kind, found in compare(python, source, count, first_seed):
        kinds[kind] += 1
        if kind == "differs":
            sys.stdout.write(f"{name}: {found[:3]}\n")
    sys.stdout.write(f"{dict(kinds)}\n")
    sys.exit(1 if kinds["differs"] else 0)


if __name__ == "__main__":
    main()
