"""The page's arithmetic against the planner's and the ledger's, in a real browser."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from hybridplan.config.find import load
from hybridplan.errors import HybridplanError
from hybridplan.ledger.crossover import crossover_tokens
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.plan import plan_vllm
from hybridplan.report.page.assets import asset, script_json
from hybridplan.report.page.of_model import of_model
from hybridplan.report.page.settings import GIB, Settings, answer

from .browser import dump_dom, needs_chromium
from .random_settings import MODELS, some

ASKED = 900
_UNSERVED = ("minimax-text-01", "plamo-2-1b")

_HARNESS = """<!doctype html><meta charset="utf-8"><pre id="found"></pre><script>{rules}
const found = {settings}.map((s) => {{
  try {{ return explore(s); }} catch (error) {{
    if (!(error instanceof Refusal)) throw error;
    return {{ refused: error.message }};
  }}
}});
document.getElementById("found").textContent = JSON.stringify(found);
</script>"""


def in_browser(settings: list[Settings], folder: Path) -> list[dict[str, Any]]:
    page = folder / "rules.html"
    asked = script_json([asdict(one) for one in settings])
    page.write_text(_HARNESS.format(rules=asset("rules.js"), settings=asked), encoding="utf-8")
    dom = dump_dom(page, folder)
    written = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert written is not None
    assert written[1], "the script of the page failed"
    found: list[dict[str, Any]] = json.loads(unescape(written[1]))
    return found


def by_python(settings: Settings) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(json.dumps(asdict(answer(settings))))
    except HybridplanError as error:
        return {"refused": error.sentence}
    return found


def trimmed(found: dict[str, Any]) -> dict[str, Any]:
    """What both sides answer; where either refuses, only that it does."""
    if "refused" in found or not found.get("fits", True):
        return {"refused": True}
    extra = ("granularity_tokens", "raised", "fits")
    kept = {key: value for key, value in found.items() if key not in extra}
    kept["groups"] = [
        {key: value for key, value in group.items() if key != "slots"} for group in found["groups"]
    ]
    return kept


@needs_chromium
def test_browser_and_planner_agree_on_random_settings(tmp_path: Path) -> None:
    settings = some(ASKED, seed=20261129)
    answered = in_browser(settings, tmp_path)
    assert len(answered) == ASKED
    wrong = []
    agreed = refused = 0
    for asked, found in zip(settings, answered, strict=True):
        wanted = trimmed(by_python(asked))
        if trimmed(found) != wanted:
            wrong.append((asked, found, wanted))
        elif "refused" in wanted:
            refused += 1
        else:
            agreed += 1
    assert not wrong, f"{len(wrong)} of {ASKED} differ, the first: {wrong[0]}"
    assert agreed >= ASKED // 2, f"only {agreed} settings had an answer, {refused} were refused"


@pytest.mark.parametrize("model", [name for name in MODELS if name not in _UNSERVED])
def test_settings_stand_for_the_real_model(model: str) -> None:
    spec, deployment = load(model), Deployment()
    settings = of_model(spec, deployment)
    found = answer(settings)
    options = VllmOptions(
        max_model_len=settings.context_tokens, max_num_batched_tokens=settings.batched_tokens
    )
    pool = plan_vllm(spec, deployment, options, settings.memory_gib * GIB)
    assert [group.layers for group in found.groups] == [len(group.layers) for group in pool.groups]
    assert found.block_tokens == pool.block_tokens
    assert found.bytes_per_block == pool.bytes_per_block
    assert found.blocks_per_request == sum(pool.blocks_per_request)
    assert found.kv_tokens == pool.kv_tokens
    assert found.crossover_tokens == crossover_tokens(spec, deployment)
