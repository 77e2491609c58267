"""Log-probabilities of chat answers through the openai package, against mlx-lm and NumPy."""

from typing import Any

import openai
from inside import system_of
from likelihoods import check_place, logprobs_of

from kvactors.actors import Grammar, Sampling
from kvactors.actors.frontends.server.dialect.marks import Marks
from kvactors.actors.frontends.server.dialect.reader import Reader
from kvactors.actors.frontends.server.exchange.events import Said, Thought, TokenLogprob
from kvactors.actors.frontends.server.web.serve import Server

TOP = 5


def test_a_chat_answers_tokens_have_their_log_probabilities(
    exact: Server, texts: openai.OpenAI
) -> None:
    said: list[Any] = [{"role": "user", "content": "Say a word about logs."}]
    asked: dict[str, Any] = {"model": "default", "messages": said, "max_tokens": 12}
    answer: Any = texts.chat.completions.create(
        **asked, temperature=0, logprobs=True, top_logprobs=TOP
    )

    choice = answer.choices[0]
    (turn, reply) = system_of(exact).agents()[-1].transcript().turns[-2:]
    tokens = [*turn.token_ids, *reply.token_ids]
    expected = logprobs_of(tokens)[len(turn.token_ids) - 1 :]
    told = choice.logprobs.content
    assert "".join(one.token for one in told) == choice.message.content
    for own, token, one in zip(expected, reply.token_ids, told, strict=False):
        check_place(own, token, one.logprob, [other.logprob for other in one.top_logprobs])
        assert bytes(one.bytes).decode() == one.token
    plain = texts.chat.completions.create(**asked)
    assert plain.choices[0].logprobs is None


def test_a_chat_stream_tells_the_same(texts: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "default",
        "messages": [{"role": "user", "content": "Say a word about streams."}],
        "max_tokens": 10,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 1,
    }
    whole: Any = texts.chat.completions.create(**asked)

    chunks: Any = list(texts.chat.completions.create(**asked, stream=True))

    parts = [chunk.choices[0] for chunk in chunks]
    told = [one for part in parts if part.logprobs for one in part.logprobs.content]
    assert [one.token for one in told] == [one.token for one in whole.choices[0].logprobs.content]
    for part in parts:
        if part.logprobs:
            assert "".join(one.token for one in part.logprobs.content) == part.delta.content


def test_an_answer_of_a_grammar_is_told_by_the_models_own_logits(exact: Server) -> None:
    """Those that the grammar forbids count too; a token that it took in another's place has its
    own."""
    form = Grammar.regex("[a-z ]{12,}[.]!!")
    agent = system_of(exact).spawn("forms")
    sampling = Sampling(grammar=form, max_tokens=14, temperature=1.5, seed=2, top_logprobs=3)

    reply = agent.ask("Say something.", sampling=sampling).get(timeout=60)

    (turn, _) = agent.transcript().turns
    expected = logprobs_of([*turn.token_ids, *reply.token_ids])[len(turn.token_ids) - 1 :]
    assert [one.token for one in reply.logprobs] == list(reply.token_ids)
    for own, one in zip(expected, reply.logprobs, strict=False):
        assert one.logprob is not None
        check_place(own, one.token, one.logprob, [logprob for _, logprob in one.top])


def test_tokens_are_told_with_the_text_that_they_begin_in() -> None:
    marks = Marks(think="<think>", think_end="</think>")
    reader = Reader(marks, lambda text, tools: [], {}, lambda _: "id")
    said = ["<think>", "hm", "</think>", "Good", " day", "!", ""]
    tokens = [TokenLogprob(place, text, -1.0) for place, text in enumerate(said)]

    # Text that may become a stop string is held back; its tokens are not.
    events = [*reader.feed("<think>hm</thi", tokens[:4]), *reader.feed("nk>Good da", tokens[4:])]
    events += [*reader.feed("y!"), *reader.end()]

    told = [one.text for event in events if isinstance(event, Said) for one in event.logprobs]
    assert told == ["Good", " day", "!"]
    assert [event for event in events if isinstance(event, Thought)] == [Thought("hm")]
