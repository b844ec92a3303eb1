"""The same from Python: ``load`` and ``ledger``, whatever was imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hybridplan


@pytest.mark.parametrize(
    "first",
    [
        "import hybridplan",
        "import hybridplan.ledger.caches, hybridplan",
        "import hybridplan.ledger.account, hybridplan",
        "from hybridplan import ledger; import hybridplan",
        "from hybridplan.ledger.account import ledger; import hybridplan",
    ],
)
def test_ledger_is_a_function_and_a_package(first: str) -> None:
    code = (
        f"{first}\n"
        "account = hybridplan.ledger(hybridplan.load('qwen3.5-0.8b'), contexts=[512])\n"
        "import hybridplan.ledger.caches\n"
        "assert isinstance(account, hybridplan.Ledger)\n"
        "print(account.crossover.tokens, account.contexts[0].tokens)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "530 512\n"


def test_public_names_are_listed_and_there() -> None:
    for name in hybridplan.__all__:
        assert getattr(hybridplan, name) is not None
        assert name in dir(hybridplan)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hybridplan.nothing
