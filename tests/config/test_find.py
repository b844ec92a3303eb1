"""From what people write to a model."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hybridplan.config import catalogue, find, hub
from hybridplan.errors import InputError, MissingExtraError

SPELLINGS = {
    "qwen3.5-0.8b": "qwen3.5-0.8b",
    "Qwen/Qwen3.5-0.8B": "qwen3.5-0.8b",
    "QWEN3.5-0.8B": "qwen3.5-0.8b",
    "qwen3_5_0.8b": "qwen3.5-0.8b",
    "Qwen3.5 0.8B": "qwen3.5-0.8b",
    "kimi-linear": "kimi-linear-48b-a3b-instruct",
    "Kimi-Linear-48B-A3B": "kimi-linear-48b-a3b-instruct",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": "kimi-linear-48b-a3b-instruct",
    "glm-5.3-flash": "glm-5.3-flash",
    "GLM5.3Flash": "glm-5.3-flash",
    "Meta-Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3.1-8B": "llama-3.1-8b",
    "Nemotron-Nano-9B-v2": "nemotron-nano-9b-v2",
    "NVIDIA-Nemotron-Nano-9B-v2": "nemotron-nano-9b-v2",
    "qwen3-next": "qwen3-next-80b-a3b-instruct",
    "Zyphra/Zamba2-2.7B": "zamba2-2.7b",
    "zamba2-2.7b": "zamba2-2.7b",
    "qwen3.6-27b": "qwen3.6-27b",
    "illustrative": "illustrative-48",
}


@pytest.mark.parametrize("written", SPELLINGS)
def test_spellings(written: str) -> None:
    assert find.load(written).name == SPELLINGS[written]


def test_plain_names_and_ids_are_unique() -> None:
    names = [find.plain(name) for name in catalogue.entries()]
    assert len(set(names)) == len(names)


NEAR = {
    "qwen3.5-7b": "qwen3.5-27b",
    "qwen3.5": "qwen3.5-9b",
    "kimi-linaer": "kimi-linear-48b-a3b-instruct",
    "lama-3.1-8b": "llama-3.1-8b",
    "someone/Qwen3.5-0.8B": "qwen3.5-0.8b",
}


@pytest.mark.parametrize("written", NEAR)
def test_near_miss_names_three(written: str) -> None:
    with pytest.raises(InputError) as caught:
        find.load(written)
    named = caught.value.sentence.split("closest names are ")[1].split(" (")[0].split(", ")
    assert len(named) == 3
    assert NEAR[written] in named


def test_another_owner_is_another_model() -> None:
    """A repo of the same name by somebody else may be anything; it is not guessed."""
    with pytest.raises(InputError, match=r"qwen3\.5-0\.8b"):
        find.load("someone/Qwen3.5-0.8B")


def _copy(name: str, to: Path) -> Path:
    to.mkdir(parents=True, exist_ok=True)
    config = to / "config.json"
    config.write_bytes(catalogue.entries()[name].path.read_bytes())
    return config


def test_file_and_folder(tmp_path: Path) -> None:
    config = _copy("llama-3.1-8b", tmp_path / "my-llama")
    for place in (config, tmp_path / "my-llama", str(tmp_path / "my-llama") + os.sep):
        spec = find.load(place)
        assert spec.name == "my-llama"
        assert spec.confidence == ""
        assert spec.file == str(config)


def test_quantisation_beside_a_config(tmp_path: Path) -> None:
    _copy("nemotron-3-super-120b-a12b-nvfp4", tmp_path)
    assert find.load(tmp_path).quantization is None
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    scheme = find.load(tmp_path).quantization
    assert scheme is not None
    assert (scheme.weight_bits, scheme.kv_dtype) == (8, "fp8")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _copy("llama-3.1-8b", tmp_path / "models" / "x")
    assert find.load("~/models/x").name == "x"


def test_gguf_beside_a_config_is_ignored(tmp_path: Path) -> None:
    _copy("llama-3.1-8b", tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert len(find.load(tmp_path).layers) == 32


def test_a_folder_merely_named_like_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3.5-0.8b").mkdir()
    assert find.load("qwen3.5-0.8b").confidence == "values-from-docs"


COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "89abcdef0123456789abcdef0123456789abcdef"


def _cached(base: Path, revision: str, name: str = "llama-3.1-8b") -> Path:
    return _copy(name, base / "models--acme--Thing-8B" / "snapshots" / revision)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def test_cached_repo(cache: Path) -> None:
    config = _cached(cache, COMMIT)
    spec = find.load("acme/Thing-8B")
    assert (spec.name, spec.file) == ("acme/Thing-8B", str(config))


def test_cached_repo_prefers_main(cache: Path) -> None:
    _cached(cache, OTHER, "qwen3-8b")
    config = _cached(cache, COMMIT)
    refs = cache / "models--acme--Thing-8B" / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT + "\n")
    assert hub.cached_config("acme/Thing-8B") == config


def test_cached_repo_without_main_is_not_guessed(cache: Path) -> None:
    _cached(cache, OTHER, "qwen3-8b")
    _cached(cache, COMMIT)
    with pytest.raises(InputError, match="2 revisions"):
        find.load("acme/Thing-8B")


@pytest.mark.parametrize("bad", ["../../etc", "", COMMIT[:-1], "main"])
def test_bad_ref_is_no_path(cache: Path, bad: str) -> None:
    config = _cached(cache, COMMIT)
    refs = cache / "models--acme--Thing-8B" / "refs"
    refs.mkdir()
    (refs / "main").write_text(bad)
    assert hub.cached_config("acme/Thing-8B") == config


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/d"}, "/d/.cache/huggingface/hub"),
    ],
    ids=str,
)
def test_cache_folder(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_folder() == Path(expected)


def test_nothing_touches_the_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(InputError, match="closest names"):
        find.load("acme/Nowhere-8B")


class _Hub(BaseHTTPRequestHandler):
    """As much of a hub as one config.json needs; remembers what was asked for."""

    body = b""
    asked: ClassVar[list[tuple[str, str, str | None]]] = []

    def _answer(self) -> None:
        self.asked.append((self.command, self.path, self.headers.get("Authorization")))
        if self.path != "/acme/Thing-8B/resolve/main/config.json":
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", '"abc"')
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.body)

    do_GET = do_HEAD = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    _Hub.body = catalogue.entries()["llama-3.1-8b"].path.read_bytes()
    _Hub.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def _run(repo: str, server: str, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: huggingface_hub reads HF_ENDPOINT when it is imported."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": server,
        "HF_TOKEN": "hf_test",
    }
    command = [sys.executable, "-m", "hybridplan", "ledger", repo, "--json", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_download(server: str, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    done = _run("acme/Thing-8B", server, tmp_path, "--download")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["name"] == "acme/Thing-8B"
    assert {path for _, path, _ in _Hub.asked} == {"/acme/Thing-8B/resolve/main/config.json"}
    assert {token for _, _, token in _Hub.asked} == {"Bearer hf_test"}
    _Hub.asked.clear()
    again = _run("acme/Thing-8B", server, tmp_path)
    assert (again.returncode, _Hub.asked) == (0, [])


def test_no_download_unless_asked(server: str, tmp_path: Path) -> None:
    done = _run("acme/Thing-8B", server, tmp_path)
    assert (done.returncode, _Hub.asked) == (2, [])


def test_download_of_nothing(server: str, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    done = _run("acme/Nowhere", server, tmp_path, "--download")
    assert done.returncode == 2
    assert "config.json of acme/Nowhere could not be downloaded" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_download_without_the_extra(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"hybridplan\[hub\]"):
        find.load("acme/Thing-8B", download=True)
