"""Files nobody should have called config.json: one sentence each, exit code 2."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridplan.cli import run
from hybridplan.config.find import load
from hybridplan.config.jsonfile import MOST_BYTES, MOST_DEPTH, parse_object
from hybridplan.errors import ConfigError, InputError

GOOD = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def _with(**changes: object) -> bytes:
    return json.dumps(GOOD | changes).encode()


CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t ", "is empty"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
    "truncated": (_with()[:-20], "line 1"),
    "two documents": (_with() + _with(), "Extra data"),
    "comments": (b'{"model_type": "qwen3", // no\n}', "line 1"),
    "a list": (b"[1, 2]", "one JSON object"),
    "a number": (b"32", "one JSON object"),
    "null": (b"null", "one JSON object"),
    "duplicate key": (b'{"model_type": "qwen3", "model_type": "llama"}', '"model_type" twice'),
    "nested duplicate": (b'{"text_config": {"head_dim": 1, "head_dim": 2}}', '"head_dim" twice'),
    "nesting bomb": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nests deeper"),
    "list bomb": (b'{"a":' + b"[" * 1_000_000, "nests deeper"),
    "utf-16": (json.dumps(GOOD).encode("utf-16"), "UTF-16"),
    "utf-16 without mark": (json.dumps(GOOD).encode("utf-16-le"), "UTF-16"),
    "latin-1": (b'{"name": "caf\xe9"}', "UTF-8"),
    "binary": (bytes(range(256)) * 8, "UTF"),
    "gguf": (b"GGUF\x03\x00\x00\x00" + bytes(64), "is a GGUF file"),
    "too large": (b" " * (MOST_BYTES + 1) + b"{}", "larger than 16 MiB"),
    "endless digits": (b'{"num_hidden_layers": ' + b"9" * 100_000 + b"}", "100,000 digits"),
    "number as string": (_with(num_hidden_layers="4"), "num_hidden_layers must be a whole number"),
    "fraction": (_with(head_dim=128.5), "head_dim must be a whole number"),
    "whole fraction": (_with(head_dim=128.0), "head_dim must be a whole number"),
    "boolean": (_with(num_key_value_heads=True), "must be a whole number, not true"),
    "list as number": (_with(hidden_size=[1024]), "must be a whole number, not a list"),
    "negative": (_with(num_key_value_heads=-8), "num_key_value_heads is -8"),
    "zero heads": (_with(num_attention_heads=0), "num_attention_heads is 0"),
    "absurd layers": (_with(num_hidden_layers=10**18), "num_hidden_layers is 1000000000000000000"),
    "absurd width": (_with(hidden_size=10**30), "hidden_size is 10"),
    "heads do not divide": (_with(num_key_value_heads=7), "not a multiple"),
    "missing head_dim": (_with(head_dim=None), "head_dim is missing"),
    "missing KV heads": (_with(num_key_value_heads=None), "num_key_value_heads is missing"),
    "missing layers": (_with(num_hidden_layers=None), "num_hidden_layers is missing"),
    "missing context": (_with(max_position_embeddings=None), "max_position_embeddings"),
    "infinity where it counts": (
        b'{"model_type": "qwen3", "num_hidden_layers": Infinity}',
        "num_hidden_layers must be a whole number, not inf",
    ),
    "nothing": (b"{}", "neither model_type nor architectures"),
    "unknown type": (_with(model_type="gpt17"), 'model_type is "gpt17"'),
    "unknown architecture": (_with(architectures=["Gpt17ForCausalLM"]), "Gpt17ForCausalLM"),
    "type is a number": (_with(model_type=3), "model_type must be a string"),
    "architectures is a string": (_with(architectures="Qwen3"), "architectures must be a list"),
    "embedding": (_with(architectures=["Qwen3Model"]), "does not generate text"),
    "classifier": (_with(architectures=["Qwen3ForSequenceClassification"]), "does not generate"),
    "vision": (
        b'{"architectures": ["CLIPModel"], "model_type": "clip", "text_config": {}}',
        "does not generate text",
    ),
    "bert": (b'{"architectures": ["BertForMaskedLM"], "model_type": "bert"}', "does not generate"),
    "two text sections": (
        b'{"model_type": "x", "text_config": {"a": 1}, "llm_config": {"a": 1}}',
        "both text_config and llm_config",
    ),
    "section is a list": (b'{"model_type": "qwen3_5", "text_config": [1]}', "must be an object"),
    "unknown dtype": (_with(torch_dtype="float8"), "dtype 'float8'"),
    "unknown quantisation": (_with(quantization_config={"quant_method": "magic"}), "magic"),
    "layer list too short": (_with(layer_types=["full_attention"]), "has 1 entries"),
    "unknown layer word": (_with(layer_types=["full_attention"] * 3 + ["wavelet"]), "wavelet"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CASES)
def test_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, wanted = CASES[name]
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    sentence = caught.value.sentence
    assert wanted in sentence
    assert str(path) in sentence
    assert "\n" not in sentence
    assert run(["ledger", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"hybridplan: {sentence}\n"


def test_json_errors_are_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"<html>")
    assert run(["ledger", str(path), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["error"]["exit_code"] == 2
    assert document["error"]["kind"] == "config"


def test_unknown_type_lists_the_supported_families(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(_with(model_type="gpt17"))
    with pytest.raises(ConfigError, match=r"supported families are .*kimi_linear.*qwen3_next"):
        load(str(path))


def test_infinity_where_it_decides_nothing() -> None:
    data = parse_object(b'{"time_step_limit": [0.0, Infinity], "n": NaN}', "f")
    assert data["time_step_limit"] == [0.0, float("inf")]


def test_a_utf8_mark_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + _with())
    assert len(load(str(path)).layers) == 4


def test_depth_counts_brackets_outside_strings_only() -> None:
    text = json.dumps({"a": "[" * 500, "b": '\\"[' * 100})
    assert parse_object(text.encode(), "f")["a"] == "[" * 500
    nested: object = 1
    for _ in range(MOST_DEPTH - 1):
        nested = [nested]
    assert parse_object(json.dumps({"a": nested}).encode(), "f")


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").mkdir()
    return tmp_path


def _loop(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.symlink_to(path)
    return path


def _dangling(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.symlink_to(tmp_path / "gone")
    return path


def _pipe(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    os.mkfifo(path)
    return path


def _gguf(tmp_path: Path) -> Path:
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    return tmp_path


def _gguf_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


PLACES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no such file": (lambda tmp: tmp / "config.json", "No such file"),
    "no such folder": (lambda tmp: tmp / "gone" / "config.json", "No such file"),
    "empty folder": (lambda tmp: tmp, "holds no config.json"),
    "config.json is a folder": (_folder, "is a folder"),
    "symlink loop": (_loop, "cannot be read"),
    "dangling link": (_dangling, "cannot be read"),
    "named pipe": (_pipe, "not a regular file"),
    "device": (lambda tmp: Path("/dev/zero"), "not a regular file"),
    "only GGUF": (_gguf, "GGUF"),
    "a GGUF file": (_gguf_file, "GGUF"),
    "name too long": (lambda tmp: tmp / ("x" * 5000 + ".json"), "cannot be read"),
}


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str, tmp_path: Path) -> None:
    make, wanted = PLACES[name]
    with pytest.raises(InputError, match=re.escape(wanted)):
        load(make(tmp_path))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root reads everything, the refusal is the system's in name only."""
    path = tmp_path / "config.json"
    path.write_bytes(_with())

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match="Permission denied"):
        load(path)


@pytest.mark.parametrize("text", ["", "  ", "\0", "~nobody-here/x", "a/b/c/d", "/", "..", "-"])
def test_odd_names(text: str) -> None:
    with pytest.raises(InputError):
        load(text)


def test_remote_code_is_not_run(tmp_path: Path) -> None:
    """auto_map and Python files beside the config stay untouched."""
    marker = tmp_path / "ran"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (tmp_path / "__init__.py").write_text(f"open({str(marker)!r}, 'w')\n")
    auto_map = {"AutoConfig": "modeling_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    (tmp_path / "config.json").write_bytes(_with(auto_map=auto_map))
    script = f"from hybridplan.config.find import load; load({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    assert not marker.exists()


def test_a_model_folder_holds_no_modules(tmp_path: Path) -> None:
    """``python -m`` looks for modules in the working folder first; not so for ours."""
    marker = tmp_path / "ran"
    for name in ("json", "typer", "rich", "configuration_qwen3"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (tmp_path / "config.json").write_bytes(_with())
    command = [sys.executable, "-m", "hybridplan", "ledger", "."]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    assert not marker.exists()
