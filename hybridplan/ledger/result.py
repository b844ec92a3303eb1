"""The ledger as a typed result: what ``account.ledger`` returns and --json prints.

Bytes are those of one tensor parallel rank over all layers unless a name says total; pipeline
stages divide them further and stand in ``stages``. A total counts every rank's copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.ledger.caches import State, TokenCache
from hybridplan.ledger.checkpoints import Checkpoints
from hybridplan.ledger.crossover import Crossover
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.figure import Figure
from hybridplan.ledger.speculation import Speculation
from hybridplan.ledger.transfer import Transfer
from hybridplan.ledger.weights import Weights

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Model:
    """What the ledger is of. ``pattern`` spells the layers, see ``pattern.LEGEND``."""

    name: str
    model_type: str
    architecture: str
    pattern: str
    layers: int
    attention_layers: int
    recurrent_layers: int
    max_tokens: int
    dtype: str
    file: str
    confidence: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenCacheLine:
    """Layers that hold the same per-token cache. ``bytes_*`` of one rank; totals count copies.

    ``bytes_per_token`` is of all ``layers`` together, before a window closes; ``copies`` ranks
    hold the same bytes, ``context_ranks`` (DCP) share the tokens.
    """

    name: str
    layers: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: str
    bytes_per_entry: int
    tokens_per_entry: int
    window_tokens: int | None
    bytes_per_token: float
    total_bytes_per_token: float
    copies: int
    context_ranks: int


@dataclass(frozen=True, slots=True)
class StateLine:
    """Layers that hold the same fixed state. ``bytes`` of all ``layers`` on one rank."""

    name: str
    mixer: str
    layers: int
    shape: tuple[int, ...]
    dtype: str
    layer_bytes: int
    bytes: int
    total_bytes: int
    copies: int
    checkpointed: bool


@dataclass(frozen=True, slots=True)
class PerToken:
    """Bytes one more token adds. ``windowed_bytes`` only until the windows are full."""

    bytes: float
    windowed_bytes: float
    twin_bytes: float | None
    total_bytes: float


@dataclass(frozen=True, slots=True)
class PerRequest:
    """Bytes that a request holds at any length."""

    state_bytes: int
    conv_bytes: int
    other_bytes: int
    bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ContextLine:
    """One request of ``tokens``. ``ratio`` is twin / hybrid."""

    tokens: int
    kv_bytes: int
    fixed_bytes: int
    hybrid_bytes: int
    twin_bytes: int | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers ``first`` to ``last`` (counted from 0) on one pipeline stage."""

    first: int
    last: int
    bytes_per_token: float
    fixed_bytes: int
    longest_request_bytes: int


@dataclass(frozen=True, slots=True)
class LayerLine:
    """One layer, as it stands in the model."""

    index: int
    sign: str
    mlp: str
    reads_layer: int | None
    tokens: tuple[TokenCache, ...]
    states: tuple[State, ...]


@dataclass(frozen=True, slots=True)
class Ledger:
    """All that ``hybridplan ledger`` says. ``deployment`` has its dtypes resolved.

    ``figures`` are the chains behind the numbers, inputs before what is computed from them.
    """

    schema_version: int
    model: Model
    deployment: Deployment
    token_caches: tuple[TokenCacheLine, ...]
    states: tuple[StateLine, ...]
    per_token: PerToken
    per_request: PerRequest
    contexts: tuple[ContextLine, ...]
    crossover: Crossover
    checkpoints: Checkpoints
    speculation: Speculation
    transfer: Transfer
    weights: Weights
    stages: tuple[Stage, ...]
    replicated: tuple[str, ...]
    assumptions: tuple[str, ...]
    layers: tuple[LayerLine, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several models under the same choices, in the order asked for."""

    schema_version: int
    ledgers: tuple[Ledger, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The figures that were asked to be explained; their inputs name further figures."""

    schema_version: int
    figures: tuple[Figure, ...]
