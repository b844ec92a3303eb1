"""``hybridplan models``."""

from __future__ import annotations

import json

import pytest

from hybridplan.cli import run
from hybridplan.config import catalogue
from hybridplan.ledger.account import ledger
from hybridplan.ledger.catalogue import catalogue as listing


def test_lists_every_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    shown = capsys.readouterr().out
    for name in catalogue.entries():
        assert name in shown
    assert "LLLF x 6" in shown


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    rows = {row["name"]: row for row in document["models"]}
    assert list(rows) == list(catalogue.entries())
    row = rows["qwen3.5-0.8b"]
    assert (row["pattern"], row["bytes_per_token"]) == ("LLLF x 6", 12_288)
    assert row["state_bytes"] == 19_537_920
    assert (row["params"], row["confidence"]) == (752_393_024, "values-from-docs")
    assert all(row["error"] is None for row in rows.values())


def test_agrees_with_the_ledger() -> None:
    from hybridplan.config.find import load

    for line in listing().models[::11]:
        account = ledger(load(line.name))
        assert line.state_bytes == account.per_request.bytes
        assert line.bytes_per_token == pytest.approx(account.per_token.bytes), line.name
        windowed = account.per_token.windowed_bytes
        assert line.windowed_bytes_per_token == pytest.approx(windowed), line.name
