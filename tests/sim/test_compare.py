"""compare: every policy beside what is possible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridplan.errors import InputError
from hybridplan.sim.compare import CompareAsk, Compared, CompareResult, compare
from hybridplan.sim.policies import EVERY, parse_policy
from hybridplan.sim.prepared import engine_ask, open_settings_trace
from hybridplan.sim.run import SimulateAsk, run
from hybridplan.sim.settings import canonical
from hybridplan.sim.sweep.grid import model_of

TRACE = str(Path(__file__).parents[1] / "data" / "traces" / "lmcache_agent_derived.jsonl.gz")
SETTINGS = {
    "trace": TRACE,
    "model": "qwen3.5-0.8b",
    "kv_memory": "4GiB",
    "limit": 250,
    "drop_empty": True,
}


@pytest.fixture(scope="module")
def result() -> CompareResult:
    return compare(CompareAsk(SETTINGS))


@pytest.mark.parametrize("name", EVERY)
def test_every_policy_answers_at_the_one_memory(result: CompareResult, name: str) -> None:
    found = {row.policy: row for row in result.rows}[name]
    assert found.row is not None
    row = found.row
    assert row.memory_bytes == result.memory_bytes == 4 * 1024**3
    assert row.hit_tokens <= row.kv_hit_tokens <= (row.ceiling_tokens or 0)
    assert sum(row.lost.values()) == (row.ceiling_tokens or 0) - row.hit_tokens
    assert 0 < row.states_hit <= row.states_kept


@pytest.mark.parametrize(
    "name", [name for name in EVERY if "artifact" not in name and "+" not in name]
)
def test_no_policy_holds_more_than_its_memory_or_beats_the_best(
    result: CompareResult, name: str
) -> None:
    row = {row.policy: row for row in result.rows}[name].row
    assert row is not None
    assert result.best is not None
    assert row.held_bytes <= 4 * 1024**3
    assert row.hit_tokens <= result.best.hit_tokens


@pytest.mark.parametrize("memory", ["1GiB", "2GiB", "3GiB"])
def test_small_memories_stay_below_the_bounds(memory: str) -> None:
    names = ("vllm@0.33", "sglang:extra_buffer", "marconi:paper", "marconi:alpha=0")
    small = {**SETTINGS, "kv_memory": memory, "limit": 120, "max_model_len": 60000}
    result = compare(CompareAsk(small, names))
    best = result.best
    assert best is not None
    assert best.hit_tokens == min(
        best.infinite_hit_tokens, best.kv_hit_tokens, best.states_hit_tokens or 0
    )
    served = [found.row for found in result.rows if found.row is not None]
    assert served
    for row in served:
        assert row.hit_tokens <= best.hit_tokens


def test_requests_that_run_in_another_order_stay_below_the_bound(tmp_path: Path) -> None:
    """Turn by turn in the file, session by session on the clock: the file's order is the worst."""
    rows = [
        {
            "timestamp": 1000 * turn + session,
            "input_length": 1056,
            "output_length": 1,
            "hash_ids": [1000 * session + i for i in range(64)] + [10**6 + turn] * 2,
            "session_id": f"s{session}",
        }
        for turn in range(8)
        for session in range(12)
    ]
    trace = tmp_path / "turns.jsonl"
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    asked = {
        "trace": str(trace),
        "model": "qwen3.5-0.8b",
        "kv_memory": "90MiB",
        "clock": "session",
        "block_tokens": 16,
        "arrival": "timed",
        "session_gap": 100,
    }
    result = compare(CompareAsk(asked, ("marconi:paper", "marconi:alpha=0")))
    in_file_order = compare(
        CompareAsk({**asked, "arrival": "sequential", "session_gap": None}, ("marconi:paper",))
    )
    best, other = result.best, in_file_order.best
    assert best is not None
    assert other is not None
    assert (best.ordered, best.kv_hit_tokens, other.ordered) == (False, None, True)
    for found in result.rows:
        assert found.row is not None
        assert other.hit_tokens < found.row.hit_tokens <= best.hit_tokens


