"""The shipped models at a glance: layers, bytes and how sure the source of each config is."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.config.catalogue import Entry, entries
from hybridplan.config.find import load_entry
from hybridplan.errors import HybridplanError
from hybridplan.ledger.account import state_lines, token_lines
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.pattern import layer_pattern
from hybridplan.ledger.weights import weights

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class CatalogueLine:
    """One shipped model under the default deployment, whole model.

    ``bytes_per_token`` grows without bound, ``windowed_bytes_per_token`` until the windows are
    full; ``state_bytes`` is what a request holds at any length (state and convolution). ``error``
    is the reason why a config has no ledger; the numbers are None then. ``params`` leave draft
    layers, lookup tables and vision out; None where the file describes caches only.
    """

    name: str
    model_id: str
    model_type: str | None
    layers: int | None
    pattern: str | None
    bytes_per_token: float | None
    windowed_bytes_per_token: float | None
    state_bytes: int | None
    params: int | None
    active_params: int | None
    max_tokens: int | None
    confidence: str
    source: str
    notes: tuple[str, ...]
    error: str | None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All shipped models, in the order of SOURCES.md."""

    schema_version: int
    engine: str
    models: tuple[CatalogueLine, ...]


def catalogue() -> Catalogue:
    """Read every shipped config; one that cannot be read says why and stops nothing."""
    deployment = Deployment()
    lines = tuple(_line(entry, deployment) for entry in entries().values())
    return Catalogue(SCHEMA_VERSION, deployment.engine, lines)


def _line(entry: Entry, deployment: Deployment) -> CatalogueLine:
    try:
        spec = load_entry(entry)
        caches = model_caches(spec, deployment)
        tokens = token_lines(caches, deployment.tp)
        states = state_lines(caches, deployment.tp)
    except HybridplanError as error:
        nothing = (None,) * 9
        return CatalogueLine(
            entry.name,
            entry.model_id,
            *nothing,
            entry.confidence,
            entry.source,
            (),
            error.sentence,
        )
    counted = weights(spec) if spec.hidden_size else None
    return CatalogueLine(
        name=entry.name,
        model_id=entry.model_id,
        model_type=spec.model_type,
        layers=len(spec.layers),
        pattern=layer_pattern(spec.layers),
        bytes_per_token=sum(t.bytes_per_token for t in tokens if t.window_tokens is None),
        windowed_bytes_per_token=sum(t.bytes_per_token for t in tokens if t.window_tokens),
        state_bytes=sum(state.bytes for state in states),
        params=counted.params if counted else None,
        active_params=counted.active_params if counted else None,
        max_tokens=spec.max_tokens,
        confidence=entry.confidence,
        source=entry.source,
        notes=spec.notes,
        error=None,
    )
