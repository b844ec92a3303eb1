"""hybridplan: memory and prefix-cache planning for hybrid language models.

``load(name)`` reads a model, ``ledger(spec, deployment)`` accounts for it, ``simulate(requests,
engine)`` replays a trace; all return the typed objects that the command line prints. Names are
resolved on first use, so importing is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridplan.config.find import load
    from hybridplan.config.spec import ModelSpec
    from hybridplan.errors import HybridplanError
    from hybridplan.ledger.account import ledger
    from hybridplan.ledger.deployment import Deployment
    from hybridplan.ledger.result import Comparison, Ledger
    from hybridplan.sim.replay import simulate

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Deployment",
    "HybridplanError",
    "Ledger",
    "ModelSpec",
    "__version__",
    "ledger",
    "load",
    "simulate",
]

_HOMES = {
    "Comparison": "hybridplan.ledger.result",
    "Deployment": "hybridplan.ledger.deployment",
    "HybridplanError": "hybridplan.errors",
    "Ledger": "hybridplan.ledger.result",
    "ModelSpec": "hybridplan.config.spec",
    "load": "hybridplan.config.find",
    "simulate": "hybridplan.sim.replay",
}


def __getattr__(name: str) -> Any:
    if name == "ledger":
        return import_module("hybridplan.ledger")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
