"""What `kvactors chat` tells a model's template, and what it shows of an answer."""

from collections.abc import Callable

import pytest
from call_forms import channels, hybrid
from mlx_lm.tokenizer_utils import TokenizerWrapper
from puppets import thinking

from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.frontends.cli.chat import Chat
from kvactors.actors.frontends.console.console import PrefillBar
from kvactors.actors.frontends.console.options import template_kwargs
from kvactors.actors.testing import PuppetModel, use_puppet
from kvactors.actors.turns.options import AskOptions


def talk(puppet: PuppetModel, asked: AskOptions) -> None:
    system = AgentSystem(puppet, store=False)
    use_puppet(system, puppet)
    with system:
        Chat(system, "alice", None, PrefillBar(), asked).talk("Hi")


def test_a_chat_tells_the_template_what_it_was_told(capsys: pytest.CaptureFixture[str]) -> None:
    heard = list[str]()

    def script(said: str) -> str:
        heard.append(said)
        return "Hello."

    told = template_kwargs('{"enable_thinking": false}')
    talk(PuppetModel(script, tokenizer=hybrid), {"template_kwargs": told})

    assert heard[-1].endswith("<think>\n\n</think>\n\n")
    assert "Hello." in capsys.readouterr().out


ANALYSED = "<|channel|>analysis<|message|>Who is it?<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Hello."


@pytest.mark.parametrize(
    ("answer", "tokenizer"),
    [
        ("<think>\nWho is it?\n</think>\n\nHello.", thinking),
        ("<think>Who is it?</think>Hello.", thinking),
        (ANALYSED + FINAL, channels),
    ],
)
def test_what_an_agent_thinks_is_apart_from_what_it_says(
    capsys: pytest.CaptureFixture[str], answer: str, tokenizer: Callable[[], TokenizerWrapper]
) -> None:
    talk(PuppetModel([answer], tokenizer=tokenizer), {})

    shown = capsys.readouterr()
    assert shown.out == "Hello.\n"
    assert shown.err.startswith("Who is it?\n")
    assert shown.err.count("\n") == 2, "a line of thoughts, and one of figures"


def test_what_an_agent_still_thinks_when_its_answer_is_cut_is_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sampling = Sampling(max_tokens=len("<think>Who") - len("<think>") + 1)

    talk(
        PuppetModel(["<think>Who is it?</think>Hello."], tokenizer=thinking), {"sampling": sampling}
    )

    shown = capsys.readouterr()
    assert shown.out == "\n"
    assert shown.err.startswith("Who\n")


def test_what_looks_like_a_thought_is_said_where_the_model_has_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    talk(PuppetModel(["<think>Who?</think>  Hello. "]), {})

    assert capsys.readouterr().out == "<think>Who?</think>  Hello. \n"


def test_what_is_more_of_an_answer_is_shown_behind_what_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    puppet = PuppetModel(["<think>Who?</think>Hello. I am", " Ann."], tokenizer=thinking)
    system = AgentSystem(puppet, store=False)
    use_puppet(system, puppet)
    with system:
        chat = Chat(system, "alice", None, PrefillBar())
        chat.talk(None)
        nothing = capsys.readouterr()
        chat.talk("Hi")
        chat.talk(None)
        (_, answer) = system.spawn("alice").transcript().turns

    shown = capsys.readouterr()
    assert "no answer to go on with" in nothing.err
    assert shown.out == "Hello. I am\n Ann.\n"
    assert answer.text == "<think>Who?</think>Hello. I am Ann."
