"""Random small traces through the Marconi artifact's own classes and through ours.

    python tests/conformance/marconi_artifact.py ARTIFACT_DIR [COUNT] [FIRST_SEED]

or, with MARCONI_ARTIFACT (a checkout of GitHub ruipeterpan/marconi, commit 0801661) in the
environment, `pytest tests/conformance/marconi_artifact.py`. Its licence is CC BY-NC 4.0: it is
read and run, nothing of it is copied. The traces draw from few tokens, so that prefixes are
shared, edges split, blocks fill up and lookups go astray below partly matched edges.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from hybridplan.sim.marconi.artifact import ArtifactCache
from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.vllm_plus import VllmPlusCache
from hybridplan.sim.sequence import TokenSequence

POLICIES = ("vllm+", "sglang+", "alpha=0.0", "alpha=0.3", "alpha=1.0", "alpha=2.0")
Request = tuple[list[int], list[int]]


def load_artifact(folder: str) -> Any:
    """Its two cache classes; what they import and never use is replaced by empty modules."""
    for name, attributes in {
        "scipy": (),
        "scipy.stats": ("rankdata",),
        "transformers": ("AutoTokenizer", "AutoModelForCausalLM"),
    }.items():
        module = types.ModuleType(name)
        for attribute in attributes:
            setattr(module, attribute, None)
        sys.modules[name] = module
    sys.path.insert(0, folder)
    sys.setrecursionlimit(5000)
    return types.SimpleNamespace(
        hybrid=importlib.import_module("radix_cache_hybrid").RadixCache,
        vllm=importlib.import_module("radix_cache_vllm").RadixCache,
    )


def random_requests(seed: int) -> list[Request]:
    rng = random.Random(seed)
    alphabet = rng.choice([2, 3, 8, 1000])
    longest = rng.choice([12, 40, 120])

    def new(most: int) -> list[int]:
        return [rng.randrange(alphabet) for _ in range(rng.randint(1, most))]

    seen: list[list[int]] = []
    requests = []
    for _ in range(rng.randint(5, 60)):
        prompt = new(longest)
        if seen and rng.random() < 0.7:
            old = rng.choice(seen)
            prompt = old[: rng.randint(1, len(old))] + (prompt if rng.random() < 0.8 else [])
        output = new(longest)
        seen.append(prompt + output)
        requests.append((prompt, output))
    return requests


def theirs(artifact: Any, policy: str, costs: dict[str, int], capacity: int) -> Any:
    if policy == "vllm+":
        return artifact.vllm(capacity_bytes=capacity, block_size=4, **costs)
    version = 1 if policy == "sglang+" else 3
    alpha = float(policy.partition("=")[2] or 0)
    return artifact.hybrid(
        capacity_bytes=capacity, evict_policy_version=version, eff_weight=alpha, **costs
    )


def ours(policy: str, costs: ModelCosts, capacity: int) -> ArtifactCache | VllmPlusCache:
    if policy == "vllm+":
        return VllmPlusCache(costs, capacity, block_tokens=4)
    alpha = float(policy.partition("=")[2] or 0)
    return ArtifactCache(costs, capacity, alpha, lru_leaves=policy == "sglang+")


def compare(artifact: Any, seed: int, policy: str) -> str | None:
    """The first request whose hit or tree size differs, in words."""
    rng = random.Random(-seed)
    shape = {"d": rng.choice([8, 64]), "n": rng.choice([4, 16])}
    layers = {"num_ssm_layers": 3, "num_attn_layers": 2, "num_mlp_layers": 4}
    costs = ModelCosts.from_paper(shape["d"], shape["n"], 2, 3, 4)
    capacity = costs.prefix_bytes(rng.randint(20, 400), rng.randint(2, 12))
    their_cache = theirs(artifact, policy, {**shape, **layers}, capacity)
    our_cache = ours(policy, costs, capacity)
    for step, (prompt, output) in enumerate(random_requests(seed)):
        whole = TokenSequence.of_tokens(prompt + output)
        hit = our_cache.lookup(whole, len(prompt))
        our_cache.insert(whole)
        with contextlib.redirect_stdout(io.StringIO()):
            their_hit = len(their_cache.match_prefix(prompt)[0])
            their_cache.insert(prompt + output, state_at_leaf=0, state_at_branchoff=0)
            size = their_cache.get_tree_size()
        if (hit, our_cache.bytes) != (their_hit, size):
            return (
                f"seed {seed} {policy} request {step}: hit {hit}, {our_cache.bytes} bytes;"
                f" the artifact {their_hit}, {size}"
            )
    return None


def run(artifact: Any, count: int, first_seed: int) -> list[str]:
    pairs = [
        (seed, policy) for seed in range(first_seed, first_seed + count) for policy in POLICIES
    ]
    return [found for seed, policy in pairs if (found := compare(artifact, seed, policy))]


def test_random_traces_agree() -> None:
    folder = os.environ.get("MARCONI_ARTIFACT")
    if not folder or not (Path(folder) / "radix_cache_hybrid.py").is_file():
        pytest.skip("MARCONI_ARTIFACT does not name a checkout of ruipeterpan/marconi")
    assert run(load_artifact(folder), int(os.environ.get("MARCONI_FUZZ_TRACES", "100")), 1) == []


def main(arguments: list[str]) -> int:
    folder, count, first = [*arguments, *["300", "1"][len(arguments) - 1 :]]
    differences = run(load_artifact(folder), int(count), int(first))
    lines = [
        *differences[:20],
        f"{count} traces x {len(POLICIES)} policies: {len(differences)} differ",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
