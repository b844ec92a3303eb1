from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.lengths.distribution import (
    empirical,
    parse_lengths,
    parse_tokens,
    read_column,
)
from hybridplan.ledger.lengths.fill import Pool, concurrency


def test_lognormal_meets_its_quantiles() -> None:
    lengths = parse_lengths("lognormal:p50=2k,p99=60k", 1 << 20)
    rng = random.Random(1)
    drawn = sorted(lengths.draw(rng) for _ in range(20_000))
    assert 1_900 < drawn[10_000] < 2_100
    assert 50_000 < drawn[19_800] < 70_000


def test_draws_never_exceed_the_cap() -> None:
    lengths = parse_lengths("lognormal:p50=2k,p99=60k", 4_096)
    rng = random.Random(1)
    assert max(lengths.draw(rng) for _ in range(2_000)) == 4_096


@pytest.mark.parametrize(
    "text,tokens", [("4096", 4096), ("2k", 2000), ("2ki", 2048), ("1.5M", 1_500_000)]
)
def test_tokens(text: str, tokens: int) -> None:
    assert parse_tokens(text, "--lengths") == tokens


@pytest.mark.parametrize(
    "text",
    [
        "lognormal:p50=2k",
        "lognormal:p50=2k,p50=3k",
        "lognormal:p50=9k,p99=2k",
        "lognormal:p0=1,p99=2",
        "lognormal:mean=4",
        "uniform:512",
        "uniform:8k-512",
        "fixed:0",
        "fixed:99999999999999999",
        "zipf:1",
        "",
    ],
)
def test_bad_distributions(text: str) -> None:
    with pytest.raises(InputError, match="--lengths"):
        parse_lengths(text, 1 << 20)


@given(st.text(max_size=40))
def test_any_text_is_a_distribution_or_a_clean_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert parse_lengths(text, 1 << 20).draw(random.Random(0)) >= 1


def test_equal_requests_fill_exactly() -> None:
    """Twin: with equal lengths the count is a division."""
    lengths = parse_lengths("fixed:1000", 1 << 20)
    blocks = Pool("blocks", 1_487, lambda n: -(-n // 784) + 3)
    got = concurrency(lengths, (blocks,), resamples=5)
    assert (got.mean, got.p5, got.p95) == (297.0, 297, 297)
    assert got.binds == {"blocks": 1.0, "max_num_seqs": 0.0}


def test_two_pools_name_the_one_that_binds() -> None:
    lengths = parse_lengths("fixed:1000", 1 << 20)
    slots = Pool("state slots", 262, lambda n: 5)
    tokens = Pool("KV tokens", 920_754, lambda n: n)
    got = concurrency(lengths, (slots, tokens), resamples=3)
    assert got.mean == 52.0
    assert got.binds["state slots"] == 1.0
    assert got.used_share["KV tokens"] == pytest.approx(52_000 / 920_754)


def test_max_requests_binds() -> None:
    lengths = empirical([10, 20], "two.csv")
    got = concurrency(lengths, (Pool("KV tokens", 1 << 30, lambda n: n),), max_requests=7)
    assert got.mean == 7.0
    assert got.binds["max_num_seqs"] == 1.0


def test_nothing_fits() -> None:
    lengths = parse_lengths("fixed:1000", 1 << 20)
    with pytest.raises(RefusalError, match="not one request"):
        concurrency(lengths, (Pool("KV tokens", 10, lambda n: n),))


def test_empty_trace() -> None:
    with pytest.raises(InputError, match=r"empty\.csv"):
        empirical([], "empty.csv")


@pytest.mark.parametrize("text", ["100\n2000\n", "tokens\n100\n\n2000\n"])
def test_a_column_of_lengths(text: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text(text)
    found = read_column(file)
    assert found is not None
    assert found.values == (100, 2000)


def test_a_trace_is_no_column(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("input_length,output_length\n1,2\n")
    assert read_column(file) is None


@pytest.mark.parametrize("line", ["x", "-3", "1.5", "99999999999999999999"])
def test_a_column_names_the_line_that_is_no_length(line: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text(f"100\n{line}\n")
    with pytest.raises(InputError, match=r"lengths\.csv line 2"):
        read_column(file)
