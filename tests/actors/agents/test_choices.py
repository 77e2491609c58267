"""A choice has the tokens that the model says behind the prompt, and the text that was given."""

from collections.abc import Callable

import pytest
from small_tokenizers import chat_format
from swap_models import Grid

from kvactors.actors import AgentSystem, InvalidSampling, Sampling

WAIT = 60
YES = Sampling(choices=("a cab",))


@pytest.mark.parametrize("template", ["spaced", "broken line"])
def test_white_space_that_the_template_writes_before_answers_is_not_in_the_text_of_a_choice(
    open_grid: Callable[..., AgentSystem], template: str
) -> None:
    chat = chat_format("bytes", template)
    agent = open_grid(Grid("bytes", template), store=False).spawn("a")

    reply = agent.ask("Hello", sampling=YES).get(timeout=WAIT)

    assert reply.text == "a cab"
    assert reply.token_ids == (*chat.encode_answer("a cab"), *chat.end_of_turn)
    assert [turn.text for turn in agent.transcript().turns] == ["Hello", "a cab"]


def test_behind_a_prompt_without_template_it_has_the_tokens_that_it_has_behind_the_template(
    open_grid: Callable[..., AgentSystem],
) -> None:
    system = open_grid(Grid("unigram", "marks"), store=False)
    templated = system.spawn("templated")
    said = templated.ask("Hello", sampling=YES).get(timeout=WAIT)
    prompt = templated.transcript().turns[0]

    ids = system.spawn("ids").ask(prompt.token_ids, sampling=YES)
    text = system.spawn("text").ask(prompt.rendered, match=True, sampling=YES)

    for reply in (ids.get(timeout=WAIT), text.get(timeout=WAIT)):
        assert (reply.text, reply.token_ids) == ("a cab", said.token_ids)


def test_two_choices_of_the_same_tokens_are_refused_and_named(
    open_grid: Callable[..., AgentSystem],
) -> None:
    agent = open_grid(Grid("unigram", "marks"), store=False).spawn("a")
    alike = Sampling(choices=("be", "a cab", " a cab"))

    with pytest.raises(InvalidSampling, match="'a cab' and ' a cab' have the same tokens"):
        agent.ask("Hello", sampling=alike).get(timeout=WAIT)
