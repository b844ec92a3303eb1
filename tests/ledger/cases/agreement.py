"""Writes the table of docs/agreement.md: how many cases of which theme agree."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import reproduce  # noqa: E402

ROOT = HERE.parents[2]
CASES = ROOT / "tests" / "golden" / "cases.json"
DOCUMENT = ROOT / "docs" / "agreement.md"
WORDS = ("agree", "not derivable", "disagrees")
GOLDEN = CASES.parent
# Answers of an engine, and the test that holds the product against each file.
ANSWERS = {
    "vLLM 0.33.0, pool plans": ("vllm/0.33.0/groups", "tests/ledger/vllm/test_golden.py"),
    "vLLM 0.32.0, pool plans": ("vllm/0.32.0/groups", "tests/ledger/vllm/test_golden.py"),
    "vLLM 0.33.0, traces": ("vllm/0.33.0/traces", "tests/sim/vllm/test_golden_traces.py"),
    "vLLM 0.32.0, traces": ("vllm/0.32.0/traces", "tests/sim/vllm/test_golden_traces.py"),
    "SGLang 0.5.23, traces": ("sglang/golden", "tests/sim/sglang/test_golden.py"),
}
CASE_MARKS = ("<!-- cases: begin -->\n", "<!-- cases: end -->\n")
ANSWER_MARKS = ("<!-- answers: begin -->\n", "<!-- answers: end -->\n")


def table(path: Path = CASES) -> str:
    """Markdown: themes against verdicts, then every case that does not agree and why."""
    cases = reproduce.load(path)
    verdicts = {case["id"]: reproduce.verdict(case) for case in cases}
    counts = Counter((case["theme"], verdicts[case["id"]].word) for case in cases)
    lines = ["| theme | " + " | ".join(WORDS) + " | cases |", "|---|" + "---:|" * 4]
    for theme in sorted({case["theme"] for case in cases}):
        row = [counts[theme, word] for word in WORDS]
        lines.append(f"| {theme} | " + " | ".join(map(str, row)) + f" | {sum(row)} |")
    total = [sum(counts[key] for key in counts if key[1] == word) for word in WORDS]
    lines.append("| all | " + " | ".join(map(str, total)) + f" | {sum(total)} |")
    exact = [case for case in cases if reproduce.is_exact(case)]
    agreeing = sum(verdicts[case["id"]].word == "agree" for case in exact)
    lines += ["", f"Of {len(exact)} cases whose derivation is exact, {agreeing} agree.", ""]
    lines += ["| case | thread | verdict | reason |", "|---|---|---|---|"]
    for case in cases:
        found = verdicts[case["id"]]
        if found.word != "agree":
            why = reproduce.reason(case).replace("|", "/")
            lines.append(f"| {case['id']} | {case['source']} | {found.word} | {why} |")
    return "\n".join(lines) + "\n"


def answers() -> str:
    """Markdown: stored answers of engines, each of which is a test that must pass."""
    lines = ["| answers of | files | held by |", "|---|---:|---|"]
    for name, (folder, test) in ANSWERS.items():
        assert (ROOT / test).exists(), test
        lines.append(f"| {name} | {len(list((GOLDEN / folder).glob('*.json')))} | `{test}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Replace the tables in the document."""
    text = DOCUMENT.read_text()
    for marks, made in ((CASE_MARKS, table()), (ANSWER_MARKS, answers())):
        start, end = marks
        head, rest = text.split(start)
        text = head + start + made + end + rest.split(end)[1]
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
