"""Presets of every card: constants from what is published, or a sentence on what is missing."""

from __future__ import annotations

import pytest

import hybridplan
from hybridplan.errors import InputError
from hybridplan.ledger.calibration import card_of, load, preset, read_calibration, save
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu, gpus
from hybridplan.ledger.work import FEATURES, StepWork
from hybridplan.sim.time import step_clock
from hybridplan.sim.time.load import flop_dtype, other_card

CARDS = sorted({gpu.name for gpu in gpus().values()})


@pytest.mark.parametrize("name", CARDS)
def test_every_card_has_a_preset_or_says_what_is_missing(name: str) -> None:
    gpu = find_gpu(name)
    if "bf16" not in gpu.flops_per_s:
        with pytest.raises(InputError, match="no bf16 rate is known"):
            preset(gpu)
        return
    made = read_calibration(f"preset:{name}")
    assert set(made.constants) == {f"step.{feature}" for feature in FEATURES}
    assert all(c.how.startswith("assumed: ") and c.value > 0 for c in made.constants.values())
    assert made.assumed
    assert card_of(made) is gpu
    assert 1 / made.step_seconds("bytes") == pytest.approx(0.8 * gpu.bandwidth_bytes_per_s)


@pytest.mark.parametrize(
    "card, name", [("NVIDIA H200", "h200"), ("NVIDIA L4", "l4"), ("made up", None)]
)
def test_measured_card_is_known_by_the_name_the_driver_gives(card: str, name: str | None) -> None:
    from dataclasses import replace

    found = card_of(replace(preset(find_gpu("h100")), card=card))
    assert (found.name if found else None) == name


def test_a_file_gives_back_what_was_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = preset(find_gpu("h200"))
    save(made, tmp_path / "c.json")
    assert load(tmp_path / "c.json") == made


def test_a_constant_the_model_needs_is_missed_by_name() -> None:
    from dataclasses import replace

    made = preset(find_gpu("h200"))
    kept = {n: c for n, c in made.constants.items() if n != "step.scan_flop"}
    thin = replace(made, constants=kept, model="llama-3.1-8b")
    step_clock(thin, hybridplan.load("llama-3.1-8b"), Deployment("vllm"))
    with pytest.raises(InputError, match=r"has no constant step\.scan_flop"):
        step_clock(thin, hybridplan.load("qwen3.5-0.8b"), Deployment("vllm"))


def test_fp8_checkpoints_run_their_products_in_fp8() -> None:
    assert flop_dtype(hybridplan.load("qwen3.5-0.8b")) == "bf16"
    assert flop_dtype(hybridplan.load("deepseek-v3")) == "fp8"
    slow, fast = preset(find_gpu("h200")), preset(find_gpu("h200"), "fp8")
    assert fast.step_seconds("dense_flop") == pytest.approx(
        slow.step_seconds("dense_flop") / 2, rel=1e-3
    )
    assert fast.step_seconds("scan_flop") == slow.step_seconds("scan_flop")


def test_a_step_takes_the_sum_of_its_counts_times_constants() -> None:
    clock = step_clock("preset:h200", hybridplan.load("qwen3.5-0.8b"), Deployment("vllm"))
    work = StepWork([5000, 70], chunks=[(512, 700)], head_rows=3)
    charge = clock.charge(work)
    seconds = clock.calibration.seconds(charge.counts._asdict())
    assert charge.ticks / clock.ticks_per_s == pytest.approx(seconds, rel=1e-7)


def test_another_card_for_the_pool_is_said() -> None:
    clock = step_clock("preset:h200", hybridplan.load("qwen3.5-0.8b"), Deployment("vllm"))
    assert other_card(clock.calibration, "h200") == ()
    assert other_card(clock.calibration, None) == ()
    assert (
        "sized for l4, the steps are those of NVIDIA H200 SXM"
        in other_card(clock.calibration, "l4")[0]
    )
