"""The comparison's inputs and reference on our own kernels; a library that is missing says so."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.kernels import compare, peers, registry

PREFILL = {peer.name: peer for peer in peers.PREFILL}
DECODE = {peer.name: peer for peer in peers.DECODE}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One or two heads of the real width, which the interpreter gets through."""
    sizes = {"0.8B": (1, 1), "next": (1, 2), "kimi": (1, 1), "kimi bounded": (1, 1)}
    monkeypatch.setattr(registry, "HEADS", sizes)
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.parametrize("heads", ["next", "kimi", "kimi bounded"])
@pytest.mark.usefixtures("small")
def test_prefill_and_step_meet_the_reference(heads: str, device: torch.device) -> None:
    x = registry.make(heads, (70, 33), device, 3)
    error = compare.checked(PREFILL["ours"].call, x, {}, compare.reference(x))
    assert max(error) < 8e-3
    step = registry.make(heads, (1,) * 3, device, 4)
    error = compare.checked(DECODE["ours"].call, step, {}, compare.reference(step))
    assert error[0] < 5e-3
    assert error[1] < 1e-6


@pytest.mark.usefixtures("small")
def test_a_bounded_gate_stays_above_its_bound(device: torch.device) -> None:
    x = registry.make("kimi bounded", (50,), device, 5)
    g, _ = x.exact()
    assert float(g.min()) > registry.LOWER_BOUND
    assert float((x.log_decay().double() - g).abs().max()) < 1e-5


def test_a_missing_library_is_named_with_its_reason() -> None:
    peer = peers.Peer("nobody's", peers.ours_prefill, ("scalar",), ("no_such_library",))
    assert peer.absent().startswith("no_such_library: ModuleNotFoundError")
    assert PREFILL["ours"].absent() == ""
    missing = compare.absent()
    assert not any(name.startswith("ours") for name in missing)


@pytest.mark.usefixtures("small")
def test_a_run_can_be_of_some_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.Peer, "absent", lambda _: "")
    x = registry.make("next", (4,), torch.device("cpu"), 8)
    names = [peer.name for peer in compare.runnable(peers.PREFILL, x, ["fla", "ours", "flashkda"])]
    assert names == ["ours", "fla"]
    assert len(list(compare.runnable(peers.PREFILL, x, []))) == 5


def test_every_gate_has_a_peer_beside_ours() -> None:
    for listed in (peers.PREFILL, peers.DECODE):
        for gate in ("scalar", "channel"):
            assert len({peer.name for peer in listed if gate in peer.gates}) > 2


VIEWS = {
    "alias",
    "detach",
    "select",
    "slice",
    "t",
    "transpose",
    "unsqueeze",
    "view",
    "_unsafe_view",
}


class _Operations(TorchDispatchMode):
    """Names of the operations that are run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


class _Library(types.ModuleType):
    """A library whose every function returns the same two tensors, made beforehand."""

    __path__ = ()
    __version__ = "0.6.13"
    result = (torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self.result


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every library's functions, ours too, do nothing."""
    ours = ("gated_prefill", "gated_step", "kimi_prefill", "kimi_step")
    for name in ours:
        monkeypatch.setattr(peers, name, lambda *_, **__: None)
    monkeypatch.setattr(peers, "vllm_ops", lambda name: _Library(name))
    for name in (
        "fla", "fla.ops", "fla.ops.gated_delta_rule", "fla.ops.kda", "fla.ops.kda.fused_recurrent",
        "fla.modules", "fla.modules.norm", "fla.modules.norm.l2norm", "flash_qla", "flash_kda",
        "flashinfer", "flashinfer.gdn_prefill", "flashinfer.gdn_decode",
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, _Library(name))


HEADS_OF_GATE = {"scalar": "next", "channel": "kimi", "bounded": "kimi bounded"}


@pytest.mark.parametrize("lengths", [(5,), (3, 1)], ids=["one-sequence", "two-sequences"])
@pytest.mark.parametrize(
    "peer, gate",
    [
        pytest.param(peer, gate, id=f"{kind}-{peer.name}-{gate}".replace(" ", "-"))
        for kind, listed in (("prefill", peers.PREFILL), ("decode", peers.DECODE))
        for peer in listed
        for gate in peer.gates
    ],
)
@pytest.mark.usefixtures("small", "libraries")
def test_a_timed_call_runs_the_library_and_nothing_else(
    peer: peers.Peer, gate: str, lengths: tuple[int, ...]
) -> None:
    """No state gathered, no gate computed, no tensor made or converted after the first call."""
    sequences = lengths if peer in peers.PREFILL else (1,) * len(lengths)
    x = registry.make(HEADS_OF_GATE[gate], sequences, torch.device("cpu"), 6)
    kept: dict[str, object] = {}
    peer.call(x, kept)
    with _Operations() as run:
        peer.call(x, kept)
    assert set(run.names) <= VIEWS


@pytest.mark.usefixtures("small")
def test_inputs_of_the_same_lengths_share_their_boundaries() -> None:
    """A library that derives chunk tables from a tensor of boundaries keeps them by identity."""
    device = torch.device("cpu")
    one, two = (registry.make("next", (3, 4), device, seed) for seed in (1, 2))
    assert one.cu_seqlens is two.cu_seqlens
    assert one.cu_seqlens_int32 is two.cu_seqlens_int32
    assert one.cu_seqlens.tolist() == one.cu_seqlens_int32.tolist() == [0, 3, 7]
    assert (one.cu_seqlens.dtype, one.cu_seqlens_int32.dtype) == (torch.int64, torch.int32)


@pytest.mark.usefixtures("small")
def test_a_call_that_writes_into_its_inputs_is_refused_and_undone() -> None:
    x = registry.make("next", (4,), torch.device("cpu"), 7)
    v = x.v.clone()

    def overwrite(x: registry.Inputs, _: dict[str, object]):
        x.v.zero_()
        return x.v, x.pool[1:]

    with pytest.raises(RuntimeError, match="wrote into its inputs"):
        compare.checked(overwrite, x, {}, compare.reference(x))
    assert torch.equal(x.v, v)


def test_a_record_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    for rows in ([], [{"us": 1.0}]):
        compare.save({"rows": rows}, path)
        assert json.loads(path.read_text())["rows"] == rows
    assert [file.name for file in tmp_path.iterdir()] == ["rows.json"]


def test_decode_rotates_more_states_than_the_cache_keeps():
    large = 7 * compare.L2_BYTES
    assert compare.decode_sets(large) * large >= 32 * compare.L2_BYTES
    assert compare.decode_sets(64 * compare.L2_BYTES) == 1
    assert compare.decode_sets(1) == 512