@pytest.mark.parametrize("name", ["vllm@0.33", "vllm@0.32", "vllm@0.33:all", "sglang:extra_buffer"])
def test_a_row_is_what_simulate_says(result: CompareResult, name: str) -> None:
    settings, _ = canonical({**SETTINGS, "engine": name})
    ask = engine_ask(settings, model_of("qwen3.5-0.8b"))
    alone = run(SimulateAsk(ask, open_settings_trace(settings), advice="off"))
    row = {row.policy: row for row in result.rows}[name].row
    assert row is not None
    assert row.hit_tokens == alone.hits.usable_tokens
    assert row.evictions == alone.evictions
    assert dict(row.lost) == {loss.cause.value: loss.tokens for loss in alone.losses}


def test_checkpoints_placed_best_save_more_with_more_states(result: CompareResult) -> None:
    shares = [placed.saved_share for placed in result.placements]
    assert shares == sorted(shares)
    assert shares[0] > 0
    for placed in result.placements:
        assert len(placed.positions_tokens) <= placed.states


def test_an_engine_that_refuses_leaves_the_others(result: CompareResult) -> None:
    small = compare(
        CompareAsk({**SETTINGS, "kv_memory": "2GiB", "limit": 20}, ("vllm", "sglang:extra_buffer"))
    )
    refused, served = small.rows
    assert refused.row is None
    assert "--max-model-len" in (refused.refused or "")
    assert served.row is not None


def test_marconi_has_nothing_to_decide_without_states() -> None:
    asked = {**SETTINGS, "model": "qwen3-8b", "limit": 20, "max_model_len": 16384}
    served, refused = compare(CompareAsk(asked, ("vllm", "marconi:paper"))).rows
    assert served.row is not None
    assert "qwen3-8b has no recurrent state" in (refused.refused or "")


def test_no_memory_forgets_nothing() -> None:
    free = {name: value for name, value in SETTINGS.items() if name != "kv_memory"}
    result = compare(CompareAsk({**free, "limit": 60}, ("marconi:paper", "sglang:extra_buffer")))
    assert result.memory_bytes is None
    assert result.best is not None
    assert result.best.hit_tokens == result.best.infinite_hit_tokens
    assert all(found.row is not None and not found.row.evictions for found in result.rows)


def test_a_card_gives_every_policy_the_same_bytes() -> None:
    on_card = {**SETTINGS, "gpu": "a100-80", "limit": 20}
    del on_card["kv_memory"]
    result = compare(CompareAsk(on_card, ("vllm", "sglang:auto", "marconi:paper")))
    assert {row.row.memory_bytes for row in result.rows if row.row} == {result.memory_bytes}


@pytest.mark.parametrize(
    "settings, policies, words",
    [
        ({"page_size": 64}, ("vllm",), "page_size is a setting of none of vllm@0.33"),
        ({"engine": "vllm"}, EVERY, "--policies"),
        ({"blok_size": 1}, EVERY, "closest are block"),
        ({}, ("vllm@0.31",), "policy 'vllm@0.31' is not known"),
        ({}, ("marconi:alpha=-1",), "marconi:alpha=X"),
        ({}, (), "no policy"),
        ({"model": None}, EVERY, "--model"),
        ({"tp": "two"}, EVERY, "tp 'two' is not a whole number"),
    ],
)
def test_what_cannot_be_compared_is_said(
    settings: dict[str, object], policies: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        compare(CompareAsk({**SETTINGS, **settings}, policies))


@pytest.mark.parametrize(
    "text, name",
    [
        ("vllm", "vllm@0.33"),
        ("VLLM@0.32", "vllm@0.32"),
        ("vllm:all", "vllm@0.33:all"),
        ("sglang", "sglang:auto"),
        ("marconi", "marconi:paper"),
        ("marconi:alpha=0.50", "marconi:alpha=0.5"),
    ],
)
def test_policy_names(text: str, name: str) -> None:
    assert parse_policy(text).name == name
    assert parse_policy(name).name == name


def test_rows_say_how_near_the_best_they_are(result: CompareResult) -> None:
    def share(found: Compared) -> float:
        assert found.row is not None
        assert result.best is not None
        return found.row.hit_tokens / result.best.hit_tokens

    assert [found.of_best for found in result.rows] == [share(found) for found in result.rows]
