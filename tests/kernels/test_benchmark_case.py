"""A benchmark gives no time for a result that failed its check."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).parents[2] / "benchmarks" / "kernels" / "case.py"


@pytest.fixture(scope="module")
def case():
    """benchmarks/kernels/case.py, which is not a part of the package."""
    spec = importlib.util.spec_from_file_location("benchmark_case", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_failed_check_leaves_every_time_empty(case, monkeypatch):
    def timed(*_):
        raise AssertionError("timed a wrong result")

    monkeypatch.setattr(case, "graph_us", timed)
    prepared = case.Prepared((lambda: None,), lambda: {"output": (0.2, 0.1)}, 4_180_000)
    row = case.measure(case.Case("op", "shape", lambda _: prepared), torch.device("cpu"))
    assert not row.passed
    assert row.floor_us == 1.0
    assert (row.us, row.ratio, row.terabytes_per_s, row.eager_host_us, row.met) == (None,) * 5


@pytest.mark.parametrize(
    "figure, target, met",
    [("ratio", 2.0, True), ("us", 1.9, False), ("terabytes_per_s", 2.0, True)],
    ids=["ratio-met", "us-missed", "speed-met"],
)
def test_targets_are_compared_in_their_direction(case, monkeypatch, figure, target, met):
    monkeypatch.setattr(case, "graph_us", lambda _: (2.0, 0.0))
    monkeypatch.setattr(case, "eager_host_us", lambda _: 1.0)
    prepared = case.Prepared((lambda: None,), lambda: {"output": (0.0, 0.1)}, 4_180_000)
    declared = case.Case("op", "shape", lambda _: prepared, figure=figure, target=target)
    assert case.measure(declared, torch.device("cpu")).met is met


def test_an_output_that_is_not_finite_is_an_infinite_error(case):
    x = torch.tensor([1.0, float("nan")])
    assert case.relative_error(x, torch.ones(2, dtype=torch.float64)) == float("inf")


def test_sets_outgrow_the_cache(case):
    assert case.input_sets(10 * case.L2_BYTES) == 1
    small = case.L2_BYTES // 2
    assert case.input_sets(small) * small >= 4 * case.L2_BYTES
