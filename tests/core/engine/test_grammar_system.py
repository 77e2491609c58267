"""Answers that have a grammar from the shipped default model: valid, whole and remembered."""

import gc
import json
import os
import random
import weakref
from typing import Any

import jsonschema
import pytest
from makers import OpenSystem
from mlx_lm import load
from random_schemas import random_schema
from seeded import bug, seeded

from kvactors import AgentSystem, Grammar, InvalidGrammar, Sampling
from kvactors.core.model.options import DEFAULT_MODEL
from kvactors.core.schedule.guide import Guide

# As many as can be told apart from luck; the full number takes some minutes.
SCHEMAS = 1000 if os.environ.get("KVACTORS_FULL") else 60
WAIT = 600
ROOM = (0, 1, 3, 10, 40)


def least_tokens(agent: Any, grammar: Grammar) -> int:
    """The fewest tokens that an answer is let have: what the refusal of fewer says."""
    sampling = Sampling(max_tokens=1, grammar=grammar)
    with pytest.raises(InvalidGrammar) as refused:
        agent.ask("?", sampling=sampling).get(timeout=WAIT)
    return int(str(refused.value).split(" takes ")[1].split()[0])


def wrong_answers(open_system: OpenSystem, count: int) -> list[str]:
    """Asks for `count` random schemas, with hardly more tokens than they need; what is wrong."""
    chance = random.Random(count)
    system = open_system("default", store=False, max_batch=32)
    probe, asked, wrong = system.spawn("probe"), [], []
    for number in range(count):
        schema = random_schema(chance)
        grammar = Grammar.json_schema(schema)
        sampling = Sampling(
            max_tokens=least_tokens(probe, grammar) + chance.choice(ROOM),
            temperature=chance.choice((0.0, 1.0, 5.0)),
            seed=number,
            grammar=grammar,
        )
        agent = system.spawn(f"{number}")
        asked.append((schema, agent.ask(f"Say something about {number}.", sampling=sampling)))
    for schema, future in asked:
        reply = future.get(timeout=WAIT)
        try:
            jsonschema.validate(json.loads(reply.text), schema, format_checker=CHECKER)
        except (ValueError, jsonschema.ValidationError) as error:
            wrong.append(f"{reply.text!r}: {error}")
    return wrong


CHECKER = jsonschema.FormatChecker()


@pytest.mark.slow
def test_every_random_schema_gets_a_valid_answer(open_system: OpenSystem) -> None:
    assert wrong_answers(open_system, SCHEMAS) == []


def test_answers_that_are_cut_off_are_seen(open_system: OpenSystem) -> None:
    @bug(Guide, "left")
    def the_end_is_never_near(_true: Any) -> Any:
        return property(lambda _guide: 10_000)

    with seeded(the_end_is_never_near):
        assert wrong_answers(open_system, 12)


def test_a_form_streams_ends_by_itself_and_is_remembered(open_system: OpenSystem) -> None:
    agent = open_system("default", store=False).spawn("a")
    grammar = Grammar.regex("The (cat|dog) is called [A-Z][a-z]{2,8}[.]")
    sampling = Sampling(grammar=grammar)

    stream = agent.stream("What is the pet called?", sampling=sampling)
    said = "".join(piece.text for piece in stream)

    assert said == stream.reply.text
    assert said.startswith("The ")
    assert said.endswith(".")
    assert stream.reply.finish_reason == "stop"
    assert said in agent.transcript().text
    free = agent.ask("And now?", sampling=Sampling(max_tokens=4)).get(timeout=WAIT)
    assert free.usage.reused_tokens > 0


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.json_object(),
        Grammar.lark('start: "[" item ("," item)* "]"\nitem: "x" | "(" item ")"'),
        Grammar.regex("[0-9]{3}-[0-9]{4}"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_grammar_is_whole_within_few_tokens(
    open_system: OpenSystem, grammar: Grammar, seed: int
) -> None:
    agent = open_system("default", store=False).spawn("a")
    sampling = Sampling(max_tokens=12, temperature=8.0, seed=seed, grammar=grammar)

    said = agent.ask("Go on.", sampling=sampling).get(timeout=WAIT).text

    ends = {"json_schema": "}", "lark": "]"}
    assert said.endswith(ends.get(grammar.kind, "")), said
    assert grammar.kind != "lark" or said.count("(") == said.count(")")
    assert grammar.kind != "json_schema" or isinstance(json.loads(said), dict)
    assert grammar.kind != "regex" or len(said) == 8


def test_a_tokenizer_is_let_go_with_the_system_that_compiled_a_grammar_for_it() -> None:
    tokenizers = []

    def model() -> tuple[Any, Any]:
        network, tokenizer = load(str(DEFAULT_MODEL))[:2]
        tokenizers.append(weakref.ref(tokenizer))
        return network, tokenizer

    with AgentSystem(model, store=False) as system:
        sampling = Sampling(max_tokens=4, grammar=Grammar.regex("yes|no"))
        system.spawn("a").ask("Go on.", sampling=sampling).get(timeout=WAIT)
        assert tokenizers[0]() is not None

    del system
    gc.collect()
    assert tokenizers[0]() is None


def test_a_turn_that_cannot_be_whole_is_refused_before_any_work(open_system: OpenSystem) -> None:
    system = open_system("default", store=False)
    sampling = Sampling(max_tokens=3, grammar=Grammar.regex("[0-9]{40}"))

    with pytest.raises(InvalidGrammar, match="more than max_tokens 3"):
        system.spawn("a").ask("Go on.", sampling=sampling).get(timeout=WAIT)

    assert system.stats()["prefilled_tokens"] == 0
