"""Packing, encodings, line endings, and files that are no trace: one sentence each."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridplan.errors import HybridplanError, InputError
from hybridplan.sim.request import Request
from hybridplan.sim.traces import open_trace
from hybridplan.sim.traces.records import records
from hybridplan.sim.traces.source import Source

ROWS = [
    {"timestamp": 0, "input_length": 1025, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 513, "output_length": 7, "hash_ids": [0, 3]},
    {"timestamp": 6000, "input_length": 512, "output_length": 9, "hash_ids": [0]},
]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = b"timestamp,input_length,output_length,hash_ids\n" + b"".join(
    f'{row["timestamp"]},{row["input_length"]},{row["output_length"]},"{row["hash_ids"]}"\n'.encode()
    for row in ROWS
)


def zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return bytes(zstandard.ZstdCompressor().compress(data))


def read(path: Path, **options: object) -> list[Request]:
    return list(open_trace(path, **options).requests())  # type: ignore[arg-type]


def outline(requests: list[Request]) -> list[tuple[object, ...]]:
    return [
        (r.arrival_s, r.prompt.length_tokens, r.output_tokens, r.prompt.ids, r.prompt.unit_tokens)
        for r in requests
    ]


EXPECTED = [
    (0.0, 1025, 5, (0, 1, 2), 512),
    (3.0, 513, 7, (0, 3), 512),
    (6.0, 512, 9, (0,), 512),
]

SHAPES = {
    "plain": JSONL,
    "no-final-newline": JSONL.rstrip(b"\n"),
    "crlf": JSONL.replace(b"\n", b"\r\n"),
    "bom": b"\xef\xbb\xbf" + JSONL,
    "blank-lines": b"\n\n" + JSONL.replace(b"\n", b"\n \n"),
    "array": json.dumps(ROWS).encode(),
    "array-indented": json.dumps(ROWS, indent=2).encode(),
    "bom-array-crlf": b"\xef\xbb\xbf" + json.dumps(ROWS, indent=1).replace("\n", "\r\n").encode(),
    "objects-indented": "\n".join(json.dumps(row, indent=2) for row in ROWS).encode(),
    "gzip": gzip.compress(JSONL),
    "gzip-two-members": gzip.compress(JSONL[:50]) + gzip.compress(JSONL[50:]),
    "gzip-bom": gzip.compress(b"\xef\xbb\xbf" + JSONL),
    "csv": CSV,
    "csv-crlf-bom": b"\xef\xbb\xbf" + CSV.replace(b"\n", b"\r\n"),
    "csv-tabs": CSV.replace(b',"', b'\t"').replace(b",", b"\t").replace(b"\t ", b", "),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["trace.jsonl", "trace"])
def test_every_packing_gives_the_same_requests(tmp_path: Path, shape: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(SHAPES[shape])
    assert outline(read(path)) == EXPECTED


@pytest.mark.parametrize("frames", [1, 2])
def test_zstd_frames(tmp_path: Path, frames: int) -> None:
    path = tmp_path / "trace.jsonl"
    data = zstd(JSONL) if frames == 1 else zstd(JSONL[:99]) + zstd(JSONL[99:])
    path.write_bytes(data)
    assert outline(read(path)) == EXPECTED


def test_a_long_array_is_parsed_across_pieces(tmp_path: Path) -> None:
    rows = [
        {"input_length": i, "output_length": 1, "note": 'é\\"]' * (i % 700)} for i in range(1, 2000)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1))
    requests = read(path)
    assert [request.prompt.length_tokens for request in requests] == list(range(1, 2000))


@given(
    st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=9) | st.integers()), max_size=6),
    st.sampled_from([None, 0, 3]),
    st.integers(1, 40),
    st.booleans(),
)
def test_json_arrays_in_pieces_equal_json_loads(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, object]],
    indent: int | None,
    chunk: int,
    ascii_only: bool,
) -> None:
    path = tmp_path_factory.mktemp("array") / "rows.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=ascii_only), errors="replace")
    source = Source(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybridplan.sim.traces.source.CHUNK_BYTES", chunk)
        found = list(records(source, "json-values"))
    assert [row for _, row in found] == json.loads(path.read_text())
    text = path.read_text()
    for line, row in found:
        assert (
            json.dumps(row, indent=indent, ensure_ascii=ascii_only)[0] in text.split("\n")[line - 1]
        )


def test_the_line_of_an_array_element_is_its_own(tmp_path: Path) -> None:
    rows = [{"input_length": 5, "output_length": 1} for _ in range(4)]
    rows[2]["input_length"] = -1
    path = tmp_path / "trace.json"
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    with pytest.raises(InputError, match=r"line 4: input_length is -1, below zero"):
        read(path)


BAD_FILES = {
    "empty": (b"", "is empty"),
    "blank": (b"\n\n  \n", "is empty"),
    "gzip-of-nothing": (gzip.compress(b""), "is empty"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00\x00", "binary"),
    "html": (b"<!DOCTYPE html>\n<html><body>404</body></html>", "web page"),
    "zip": (b"PK\x03\x04rest", "zip archive"),
    "parquet": (b"PAR1rest", "Parquet"),
    "utf16": (JSONL.decode().encode("utf-16"), "UTF-16"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "truncated-gzip": (gzip.compress(JSONL)[:-20], "cut off or damaged"),
    "gzip-trailing-garbage": (gzip.compress(JSONL) + b"garbage", "cut off or damaged"),
    "prose": (b"Dear reader,\nthis is a letter.\n", "no row that parses"),
    "one-word": (b"hello\n", "neither JSON"),
    "numbers-without-header": (b"12,13\n14,15\n", "column names"),
    "header-only": (b"input_length,output_length\n", "no row that parses"),
    "scalar-json": (b"[1, 2, 3]", "no row that parses"),
    "open-array": (b'[{"input_length": 3, "output_length": 4}, {"input_le', "breaks off"),
    "wrong-columns": (b"a,b,c\n1,2,3\n", "no known trace"),
    "twice-the-same-column": (b"input_length,input_length\n1,2\n", "same name"),
    "latin-1": (b"input_length,output_length\n\xe9,2\n", "no row that parses"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_is_no_trace_gets_one_sentence(tmp_path: Path, case: str) -> None:
    data, words = BAD_FILES[case]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(data)
    with pytest.raises(HybridplanError) as caught:
        read(path)
    assert caught.value.exit_code == 2
    assert words in caught.value.sentence
    assert "trace.jsonl" in caught.value.sentence


def test_truncated_zstd_is_an_error_and_not_a_shorter_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    noise = random.Random(0)
    rows = "".join(
        f'{{"input_length": {noise.randrange(10**6)}, "output_length": 1}}\n' for _ in range(20_000)
    )
    data = zstd(rows.encode())
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"incomplete"):
        read(path)


def test_folder_missing_file_and_fifo(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder"):
        open_trace(tmp_path)
    with pytest.raises(InputError, match=r"does not exist"):
        open_trace(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match=r"cannot be read|does not exist"):
        open_trace("bad\0name")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"no regular file"):
        open_trace(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(JSONL)
    path.chmod(0)
    with pytest.raises(InputError, match=r"Permission denied"):
        open_trace(path)


BAD_CELLS = {
    "1e308": "more than 1,000,000,000 tokens",
    "-1": "below zero",
    "9" * 400: "far out of range",
    "9" * 5000: "",
    "NaN": "nan, not a finite number",
    "Infinity": "inf, not a finite number",
    "null": "missing or null",
    "true": "not a number",
    '"twelve"': "not a number",
    "1.5": "not a whole number",
    "[]": "not a number",
}


@pytest.mark.parametrize("cell", BAD_CELLS, ids=lambda cell: str(cell)[:12])
def test_absurd_numbers_name_the_line(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "trace.jsonl"
    good = '{"input_length": 4, "output_length": 2}\n'
    path.write_text(good * 20 + f'{{"input_length": {cell}, "output_length": 2}}\n' + good)
    with pytest.raises(InputError, match=r"line 21: ") as caught:
        read(path)
    assert BAD_CELLS[cell] in caught.value.sentence
    trace = open_trace(path, skip_bad=1)
    assert len(list(trace.requests())) == 21
    assert trace.counts.bad_rows == 1
    assert [(n.code, n.count, n.first_line) for n in trace.info.warnings] == [("bad-row", 1, 21)]


@pytest.mark.parametrize("cell", ["12", '"12"', "12.0", '" 12 "', '"1.2e1"'])
def test_numbers_in_other_clothes(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"input_length": {cell}, "output_length": 2, "note": NaN}}\n')
    assert read(path)[0].prompt.length_tokens == 12


def test_more_bad_rows_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(JSONL + b"{\n" + JSONL + b"nonsense\n" + JSONL)
    with pytest.raises(InputError, match=r"line 4: .*--skip-bad 1"):
        read(path)
    with pytest.raises(InputError, match=r"line 8: .*\(1 bad rows were skipped.*--skip-bad 2"):
        read(path, skip_bad=1)
    assert len(read(path, skip_bad=2)) == 9


def test_reading_again_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(JSONL)
    trace = open_trace(path)
    assert list(trace.requests()) == list(trace.requests())
    assert trace.counts.requests == 3
    assert len(list(open_trace(path, limit=2).requests())) == 2
