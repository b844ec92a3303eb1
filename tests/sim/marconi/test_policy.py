"""Both modes against list-scanning twins, their invariants, and what the paper promises."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.marconi.artifact import ArtifactCache
from hybridplan.sim.marconi.costs import ModelCosts
from hybridplan.sim.marconi.integrity import check_integrity
from hybridplan.sim.marconi.paper import PaperCache, PaperMarconi
from hybridplan.sim.marconi.replayed import MarconiConfig, ReplayedMarconi
from hybridplan.sim.marconi.tree import Node
from hybridplan.sim.marconi.tuning import GRID, ArtifactMarconi
from hybridplan.sim.outcome import LossCause
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.sequence import TokenSequence
from tests.sim.marconi.cases import CAPACITIES, SMALL, served

ALPHAS = st.sampled_from([0.0, 0.3, 1.0, 2.0])


class ScanningArtifact(ArtifactCache):
    """The artifact's eviction as its paper trail reads: everything found anew for every victim."""

    def _evict_lowest(self, over: int) -> None:
        freed = 0
        while freed < over and self.tree.root.children:
            nodes = [node for node in self.tree.preorder() if len(node.children) <= 1]
            recency = self._scaled([1 / (self._now - node.access) for node in nodes])
            efficiency = self._scaled([self._efficiency(node) for node in nodes])
            scores = [self.alpha * e + r for e, r in zip(efficiency, recency, strict=True)]
            victim = nodes[scores.index(min(scores))]
            if victim.children:
                freed += self.costs.state_bytes
                self.tree.absorb(victim)
            else:
                freed += self.costs.prefix_bytes(nodes[-1].tokens)
                self.tree.delete_leaf(victim)

    def _efficiency(self, node: Node) -> float:
        costs, before = self.costs, self.costs.attention_layer_flops(node.start)
        attention = costs.attention_layer_flops(node.end) - before
        mlp = node.end * costs.mlp_layer_flops - before
        saved = node.tokens * costs.state_flops
        saved += costs.attention_layers * attention + costs.mlp_layers * mlp
        return saved / costs.prefix_bytes(node.end)

    @staticmethod
    def _scaled(values: list[float]) -> list[float]:
        low, high = min(values), max(values)
        return [1.0 if low == high else (value - low) / (high - low) for value in values]


def shape(cache: ArtifactCache | PaperCache) -> list[tuple[int, int, bool, int]]:
    return [(n.start, n.end, n.has_state, n.access) for n in cache.tree.preorder()]


@given(served(), ALPHAS, CAPACITIES)
@settings(max_examples=60, deadline=None)
def test_artifact_agrees_with_its_scanning_twin(
    requests: list[tuple[list[int], int]], alpha: float, capacity: int
) -> None:
    clever, naive = (kind(SMALL, capacity, alpha) for kind in (ArtifactCache, ScanningArtifact))
    for tokens, prompt_tokens in requests:
        sequence = TokenSequence.of_tokens(tokens)
        assert clever.serve(sequence, prompt_tokens) == naive.serve(sequence, prompt_tokens)
        assert shape(clever) == shape(naive)
        check_integrity(clever)


@given(served(), CAPACITIES)
@settings(max_examples=40, deadline=None)
def test_tuning_agrees_with_a_full_replay_for_every_alpha(
    requests: list[tuple[list[int], int]], capacity: int
) -> None:
    tuned = ArtifactMarconi(SMALL, capacity, bootstrap_multiplier=2)
    window = [(TokenSequence.of_tokens(tokens), prompt) for tokens, prompt in requests]
    for sequence, prompt_tokens in window:
        tuned.serve(sequence, prompt_tokens)
    due = tuned.bootstrap_window
    if due is None or due > len(window):
        assert tuned.alpha == 0
        return

    def flops_saved(alpha: float) -> int:
        cache = ScanningArtifact(SMALL, capacity, alpha)
        return sum(SMALL.prefill_flops(cache.serve(*request)) for request in window[:due])

    assert tuned.alpha == max(GRID, key=flops_saved)


