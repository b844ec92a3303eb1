"""Write a trace, read it back: what every format test does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hybridplan.sim.traces import Trace, open_trace

Write = Callable[..., Trace]


@pytest.fixture
def opened(tmp_path: Path) -> Write:
    """open_trace of rows (dicts become JSONL) or of text, with options."""

    def write(content: str | Iterable[Any], name: str = "trace", **options: Any) -> Trace:
        if not isinstance(content, str):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path = tmp_path / name
        path.write_text(content)
        return open_trace(path, **options)

    return write
