"""Figures that users logged, reproduced through the product; `pytest --cases FILE` for others."""

from __future__ import annotations

from pathlib import Path

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


def test_most_themes_are_covered() -> None:
    exact = [case for case in reproduce.load(agreement.CASES) if reproduce.is_exact(case)]
    assert len(exact) == 55


def test_the_table_says_what_the_cases_say() -> None:
    written = (ROOT / "docs" / "agreement.md").read_text()
    assert agreement.table() in written, "run python tests/ledger/cases/agreement.py"


def test_a_wrong_figure_is_caught() -> None:
    case = next(c for c in reproduce.load(agreement.CASES) if c["id"] == "B02")
    changed = {**case, "observed": {**case["observed"], "blocks_for_262144": 169}}
    assert reproduce.differences(changed)[0] == [
        "blocks_for_262144: ours 168, observed 169",
    ]
