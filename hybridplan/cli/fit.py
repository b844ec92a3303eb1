"""``hybridplan fit``: does it fit on this card, and what would."""

from __future__ import annotations

import typer

from hybridplan.cli import flags
from hybridplan.cli.common import JsonFlag, print_json, print_report
from hybridplan.errors import InputError
from hybridplan.ledger.deployment import Deployment, parse_engine
from hybridplan.ledger.memory import VLLM_UTILISATION
from hybridplan.ledger.planning.ask import VllmAsk
from hybridplan.ledger.vllm.options import VllmOptions


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fit", help="Whether a model fits a card; exit 0 fits, 1 does not.")(_fit)


def _fit(
    model: flags.Model,
    engine: flags.Engine = "vllm",
    gpu: flags.GpuName = None,
    kv_memory: flags.KvMemory = None,
    memory_utilization: flags.Utilisation = None,
    weights_memory: flags.Weights = None,
    activation_memory: flags.Activations = None,
    graph_memory: flags.Graphs = None,
    tp: flags.Tp = 1,
    pp: flags.Pp = 1,
    dcp: flags.Dcp = 1,
    kv_dtype: flags.KvDtype = None,
    state_dtype: flags.StateDtype = None,
    conv_dtype: flags.ConvDtype = None,
    drafts: flags.Drafts = 0,
    draft_method: flags.DraftMethodName = None,
    draft_layers: flags.DraftLayers = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.BatchedTokens = None,
    block_size: flags.BlockTokens = None,
    prefix_caching: flags.PrefixCaching = None,
    attention_backend: flags.Backend = None,
    enforce_eager: flags.Eager = False,
    download: flags.Download = False,
    json: JsonFlag = False,
) -> int:
    from hybridplan.config.find import load
    from hybridplan.ledger.planning.fit import fit

    name, version = parse_engine(engine)
    if name != "vllm":
        raise InputError(f"fit answers for vllm and --engine is {name}; see hybridplan plan")
    deployment = Deployment(name, version, tp, pp, dcp, kv_dtype, state_dtype, conv_dtype, drafts)
    spec = load(model, download=download)
    memory = flags.memory_ask(
        gpu,
        kv_memory,
        memory_utilization,
        VLLM_UTILISATION,
        weights=weights_memory,
        activations=activation_memory,
        graphs=graph_memory,
        eager=enforce_eager,
    )
    options = VllmOptions(
        max_model_len=max_model_len,
        block_tokens=block_size,
        prefix_caching=prefix_caching,
        attention_backend=attention_backend,
        **flags.drafter(draft_method, draft_layers, drafts, spec),
    )
    ask = VllmAsk(
        spec,
        deployment,
        options,
        memory,
        max_num_seqs,
        max_num_batched_tokens,
        graphs=not enforce_eager,
    )
    result = fit(ask)
    if json:
        from hybridplan.report.document import document

        print_json(document(result))
    else:
        from hybridplan.report.plan import fit_screen

        print_report(*fit_screen(result))
    return 0 if result.fits else 1
