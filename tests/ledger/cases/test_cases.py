"""Figures that users logged, reproduced through the product; `pytest --cases FILE` for others."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import agreement
import pytest
import reproduce
from case_settings import Case, NotDerivableError

from hybridplan.errors import HybridplanError

ROOT = Path(__file__).parents[3]
# Their derivation is not exact, and they agree all the same.
BEYOND = {
    "A20": "an out-of-tree backend's kernel block of 128, taken from its rule, gives the block",
    "E09": "the derivation takes 2,176 B a token for q8_0; the state at no tokens agrees",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    given = metafunc.config.getoption("--cases")
    if metafunc.definition.name == test_a_changed_figure_is_caught.__name__:
        own = [case for case in reproduce.load(agreement.CASES) if reproduce.is_exact(case)]
        metafunc.parametrize("case", own, ids=map(reproduce.name, own))
        return
    cases = reproduce.load(given or agreement.CASES)
    marked = [pytest.param(c, id=reproduce.name(c), marks=_marks(c, own=not given)) for c in cases]
    metafunc.parametrize("case", marked)


def _marks(case: Case, *, own: bool) -> list[pytest.MarkDecorator]:
    if reproduce.is_exact(case) or case["id"] in BEYOND:
        return []
    raised = (NotDerivableError, HybridplanError, AssertionError)
    reason = reproduce.reason(case)
    # Of another list nobody has read the cases, so one may well agree.
    return [pytest.mark.xfail(reason=reason, raises=raised, strict=own)]


def test_the_case_is_reproduced(case: Case) -> None:
    wrong, compared = reproduce.differences(case)
    assert wrong == []
    assert compared > 0


def test_a_changed_figure_is_caught(case: Case) -> None:
    """No handler hands back what it was given: each observed figure, changed alone, disagrees."""
    for where in reproduce.handler_of(case)(case):
        if where[0] == "derived":
            continue
        changed = copy.deepcopy(case)
        holder = changed["observed"]
        for step in where[:-1]:
            holder = holder[step]
        holder[where[-1]] = _more(holder[where[-1]])
        assert reproduce.verdict(changed).word != "agree", where


def _more(figure: Any) -> Any:
    if isinstance(figure, dict):
        return {key: _more(value) for key, value in figure.items()}
    if isinstance(figure, list):
        return [_more(value) for value in figure]
    if isinstance(figure, int):
        return figure + max(1, round(0.03 * figure))
    return 1.03 * figure + 0.02


def test_the_exact_cases_are_all_there() -> None:
    exact = [case for case in reproduce.load(agreement.CASES) if reproduce.is_exact(case)]
    assert len(exact) == 55


def test_the_table_says_what_the_cases_say() -> None:
    written = (ROOT / "docs" / "agreement.md").read_text()
    assert agreement.table() in written, "run python tests/ledger/cases/agreement.py"
