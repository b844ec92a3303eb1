"""Text as tokens: a local tokenizer, or an estimate of tokens per character that names itself.

With a tokenizer a prompt's ids are its token ids (unit 1). With an estimate they are chained
hashes of the text at every 16th estimated token: equal ids mean equal text so far, the count of
tokens is approximate.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hybridplan.errors import InputError, MissingExtraError
from hybridplan.sim.request import Prompt
from hybridplan.sim.traces.facts import BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Opening
from hybridplan.sim.traces.options import Tokenize
from hybridplan.sim.traces.values import shown

ESTIMATE_UNIT_TOKENS = 16

Message = dict[str, Any]


class Texts(ABC):
    """From text to prompts."""

    @abstractmethod
    def exchange(self, prompt: str, output: str) -> tuple[Prompt, int, Prompt]:
        """(prompt, output tokens, prompt plus output) of one request."""

    @abstractmethod
    def count(self, text: str) -> int:
        """Tokens of one text."""

    def chat_prompt(self, messages: Sequence[Message], tools: Any) -> str:
        """The prompt a chat becomes: the tokenizer's template if it has one, else "role: text"."""
        lines = [] if not tools else [json.dumps(tools, ensure_ascii=False)]
        lines += [f"{message['role']}: {message['content']}" for message in messages]
        return "\n".join([*lines, "assistant: "])


class Tokenized(Texts):
    """Token ids of a tokenizer; the ids are the prompt's prefix ids."""

    def __init__(self, tokenize: Tokenize, scope: str, template: Any = None) -> None:
        self._tokenize = tokenize
        self._scope = scope
        self._template = template

    def exchange(self, prompt: str, output: str) -> tuple[Prompt, int, Prompt]:
        ids = tuple(self._tokenize(prompt))
        out = tuple(self._tokenize(output)) if output else ()
        whole = Prompt(len(ids) + len(out), 1, ids + out, False, self._scope)
        return Prompt(len(ids), 1, ids, False, self._scope), len(out), whole

    def count(self, text: str) -> int:
        return len(self._tokenize(text))

    def chat_prompt(self, messages: Sequence[Message], tools: Any) -> str:
        if self._template is None:
            return super().chat_prompt(messages, tools)
        try:
            return str(self._template(list(messages), tools))
        except Exception as error:
            raise BadRow(f"the tokenizer's chat template refuses it: {error}") from error


class Estimated(Texts):
    """``tokens_per_char`` times the characters, rounded up."""

    def __init__(self, tokens_per_char: float, unit_tokens: int, scope: str) -> None:
        self._rate = tokens_per_char
        self._unit = unit_tokens
        self._scope = scope

    def count(self, text: str) -> int:
        return math.ceil(len(text) * self._rate)

    def exchange(self, prompt: str, output: str) -> tuple[Prompt, int, Prompt]:
        first, whole = self._prompt(prompt), self._prompt(prompt + output)
        return first, whole.length_tokens - first.length_tokens, whole

    def _prompt(self, text: str) -> Prompt:
        length_tokens = self.count(text)
        digest = blake2b(digest_size=8)
        ids = []
        start = 0
        for index in range(-(-length_tokens // self._unit)):
            end = min(len(text), math.ceil((index + 1) * self._unit / self._rate))
            digest.update(text[start:end].encode(errors="surrogatepass"))
            ids.append(int.from_bytes(digest.digest(), "big"))
            start = end
        return Prompt(length_tokens, self._unit, tuple(ids), True, self._scope)


def open_texts(opening: Opening) -> Texts:
    """The tokenizer or the estimate the caller named. InputError when neither is given."""
    options = opening.options
    if options.tokens_per_char is not None:
        unit = options.block_tokens or ESTIMATE_UNIT_TOKENS
        scope = f"text@{options.tokens_per_char:g}x{unit}"
        return Estimated(options.tokens_per_char, unit, scope)
    tokenizer = options.tokenizer
    if tokenizer is None:
        raise opening.refuse(
            "it holds text, not token counts; say --tokenizer FOLDER (a local tokenizer) or "
            "--tokens-per-char R (an estimate, about 0.25 for English)"
        )
    if callable(tokenizer):
        return Tokenized(tokenizer, "tokens")
    return _transformers_tokenizer(tokenizer)


def _transformers_tokenizer(name: str | Path) -> Texts:
    if Path(name).is_absolute() and not Path(name).is_dir():
        raise InputError(f"--tokenizer {name} is no folder")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(
            "--tokenizer needs transformers: install hybridplan[gpu], or use --tokens-per-char"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(name), local_files_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"--tokenizer {name} cannot be loaded locally: {reason}") from error

    def tokenize(text: str) -> Sequence[int]:
        ids: Sequence[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def template(messages: list[Message], tools: Any) -> str:
        return str(
            tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True
            )
        )

    has_template = bool(getattr(tokenizer, "chat_template", None))
    return Tokenized(tokenize, f"tokens:{Path(name).name}", template if has_template else None)


def text_plan(opening: Opening, dialect: str) -> Plan:
    """Unit, tail and scope of a text format under the caller's tokenizer or estimate."""
    open_texts(opening)
    options = opening.options
    plan = Plan(dialect)
    if options.tokens_per_char is not None:
        unit = options.block_tokens or ESTIMATE_UNIT_TOKENS
        why = f"estimated: {options.tokens_per_char:g} tokens per character"
        plan.unit = Fact(str(unit), "given", why)
        plan.ids = Fact("prefix", "format", "hashes of the text so far")
        plan.outputs = Fact("actual", "format", why)
    else:
        plan.unit = Fact("1", "given", "token ids of the tokenizer")
        plan.ids = Fact("unit", "format")
    plan.tail = Fact("ceil", "format")
    plan.id_scope = Fact("global", "format", "ids are the text itself")
    return plan


def message_text(message: Any, tally: Tally) -> Message:
    """A message with its content as one string; other parts than text are counted, not read."""
    if not isinstance(message, dict):
        raise BadRow(f"a message is {shown(message)}, not an object")
    role = message.get("role")
    if not isinstance(role, str):
        raise BadRow(f"a message's role is {shown(role)}, not text")
    content = message.get("content")
    if content is None:
        content = ""
    if isinstance(content, list):
        texts = []
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
            elif isinstance(part, str):
                texts.append(part)
            else:
                tally.note("no-text-part", "a message part is no text; its tokens are not counted")
        content = "".join(texts)
    if not isinstance(content, str):
        raise BadRow(f"a message's content is {shown(content)}, not text")
    calls = message.get("tool_calls")
    if calls:
        content += json.dumps(calls, ensure_ascii=False)
    return {"role": role, "content": content}
