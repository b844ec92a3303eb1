"""Bytes: what a model's layers hold, and how engines divide memory over them.

``hybridplan.ledger`` names both this package and the function that gives a model's account, so the
package can be called: ``hybridplan.ledger(spec, deployment)`` is ``ledger.account.ledger``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridplan.config.spec import ModelSpec
    from hybridplan.ledger.deployment import Deployment
    from hybridplan.ledger.result import Ledger


class _LedgerPackage(ModuleType):
    def __call__(
        self,
        spec: ModelSpec,
        deployment: Deployment | None = None,
        *,
        contexts: Sequence[int] = (),
        checkpoint_every: Sequence[int] = (),
    ) -> Ledger:
        from hybridplan.ledger.account import ledger

        return ledger(spec, deployment, contexts=contexts, checkpoint_every=checkpoint_every)


sys.modules[__name__].__class__ = _LedgerPackage
