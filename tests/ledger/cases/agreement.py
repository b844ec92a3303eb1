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
START, END = "<!-- cases: begin -->\n", "<!-- cases: end -->\n"


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


def main() -> None:
    """Replace the table in the document."""
    text = DOCUMENT.read_text()
    head, rest = text.split(START)
    tail = rest.split(END)[1]
    DOCUMENT.write_text(head + START + table() + END + tail)


if __name__ == "__main__":
    main()
