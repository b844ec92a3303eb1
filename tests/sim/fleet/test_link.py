"""Links: transfers one after another, whole ticks, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.sim.fleet.link import Link, LinkSpeed, send

TICKS = 10**9


def test_a_transfer_takes_its_bytes_and_the_latency() -> None:
    speed = LinkSpeed.of_gb_s(25, "--transfer-gb-s", 0.001)
    assert speed.bytes_per_s == 25 * 10**9
    assert speed.ticks(25 * 10**6, TICKS) == 2 * 10**6
    assert LinkSpeed(3).ticks(1, 10) == 4  # rounded up


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 100), st.integers(1, 50)),
        max_size=30,
    )
)
def test_no_end_does_two_things_at_once(asked: list[tuple[int, int, int, int]]) -> None:
    senders, receivers = [Link() for _ in range(3)], [Link() for _ in range(2)]
    spans: dict[int, list[tuple[int, int]]] = {}
    for sender, receiver, ready, moved in sorted(asked, key=lambda one: one[2]):
        ends = (senders[sender], receivers[receiver])
        begin, end = send(ends, LinkSpeed(TICKS), moved, ready, TICKS)
        assert begin >= ready
        assert end - begin == moved
        for link in ends:
            assert all(begin >= past_end for _, past_end in spans.get(id(link), []))
            spans.setdefault(id(link), []).append((begin, end))
    for links in (senders, receivers):
        assert sum(link.moved_bytes for link in links) == sum(moved for *_, moved in asked)
        assert sum(link.transfers for link in links) == len(asked)
        assert all(link.busy_ticks == link.moved_bytes for link in links)


@pytest.mark.parametrize("gb_per_s", [0, -1, 1e7])
def test_a_link_without_a_speed_is_refused(gb_per_s: float) -> None:
    with pytest.raises(InputError, match="--transfer-gb-s"):
        LinkSpeed.of_gb_s(gb_per_s, "--transfer-gb-s")
