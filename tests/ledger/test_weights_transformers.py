"""The same configs built by transformers without memory (meta device): every weight is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hybridplan.config import catalogue
from hybridplan.config.find import load
from hybridplan.ledger.weights import weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Shipped configs of a model type whose class transformers has under another name, lacks, or whose
# class is another model's.
NO_CLASS = {
    "qwen3.8-flash-next": "its own validation refuses the reconstructed file",
    "kimi-k3": "transformers 5.24 does not know the activation situ",
    "ling-2.6-flash": "bailing_hybrid there is the KDA design of Ling-3.0, not lightning",
    "ring-2.5-1t": "bailing_hybrid there is the KDA design of Ling-3.0, not lightning",
}


def _cases() -> Iterator[tuple[str, str]]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    for name, entry in catalogue.entries().items():
        data = json.loads(entry.path.read_text(encoding="utf-8"))
        text = data.get("text_config", data)
        kind = text.get("model_type") or data.get("model_type")
        if kind in CONFIG_MAPPING_NAMES and name not in NO_CLASS:
            yield name, kind


CASES = list(_cases())


def _model(name: str, kind: str) -> torch.nn.Module:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    data = json.loads(catalogue.entries()[name].path.read_text(encoding="utf-8"))
    text = data.get("text_config", data)
    dropped = ("quantization_config", "architectures", "auto_map")
    config = CONFIG_MAPPING[kind](**{k: v for k, v in text.items() if k not in dropped})
    auto = transformers.AutoModelForCausalLM
    if type(config) not in auto._model_mapping:
        pytest.skip("transformers has no text-only class for it")
    with torch.device("meta"):
        return auto.from_config(config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, kind", CASES, ids=[name for name, _ in CASES])
def test_same_weights(name: str, kind: str) -> None:
    model = _model(name, kind)
    model.tie_weights()
    parameters = {id(p): p.numel() for p in model.parameters()}
    stored = set(model.state_dict())
    buffers = {id(b): b.numel() for key, b in model.named_buffers() if key in stored}
    assert weights(load(name)).params == sum(parameters.values()) + sum(buffers.values())
