"""What any page must be: well formed, self-contained, labelled, operable from a keyboard."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

_VOID = {"meta", "input", "br", "hr", "link", "img", "wbr"}
_INTERACTIVE = {"a", "button", "input", "select", "summary", "textarea"}


class Page(HTMLParser):
    """Every element with its attributes and text, and every complaint."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.complaints: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        if self.open:
            self.complaints.append(f"never closed: {self.open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.complaints.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def complaints(text: str) -> list[str]:
    """All that is wrong with a page; empty where it keeps every promise."""
    page = Page(text)
    found = list(page.complaints)
    ids = Counter(attrs["id"] for _, attrs in page.elements if "id" in attrs)
    found += [f"id {name} occurs {times} times" for name, times in ids.items() if times > 1]
    labelled = {attrs["for"] for tag, attrs in page.elements if tag == "label"}
    found += [f"label for {name}, which is nowhere" for name in labelled - set(ids)]
    for tag, attrs in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "aria-controls"):
            found += [f"{name} {ref}" for ref in attrs.get(name, "").split() if ref not in ids]
        if tag in ("input", "select") and attrs.get("id") not in labelled:
            found += [] if attrs.get("aria-label") else [f"{tag} {attrs} has no label"]
        if tag == "svg" and attrs.get("role") != "img" and attrs.get("aria-hidden") != "true":
            found.append(f"svg {attrs} is neither named nor hidden")
        if tag == "svg" and attrs.get("role") == "img" and not attrs.get("aria-label"):
            found.append("a picture has no name")
        if attrs.get("tabindex", "0") not in ("0", "-1"):
            found.append(f"tabindex {attrs['tabindex']} breaks the order of reading")
        if any(name.startswith("on") for name in attrs):
            found.append(f"{tag} carries a handler: {attrs}")
        if tag not in _INTERACTIVE and attrs.get("role") in ("button", "slider", "checkbox"):
            found.append(f"{tag} plays {attrs['role']}; use the element")
        if tag in ("link", "img", "iframe", "object", "embed") or "src" in attrs:
            found.append(f"{tag} {attrs} may load something")
        if tag == "a" and not attrs.get("href", "").startswith("#"):
            found.append(f"link to {attrs.get('href')}")
    outside = text.replace("http://www.w3.org/2000/svg", "")
    found += re.findall(r"https?://\S{0,40}|url\((?!#)[^)]*\)|@import|@font-face", outside)
    if not re.search(r'<html lang="en">', text):
        found.append("no language")
    return found