class NaivePaper:
    """The paper's rules on a set of prefixes: no tree, every structure found anew."""

    def __init__(self, costs: ModelCosts, capacity_bytes: int) -> None:
        self.costs, self.capacity_bytes = costs, capacity_bytes
        self.states: set[tuple[int, ...]] = set()

    def serve(self, tokens: list[int], prompt_tokens: int) -> int:
        whole, prompt = tuple(tokens), tuple(tokens[:prompt_tokens])
        hit = max((len(s) for s in self.states if s == prompt[: len(s)]), default=0)
        common = max((self._common(s, prompt) for s in self.states), default=0)
        if common > hit:
            self.states.add(prompt[:common])
        self.states.add(whole)
        return hit

    @staticmethod
    def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        return next(
            (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )

    @property
    def kv_tokens(self) -> int:
        return len({state[:end] for state in self.states for end in range(1, len(state) + 1)})


@given(served())
@settings(max_examples=60, deadline=None)
def test_paper_admission_agrees_with_a_set_of_prefixes(
    requests: list[tuple[list[int], int]],
) -> None:
    cache, naive = PaperCache(SMALL, 1 << 40), NaivePaper(SMALL, 1 << 40)
    for tokens, prompt_tokens in requests:
        hit = cache.serve(TokenSequence.of_tokens(tokens), prompt_tokens)
        assert hit == naive.serve(tokens, prompt_tokens)
        assert (cache.states, cache.kv_tokens) == (len(naive.states), naive.kv_tokens)
        check_integrity(cache)


class ScanningPaper(PaperCache):
    """Every victim found by scoring the whole tree anew."""

    def _make_room(self, needed_bytes: int, in_use: set[Node | None]) -> bool:
        def scaled(values: list[float]) -> list[float]:
            low, high = min(values), max(values)
            return [1.0 if low == high else (v - low) / (high - low) for v in values]

        full = self.bytes + needed_bytes > self.capacity_bytes
        self.evictions += full
        while self.bytes + needed_bytes > self.capacity_bytes:
            nodes = [n for n in self.tree.preorder() if len(n.children) <= 1 and n not in in_use]
            if not nodes:
                return False
            recency = scaled([float(n.access) for n in nodes])
            efficiency = scaled([self._efficiency(n) for n in nodes])
            scores = [self.alpha * e + r for e, r in zip(efficiency, recency, strict=True)]
            self._evict(nodes[scores.index(min(scores))])
        return True


@given(served(), ALPHAS, CAPACITIES, st.sampled_from([None, 4]))
@settings(max_examples=60, deadline=None)
def test_paper_eviction_agrees_with_its_scanning_twin(
    requests: list[tuple[list[int], int]], alpha: float, capacity: int, chunk: int | None
) -> None:
    clever, naive = (kind(SMALL, capacity, alpha, chunk) for kind in (PaperCache, ScanningPaper))
    for tokens, prompt_tokens in requests:
        sequence = TokenSequence.of_tokens(tokens)
        assert clever.serve(sequence, prompt_tokens) == naive.serve(sequence, prompt_tokens)
        assert shape(clever) == shape(naive)
        check_integrity(clever)


def requests_of(*prompts: list[int], output: int = 5) -> list[Request]:
    return [
        Request(str(index), Prompt(len(prompt), 1, prompt), output)
        for index, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("mode", ["paper", "artifact"])
def test_a_shared_prefix_pays_off_at_its_third_use(mode: str) -> None:
    system = list(range(100))
    prompts = [system + list(range(1000 * k, 1000 * k + 20)) for k in (1, 2, 3, 4)]
    engine = ReplayedMarconi(MarconiConfig(SMALL, 1 << 40, mode=mode))
    hits = [outcome.hit_tokens for outcome in Replay(requests_of(*prompts), engine)]
    assert hits == [0, 0, 100, 100]


def test_a_conversation_resumes_after_its_last_token() -> None:
    first, answer, question = list(range(40)), list(range(100, 130)), list(range(200, 210))
    whole = Prompt(70, 1, first + answer)
    turns = [
        Request("1", Prompt(40, 1, first), 30, sequence=whole),
        Request("2", Prompt(80, 1, first + answer + question), 5),
    ]
    engine = ReplayedMarconi(MarconiConfig(SMALL, 1 << 40))
    assert [outcome.hit_tokens for outcome in Replay(turns, engine)] == [0, 70]


def test_branch_state_is_rounded_down_to_a_chunk() -> None:
    shared = list(range(80))
    prompts = [shared + [1000 * k + i for i in range(40)] for k in (1, 2, 3)]
    engine = ReplayedMarconi(MarconiConfig(SMALL, 1 << 40, chunk_tokens=32))
    assert [outcome.hit_tokens for outcome in Replay(requests_of(*prompts), engine)] == [0, 0, 64]


def test_units_are_not_expanded_and_give_the_lower_bound() -> None:
    system = [7, 8]
    prompts = [Prompt(1300, 512, [*system, 100 + k]) for k in range(3)]
    engine = ReplayedMarconi(MarconiConfig(SMALL, 1 << 60))
    requests = [Request(str(k), prompt, 10) for k, prompt in enumerate(prompts)]
    assert [outcome.hit_tokens for outcome in Replay(requests, engine)] == [0, 0, 1024]


def test_tuning_happens_once_after_the_window() -> None:
    costs, capacity = SMALL, SMALL.prefix_bytes(150, 4)
    tuned = PaperMarconi(costs, capacity, bootstrap_multiplier=2)
    for k in range(40):
        tokens = list(range(k % 3 * 100, k % 3 * 100 + 30)) + list(
            range(10_000 + 9 * k, 10_009 + 9 * k)
        )
        tuned.serve(TokenSequence.of_tokens(tokens), 35)
        check_integrity(tuned.cache)
    assert tuned.bootstrap_window == 2 * (tuned.requests_before_first_eviction or 0)
    assert 0.0 <= tuned.alpha <= 2.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "lru"},
        {"mode": "exact"},
        {"policy": "vllm+", "mode": "paper"},
        {"mode": "artifact", "chunk_tokens": 64},
        {"capacity_bytes": 0},
    ],
    ids=lambda wrong: "-".join(f"{key}={value}" for key, value in wrong.items()),
)
def test_bad_configurations_are_refused_with_their_numbers(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError) as refusal:
        MarconiConfig(**{"costs": SMALL, "capacity_bytes": 1, **wrong})
    assert any(str(value) in refusal.value.sentence for value in wrong.values())


@pytest.mark.parametrize("mode", ["paper", "artifact"])
def test_a_state_that_was_evicted_is_not_one_that_was_never_made(mode: str) -> None:
    """A node with one child only loses its state: its KV is there, and memory lost the hit."""
    first = list(range(100))
    second, other = first + list(range(200, 250)), list(range(300, 360))
    requests = requests_of(first, second, other, first + [999] * 5, output=0)
    engine = ReplayedMarconi(MarconiConfig(SMALL, SMALL.prefix_bytes(210, 2), mode=mode))
    last = list(Replay(requests, engine))[-1]
    assert (last.hit_tokens, last.kv_hit_tokens, last.ceiling_tokens) == (0, 100, 100)
    assert last.lost == ((LossCause.EVICTED, 100),)
    shared = [first + [1000 * k] * 20 for k in (1, 2)]
    roomy = ReplayedMarconi(MarconiConfig(SMALL, 1 << 40, mode=mode))
    last = list(Replay(requests_of(*shared), roomy))[-1]
    assert last.lost == ((LossCause.NO_CHUNK_END, 100),)
