"""Run by test_launch in a process of its own, where kernels are compiled and not interpreted.

Every operator is called four ways on one driver that digests launches (benchmarks/kernels/
idle_driver): Triton's own launch, the compiled kernel's, the direct call, the recipe.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from benchmarks.kernels import host_overhead, idle_driver


def main() -> None:
    """Print per operator (those named, or all) the digests of the four ways and what was used."""
    idle = idle_driver.activate()
    host_overhead.stand_in_for_cuda()
    from hybridplan.kernels.common import launch, recipe

    arena: dict[tuple[int, int], torch.Tensor] = {}
    taken: Counter[int] = Counter()
    empty = torch.empty

    def same_place(*shape: object, **more: object) -> torch.Tensor:
        size = empty(*shape, **{**more, "device": "meta"})
        key = (size.nbytes, taken[size.nbytes])
        taken[size.nbytes] += 1
        if key not in arena:
            arena[key] = empty(size.nbytes, dtype=torch.uint8)
        return arena[key].view(size.dtype).view(size.shape)

    hooked, get = launch.hooked, recipe.Recipes.get
    torch.empty = same_place
    rows = {}
    repeated = []
    repeat = recipe.Recipe.run
    recipe.Recipe.run = lambda *given: repeated.append(repeat(*given)) or repeated[-1]
    for name, call in host_overhead.calls(2048):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        found: dict[str, int] = {}

        def run(way: str, call: object = call, found: dict[str, int] = found) -> None:
            taken.clear()
            idle.digest()
            call()
            found[way] = idle.digest()

        def forget() -> None:
            for launcher in host_overhead.launchers():
                launcher._kinds.clear()
                launcher._seen.clear()

        recipe.Recipes.get = lambda *_: None
        run("compile")
        for launcher in host_overhead.launchers():
            for kind in launcher._kinds.values():
                idle.knows(kind.kernel)
        forget()
        run("triton")
        launch.hooked = lambda: True
        run("compiled")
        launch.hooked = hooked
        run("direct")
        recipe.Recipes.get = get
        repeated.clear()
        maps = idle.maps
        run("recipe")
        run("recipe again")
        del found["compile"]
        refusals = sorted({r for x in host_overhead.launchers() for r in x.refusals})
        rows[name] = {"digests": found, "maps": idle.maps - maps, "refusals": refusals}
        rows[name]["repeated"] = list(repeated)
    sys.stdout.write(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
