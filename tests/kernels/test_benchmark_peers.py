"""The comparison's inputs and reference on our own kernels; a library that is missing says so."""

from __future__ import annotations

import pytest
import torch

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


def test_every_gate_has_a_peer_beside_ours() -> None:
    for listed in (peers.PREFILL, peers.DECODE):
        for gate in ("scalar", "channel"):
            assert len({peer.name for peer in listed if gate in peer.gates}) > 2
