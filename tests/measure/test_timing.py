"""Where calls run and how many inputs rotate, on a torch that only writes down what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.measure.timing import Timer

L2 = 60 << 20


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, _: Stream) -> None:
        pass


class Event:
    """The k-th event of a run is recorded k milliseconds after the first."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.made += 1
        self.at = Event.made

    def elapsed_time(self, other: Event) -> float:
        return float(other.at - self.at)


class Cuda:
    """Streams and graphs of a device that runs nothing."""

    def __init__(self) -> None:
        self.current = Stream("default")
        self.streams = 0
        self.captures: list[str] = []
        self.capturing = False

        class Graph:
            replays = 0

            def replay(self) -> None:
                Graph.replays += 1

        self.CUDAGraph, self.Event = Graph, Event

    def Stream(self, _: Any) -> Stream:  # noqa: N802 - torch's name
        self.streams += 1
        return Stream(f"side {self.streams}")

    def current_stream(self, _: Any) -> Stream:
        return self.current

    def synchronize(self, _: Any) -> None:
        assert not self.capturing, "a capture must not wait for the device"

    @contextmanager
    def stream(self, wanted: Stream) -> Iterator[None]:
        before, self.current = self.current, wanted
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, _: Any, stream: Stream) -> Iterator[None]:
        """As torch's: a capture that fails leaves its stream the current one."""
        before, self.current = self.current, stream
        self.capturing = True
        self.captures.append(stream.name)
        yield
        self.capturing = False
        self.current = before


class Torch:
    def __init__(self) -> None:
        self.cuda = Cuda()


def timer() -> tuple[Timer, Cuda]:
    torch = Torch()
    return Timer(torch, "device", L2), torch.cuda


def test_warm_ups_and_captures_share_one_stream_and_replays_use_the_callers() -> None:
    clock, cuda = timer()
    seen: list[tuple[str, bool]] = []
    for _ in range(2):
        clock.graph([lambda: seen.append((cuda.current.name, cuda.capturing))] * 3)
    assert seen == ([("side 1", False)] * 3 + [("side 1", True)] * 3) * 2
    assert cuda.streams == 1
    assert cuda.captures == ["side 1", "side 1"]
    assert cuda.current.name == "default"


def test_a_call_that_cannot_be_captured_leaves_the_callers_stream() -> None:
    clock, cuda = timer()

    def refuses() -> None:
        if cuda.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        clock.graph([refuses])
    assert cuda.current.name == "default"


def test_a_time_is_a_calls_share_of_a_graph_and_takes_two_rounds() -> None:
    clock, _ = timer()
    done = clock.graph([lambda: None] * 4)
    assert done.seconds == pytest.approx(1e-3 / 4)
    assert done.spread == 0
    assert done.replays == 2 * 12  # 12 ms of budget, 1 ms a replay


@given(st.integers(1, 1 << 34))
def test_rotated_inputs_leave_l2_before_their_next_turn(size: int) -> None:
    sets = timer()[0].sets(size)
    enough = sets * size >= 3 * L2
    assert enough or sets == 256  # below 1 MiB a step is launches, not bytes
    assert sets * size <= 4 * L2 + size
