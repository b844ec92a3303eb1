"""Constants fitted to request logs: made ones, whose constants are known, and real ones."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hybridplan.config.find import load
from hybridplan.errors import InputError
from hybridplan.ledger.calibration import Calibration, preset
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.gpu import find_gpu
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.work.model import work_model
from hybridplan.sim.arrival import Timed
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.setup import EngineAsk, VllmFlags, build
from hybridplan.sim.time.clock import StepClock
from hybridplan.sim.time.fit import FitAsk, LogFit, Split, _taken, fit_log
from hybridplan.sim.time.fit_log import Logged, RequestLog, read_log
from hybridplan.sim.time.fit_replay import replay_log

DATA = Path(__file__).parents[2] / "data"
TRUTH = {
    "step": 3e-3,
    "launches": 0.0,
    "bytes": 6e-13,
    "dense_flop": 4e-15,
    "attention_flop": 9e-15,
    "scan_flop": 2e-14,
}


def truth() -> Calibration:
    base = preset(find_gpu("h200"))
    constants = {
        f"step.{name}": replace(base.constants[f"step.{name}"], value=value)
        for name, value in TRUTH.items()
    }
    return replace(base, constants=constants)


def clock(ask: EngineAsk) -> StepClock:
    return StepClock(work_model(ask.spec, ask.deployment), truth())


def made_requests(count: int, per_s: float) -> list[Logged]:
    chance = random.Random(1)
    found, now = [], 0.0
    for index in range(count):
        prompt = Prompt(1 + int(chance.lognormvariate(6.5, 1.0)) % 3000)
        request = Request(str(index), prompt, 1 + int(chance.expovariate(1 / 120)), round(now, 9))
        found.append(Logged(request, 0.0, 0.0))
        now += chance.expovariate(per_s)
    return found


def made_log(model: str, per_s: float, count: int = 60) -> FitAsk:
    ask = EngineAsk(load(model), Deployment("vllm", "0.33"), VllmFlags(max_num_batched_tokens=2048))
    built = build(ask)
    empty = made_requests(count, per_s)
    replayed = replay_log(empty, lambda: built.engine(losses=False), clock(ask))
    requests = []
    for logged, outcome in zip(empty, replayed.outcomes, strict=True):
        assert outcome.ttft_s is not None
        assert outcome.e2e_s is not None
        first, last = (logged.arrival_s + wait for wait in (outcome.ttft_s, outcome.e2e_s))
        requests.append(replace(logged, first_token_s=first, last_token_s=last))
    return FitAsk(RequestLog("made", tuple(requests), "one clock"), ask)


@pytest.mark.parametrize("split", ["time", "alternate"])
@pytest.mark.parametrize("model, per_s", [("llama-3.1-8b", 8.0), ("qwen3.5-0.8b", 20.0)])
def test_latencies_of_known_constants_are_predicted(model: str, per_s: float, split: Split) -> None:
    result = fit_log(replace(made_log(model, per_s), split=split))
    assert result.holds
    assert {found.measure for found in result.judged} == {"TTFT", "TPOT", "e2e"}
    for found in result.judged:
        assert abs(found.error) < (0.10 if found.measure == "TTFT" else 0.03), found


def test_known_constants_come_back() -> None:
    found = fit_log(made_log("llama-3.1-8b", 8.0)).calibration
    for name, relative in (("step", 0.1), ("bytes", 0.03), ("dense_flop", 0.02)):
        assert found.step_seconds(name) == pytest.approx(TRUTH[name], rel=relative)
    assert found.step_seconds("attention_flop") == pytest.approx(TRUTH["attention_flop"], rel=0.25)
    assert not found.assumed
    assert (found.fitted_points, found.judged_points) == (30, 30)


@pytest.mark.parametrize("split", ["time", "alternate"])
def test_stamps_of_judged_requests_are_never_used(split: Split) -> None:
    ask = replace(made_log("qwen3.5-0.8b", 20.0, 40), split=split)
    taken = _taken(40, ask.share, split, 6)
    moved = [
        logged
        if is_fitted
        else replace(
            logged,
            first_token_s=logged.first_token_s + 5.0,
            last_token_s=logged.last_token_s + 60.0,
        )
        for logged, is_fitted in zip(ask.log.requests, taken, strict=True)
    ]
    other = fit_log(replace(ask, log=replace(ask.log, requests=tuple(moved))))
    found = fit_log(ask)
    assert other.calibration.constants == found.calibration.constants
    assert other.fitted == found.fitted
    assert not other.holds


def test_a_log_is_replayed_as_any_trace_and_its_work_fills_its_time() -> None:
    ask = made_log("qwen3.5-0.8b", 20.0).engine
    requests = made_requests(60, 20.0)
    built = build(ask)
    replayed = replay_log(requests, lambda: built.engine(losses=False), clock(ask))
    twin = Replay(
        [logged.request for logged in requests],
        built.engine(losses=False),
        arrival=Timed(),
        clock=clock(ask),
    )
    by_name = {outcome.request_id: outcome for outcome in twin}
    assert [by_name[outcome.request_id] for outcome in replayed.outcomes] == list(replayed.outcomes)
    per_unit = [TRUTH[name] for name in TRUTH]
    for index, outcome in enumerate(replayed.outcomes):
        assert outcome.ttft_s is not None
        assert outcome.e2e_s is not None
        waited, decoded = (
            sum(a * b for a, b in zip(counts[index], per_unit, strict=True))
            for counts in (replayed.waiting, replayed.decoding)
        )
        assert waited == pytest.approx(outcome.ttft_s, rel=1e-6)
        assert decoded == pytest.approx(outcome.e2e_s - outcome.ttft_s, rel=1e-6, abs=1e-9)
        assert replayed.decoding[index][0] == pytest.approx(outcome.output_tokens - 1, abs=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.77])
def test_both_splits_fit_the_share(share: float) -> None:
    first, spread = (_taken(300, share, split, 5) for split in ("time", "alternate"))
    assert sum(first) == sum(spread) == round(300 * share)
    assert first == sorted(first, reverse=True)
    gaps = [index for index, is_fitted in enumerate(spread) if is_fitted]
    assert max(b - a for a, b in pairwise(gaps)) <= 1 / share + 1


def test_shares_that_leave_too_little_are_refused() -> None:
    for share in (0.0, 1.0, -1.0):
        with pytest.raises(InputError, match="must lie between 0 and 1"):
            _taken(300, share, "time", 5)
    for share in (0.01, 0.999):
        with pytest.raises(InputError, match="at least 10 are needed, and one more to judge"):
            _taken(300, share, "time", 5)


def test_a_request_the_engine_refuses_is_named() -> None:
    ask = made_log("llama-3.1-8b", 8.0)
    short = replace(
        ask.engine,
        flags=VllmFlags(max_num_batched_tokens=2048, options=VllmOptions(max_model_len=1000)),
    )
    with pytest.raises(InputError, match=r"the log served request .* would refuse it: a prompt of"):
        fit_log(replace(ask, engine=short))


def real(log: str, model: str, split: Split, tp: int, flags: VllmFlags) -> LogFit:
    ask = EngineAsk(load(model), Deployment("vllm", "0.33", tp), flags)
    return fit_log(FitAsk(read_log(DATA / log), ask, split=split))


# Two engines in step, each with half of the experts, stand as one of twice the limits on two ranks.
TWO_IN_STEP = VllmFlags(max_num_seqs=256, max_num_batched_tokens=4096)
ONE = VllmFlags(max_num_seqs=128, max_num_batched_tokens=2048)
LITTLE_MEMORY = VllmFlags(
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    num_blocks=2588,
    options=VllmOptions(max_model_len=32768),
)
MOE = "traces/vllm_request_log_qwen3-30b-a3b.jsonl"
PRO_6000 = "request_logs/llama-3.1-8b_rtx-pro-6000.jsonl.gz"
RTX_4090 = "request_logs/llama-3.1-8b_rtx-4090.jsonl.gz"


@pytest.mark.parametrize(
    "log, model, split, tp, flags",
    [
        pytest.param(MOE, "qwen3-30b-a3b", "time", 2, TWO_IN_STEP, id="moe-first-half"),
        pytest.param(MOE, "qwen3-30b-a3b", "alternate", 2, TWO_IN_STEP, id="moe-every-other"),
        pytest.param(PRO_6000, "llama-3.1-8b", "time", 1, ONE, id="dense-first-half"),
        pytest.param(RTX_4090, "llama-3.1-8b", "alternate", 1, LITTLE_MEMORY, id="preempting"),
    ],
)
def test_real_runs_are_predicted_from_half_of_them(
    log: str, model: str, split: Split, tp: int, flags: VllmFlags
) -> None:
    result = real(log, model, split, tp, flags)
    assert (result.fitted_requests, result.judged_requests) == (150, 150)
    assert result.settled
    errors = {(found.measure, found.percent): abs(found.error) for found in result.judged}
    for measure in ("TTFT", "TPOT"):
        assert errors[measure, 50] <= 0.15
        assert errors[measure, 99] <= 0.30
    assert result.holds
    assert max(c.value for c in result.calibration.constants.values()) < 1.0
