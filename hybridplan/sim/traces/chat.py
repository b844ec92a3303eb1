"""Chats as text: OpenAI ``messages``, batch files, ShareGPT, LMSYS / WildChat, vLLM ``custom``.

An answer's prompt is everything above it. ``turns`` says which answers become requests: "last"
(the default for ``messages``: a log holds one row per call), "all" (the default for ShareGPT-like
conversations; each conversation is a session), or "first" (what serving benchmarks do). A row
without an answer takes ``max_tokens``, a cap, or the caller's ``output_tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from hybridplan.sim.request import Request
from hybridplan.sim.traces.facts import NONE, BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.text import Message, message_text, open_texts, text_plan
from hybridplan.sim.traces.values import label, optional_tokens, shown, text

Turns = Literal["all", "first", "last"]

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
         "bard": "assistant", "bing": "assistant", "assistant": "assistant", "system": "system",
         "tool": "tool"}  # fmt: skip


class Chat(Format):
    """``messages`` [, ``tools``], a batch row's ``body``, or ``prompt`` [, ``output_tokens``]."""

    name = "chat"
    containers = ("json-lines", "json-values")

    def matches(self, sample: Sample) -> bool:
        first = sample.first
        body = first.get("body")
        if isinstance(body, dict):
            return "messages" in body or "prompt" in body
        if isinstance(first.get("prompt"), str):
            return not sample.keys & {"conversations", "conversation", "input_tokens"}
        return isinstance(first.get("messages"), list)

    def plan(self, opening: Opening) -> Plan:
        plan = text_plan(opening, "batch" if "body" in opening.sample.keys else "chat")
        turns = opening.options.turns or "last"
        plan.sessions = Fact("row", "given") if turns == "all" else NONE
        return plan

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return ChatRows(opening, tally, opening.options.turns or "last")


class ShareGPT(Format):
    """``conversations: [{from, value}]`` or ``conversation: [{role, content}]``."""

    name = "sharegpt"
    containers = ("json-values", "json-lines")

    def matches(self, sample: Sample) -> bool:
        for name in ("conversations", "conversation"):
            turns = sample.first.get(name)
            if isinstance(turns, list) and (not turns or isinstance(turns[0], dict)):
                return True
        return False

    def plan(self, opening: Opening) -> Plan:
        plan = text_plan(opening, "conversations")
        turns = opening.options.turns or "all"
        why = f"turns: {turns}"
        plan.sessions = Fact("conversation", "read", why)
        return plan

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return ChatRows(opening, tally, opening.options.turns or "all")


class ChatRows(Rows):
    """The chosen answers of each row."""

    def __init__(self, opening: Opening, tally: Tally, turns: Turns) -> None:
        super().__init__(tally)
        self._texts = open_texts(opening)
        self._turns = turns
        self._output_tokens = opening.options.output_tokens
        self._count = 0

    def read(self, row: Any) -> Sequence[Request]:
        name = label(row.get("id")) or label(row.get("custom_id")) or str(self._count)
        body = row.get("body") if isinstance(row.get("body"), dict) else row
        conversation = row.get("conversations", row.get("conversation"))
        if conversation is not None:
            messages = self._turns_of(conversation)
        elif "messages" in body:
            messages = self._messages(body["messages"])
        else:
            self._count += 1
            return (self._without_answer(name, text(body, "prompt"), body),)
        self._count += 1
        return self._answers(name, messages, body)

    def _messages(self, messages: Any) -> list[Message]:
        if not isinstance(messages, list) or not messages:
            raise BadRow(f"messages is {shown(messages)}, not a list of messages")
        return [message_text(message, self.tally) for message in messages]

    def _turns_of(self, conversation: Any) -> list[Message]:
        if not isinstance(conversation, list):
            raise BadRow(f"the conversation is {shown(conversation)}, not a list of turns")
        messages = []
        for turn in conversation:
            if isinstance(turn, dict) and "from" in turn:
                turn = {"role": turn["from"], "content": turn.get("value")}
            message = message_text(turn, self.tally)
            role = ROLES.get(message["role"].lower())
            if role is None:
                raise BadRow(f"a turn is from {shown(message['role'])}, an unknown speaker")
            messages.append({**message, "role": role})
        return messages

    def _answers(self, name: str, messages: list[Message], body: Any) -> Sequence[Request]:
        tools = body.get("tools")
        places = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i]
        if messages and messages[0]["role"] == "assistant":
            self.tally.note("starts-with-answer", "a conversation starts with an answer")
        if self._turns == "last":
            if not messages or messages[-1]["role"] != "assistant" or len(messages) < 2:
                whole_text = self._texts.chat_prompt(messages, tools)
                return (self._without_answer(name, whole_text, body),)
            places = places[-1:]
        elif self._turns == "first":
            places = places[:1]
        if not places:
            self.tally.note("no-answer", "a conversation holds no answer and gives no request")
        found = []
        for turn, place in enumerate(places, 1):
            prompt_text = self._texts.chat_prompt(messages[:place], tools)
            prompt, output_tokens, sequence = self._texts.exchange(
                prompt_text, messages[place]["content"]
            )
            found.append(Request(name, prompt, output_tokens, sequence=sequence))
            if self._turns == "all":
                request_id = f"{name}#{turn}"
                found[-1] = replace(found[-1], request_id=request_id, session=name, turn=turn)
        return found

    def _without_answer(self, name: str, prompt_text: str, body: Any) -> Request:
        output_tokens = optional_tokens(body, "output_tokens")
        if output_tokens is None:
            for key in ("max_completion_tokens", "max_tokens"):
                output_tokens = optional_tokens(body, key)
                if output_tokens is not None:
                    self.tally.note("output-cap", f"a row has no answer; {key}, a cap, is taken")
                    break
        if output_tokens is None:
            output_tokens = self._output_tokens
            if output_tokens is None:
                raise BadRow("it has neither an answer nor max_tokens; say --output-tokens")
            self.tally.note("output-given", "a row has no answer; --output-tokens applies")
        prompt, _, _ = self._texts.exchange(prompt_text, "")
        return Request(name, prompt, output_tokens)
