"""Random requests that share prefixes, and costs small enough to fill a cache with them."""

from __future__ import annotations

from hypothesis import strategies as st

from hybridplan.sim.marconi.costs import ModelCosts

SMALL = ModelCosts.from_paper(64, 16, attention_layers=2, state_layers=3, mlp_layers=4)
CAPACITIES = st.builds(SMALL.prefix_bytes, st.integers(10, 200), st.integers(1, 8))


@st.composite
def served(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """(tokens, how many are prompt) of requests that often continue earlier ones."""
    token = st.integers(0, draw(st.sampled_from([1, 2, 500])))
    part = st.lists(token, min_size=1, max_size=30)
    requests: list[tuple[list[int], int]] = []
    for _ in range(draw(st.integers(1, 25))):
        prompt = draw(part)
        if requests and draw(st.booleans()):
            old = draw(st.sampled_from(requests))[0]
            prompt = old[: draw(st.integers(1, len(old)))] + prompt
        requests.append((prompt + draw(part), len(prompt)))
    return requests
