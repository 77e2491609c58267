"""The grammar of an answer: JSON where a form is asked for, calls where tools must be called."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvactors.actors.frontends.server.exchange.inquiry import Form, Inquiry, Tool
from kvactors.core.errors import InvalidGrammar, InvalidInput
from kvactors.core.schedule.grammar import Grammar

__all__ = ["CallMarks", "call_marks", "channel_grammar", "grammar_of", "thought_before"]

# Messages before the one that counts, with what begins that. Each once: a way out leaves a loop
# late.
_BEFORE = """\
thought: <|channel|> "analysis" further
preamble: <|channel|> "commentary" further
further: <|message|> TEXT <|end|> <|start|> "assistant"
TEXT: /(?s:.*)/
"""
_FINAL = '<|channel|> "final" <|message|>'


@dataclass(frozen=True, slots=True)
class CallMarks:
    """The terms of a grammar around a call, lines of their own; `special`: what it begins with is a
    token that is no text; one that is not `ended` goes to the end of the answer. No words
    have any of `marks`, each of which begins a call to who reads them."""

    begin: str
    end: str
    marks: tuple[str, ...]
    special: bool = False
    ended: bool = True


def call_marks(pairs: Sequence[tuple[str, str]], special: Callable[[str], int | None]) -> CallMarks:
    """Those of the first of `pairs`, what stands before a call and what behind it, or "" for
    nothing; by the others calls are read as well. `special` says which token a mark is, if it is
    one that is no text."""
    begin, end = pairs[0]
    first, last = special(begin), special(end)
    return CallMarks(
        json.dumps(f"{begin}\n") if first is None else f'<[{first}]> "\\n"',
        json.dumps(f"\n{end}") if last is None else f'"\\n" <[{last}]>',
        tuple(mark for mark, _ in pairs),
        special=first is not None,
        ended=bool(end),
    )


def thought_before(begin: int | None, end: int | None, *, opened: bool) -> str:
    """The term of a grammar for what is thought before an answer, where its marks are tokens that
    are no text, `begin` and `end`; `opened` by the template. "" where text may have them."""
    if begin is None or end is None:
        return ""
    return f"THOUGHT <[{end}]>" if opened else f"(<[{begin}]> THOUGHT <[{end}]>)?"


def grammar_of(
    inquiry: Inquiry, names: Mapping[str, Tool], marks: CallMarks, thought: str = ""
) -> Grammar | None:
    """What the answer to an `inquiry` must look like, if that is said: its tools by the `names`
    that the model uses, calls between `marks`, a `thought` before what has no form. Raises
    InvalidInput for a tool that is not there, InvalidGrammar for a schema that cannot be held to.
    """
    choice, form = inquiry.choice, inquiry.form
    wanted = _wanted(inquiry, names)
    if not wanted:
        return form.grammar if form else None
    if choice.mode == "required":
        return _lark("calls", wanted, marks, parallel=inquiry.parallel)
    if form is not None:
        said = form.grammar.rule
        return _lark(f"{said} | calls", wanted, marks, parallel=inquiry.parallel)
    if any(tool.strict for tool in names.values()):
        return _lark("", wanted, marks, parallel=inquiry.parallel, thought=thought)
    return None


def channel_grammar(inquiry: Inquiry, names: Mapping[str, Tool]) -> Grammar | None:
    """The same where an answer is messages with headers, of which the last one counts."""
    form, wanted = inquiry.form, _wanted(inquiry, names)
    required = inquiry.choice.mode == "required"
    if not (form or required or any(tool.strict for tool in wanted.values())):
        return None
    said = f"{_FINAL} {form.grammar.rule if form else 'TEXT'}"
    kinds = [
        f'<|channel|> {json.dumps(f"commentary to=functions.{name} ")} <|constrain|> "json" '
        f"<|message|> {_held(tool).rule}"
        for name, tool in wanted.items()
    ]
    last = _rule(kinds) if required else ["said", *_rule(kinds)]
    # What has a form has no words beside it.
    before = "thought?" if form else "thought? preamble?"
    return Grammar.lark(
        f"start: {before} ({' | '.join(last)})\nsaid: {said}\n" + _BEFORE + _rules(kinds)
    )


def _wanted(inquiry: Inquiry, names: Mapping[str, Tool]) -> Mapping[str, Tool]:
    """The tools that may be called. Raises InvalidInput."""
    choice = inquiry.choice
    if choice.name and choice.name not in {tool.name for tool in names.values()}:
        raise InvalidInput(f"tool_choice: there is no tool {choice.name!r}")
    if choice.mode == "required" and not names:
        raise InvalidInput("tool_choice: a tool must be called, and there is none")
    if choice.mode == "none":
        return {}
    return {n: tool for n, tool in names.items() if choice.name in ("", tool.name)}


def _lark(
    start: str,
    names: Mapping[str, Tool],
    marks: CallMarks,
    *,
    parallel: bool,
    thought: str = "",
) -> Grammar:
    """Calls of these tools, as JSON between the marks, where `start` has them; without one there
    may be text first, or alone, behind a `thought`. Unless its tool is strict, what of a schema
    cannot be held to is left out, and one that is none is any object."""
    kinds = [_call(name, _held(tool)) for name, tool in names.items()]
    # What has no end goes to that of the answer.
    more = '("\\n" call)*' if parallel and marks.ended else ""
    if not start:
        known = "|".join(re.escape(mark).replace("/", r"\/") for mark in marks.marks)
        opens = "" if marks.special else f"opens[lazy]: TEXT {marks.begin}\n"
        begun = f"TEXT {marks.begin}" if marks.special else "opens"
        start = f"{thought} (TEXT | {begun} rest {more})\n"
        start += "THOUGHT: /(?s:.*)/\n" if thought else ""
        start += f"{opens}TEXT: /(?s:.*)/ & ~/(?s:.*)({known})(?s:.*)/"
    return Grammar.lark(
        f"start: {start}\ncalls: call {more}\ncall: {marks.begin} rest\nrest: body {marks.end}\n"
        f"body: {' | '.join(_rule(kinds))}\n" + _rules(kinds)
    )


def _rule(kinds: Sequence[str]) -> list[str]:
    return [f"kind{number}" for number in range(len(kinds))]


def _rules(kinds: Sequence[str]) -> str:
    return "".join(f"kind{number}: {kind}\n" for number, kind in enumerate(kinds))


def _held(tool: Tool) -> Grammar:
    try:
        return Form(tool.parameters or None, tool.strict).grammar
    except InvalidGrammar as error:
        if tool.strict:
            raise InvalidGrammar(f"the tool {tool.name!r}: {error}") from None
        return Grammar.json_object()


def _call(name: str, arguments: Grammar) -> str:
    said = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    return f'{json.dumps(said)} {arguments.rule} "}}"'
