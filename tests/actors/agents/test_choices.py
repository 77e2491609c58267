"""A choice has the tokens that the model says behind the prompt, and the text that was given."""

from collections.abc import Callable

import pytest
from small_tokenizers import chat_format
from swap_models import Grid

from kvactors.actors import AgentSystem, Sampling

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
