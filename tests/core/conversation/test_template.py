"""Rendering turns with chat templates that were made for whole conversations."""

from collections.abc import Callable
from typing import Any

import jinja2
import pytest

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.hashing import tokens_hash
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.errors import TemplateError
from kvactors.core.schedule.sampling import Sampling, draw_key
from kvactors.core.testing.models import PlainTokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n"
    "{% endif %}" + CHATML
)
LLAMA3 = (
    "{% for m in messages %}{% if loop.first %}<|begin|>{% endif %}"
    "<|h|>{{ m.role }}<|/h|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}"
)
DROPS_NEWLINE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]"
    "{% if loop.last and not add_generation_prompt %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
REWRITES = "{% for m in messages %}{{ m.content }}{{ messages | length }}{% endfor %}"
# As published: of earlier answers the thought is dropped, and of the last one it is there, empty.
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As published: the last answer of all ends otherwise than those before it.
GPT_OSS = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "{% if m.role == 'assistant' and loop.last %}\0{% else %}\1{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}"
)
ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}</s>{% endif %}"
    "{% endfor %}"
)


class TemplateTokenizer(PlainTokenizer):
    """Characters as tokens, with a chat template and an end-of-turn text of one token."""

    all_special_ids = (0, 1)

    def __init__(self, template: str, end: str = "\0") -> None:
        super().__init__(0x110000)
        self.chat_template: Any = template
        self._end = end

    def apply_chat_template(
        self, messages: list[Any], *, add_generation_prompt: bool = False, **kwargs: Any
    ) -> str:
        def fail(reason: str) -> None:
            raise jinja2.TemplateError(reason)

        template = jinja2.Template(self.chat_template, trim_blocks=False)
        text: str = template.render(
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            raise_exception=fail,
            **kwargs,
        )
        return text

    def decode(self, tokens: list[int]) -> str:
        return "".join(self._end if token == 0 else chr(token) for token in tokens)


class Untold(PlainTokenizer):
    """Characters as tokens, without a chat template."""

    has_chat_template = False


def talk(template: str, end: str, finish: str = "stop") -> tuple[str, Any]:
    """The text of a transcript of two turns, and the chat format that made it."""
    chat = ChatFormat(TemplateTokenizer(template, end))
    transcript = Transcript(chat, "t", None)
    for question, answer in (("q1", "a1"), ("q2", "a2")):
        prompt = transcript.render("user", question, answer=True)
        said = [ord(c) for c in answer] + ([0] if finish == "stop" else [])
        transcript.extend([prompt, transcript.answer(said, finish)])
    return chat.decode(transcript.token_ids), chat


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHATML, "<|im_end|>"),
        (QWEN, "<|im_end|>"),
        (QWEN3, "<|im_end|>"),
        (LLAMA3, "<|eot|>"),
        (ALTERNATES, "</s>"),
    ],
)
def test_turn_by_turn_rendering_equals_the_whole_conversation(
    template: str, end: str, finish: str
) -> None:
    text, chat = talk(template, end, finish)

    whole = chat.tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "q1"},
            {"role": "assistant", "content": "a1"},
            {"role": "user", "content": "q2"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == whole + "a2" + (end if finish == "stop" else "")


def test_a_default_system_prompt_appears_once() -> None:
    text, _ = talk(QWEN, "<|im_end|>")

    assert text.count("You are helpful.") == 1


def test_a_template_that_drops_a_newline_before_the_next_turn_still_works() -> None:
    text, _ = talk(DROPS_NEWLINE, "[end]")

    assert text == "[user]q1[end][assistant]a1[end][user]q2[end][assistant]a2[end]"


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_template_that_ends_earlier_answers_by_another_token_still_works(finish: str) -> None:
    text, chat = talk(GPT_OSS, "\0", finish)

    said = "<|start|>assistant<|message|>a1\1<|start|>user<|message|>q2\1"
    assert text.count(said) == 1
    assert chat.end_of_turn == (0,)


def test_a_template_that_ends_only_the_last_answer_is_refused() -> None:
    with pytest.raises(TemplateError, match="rewrites"):
        ChatFormat(TemplateTokenizer(GPT_OSS.replace("\1", "")))


def test_what_a_later_turn_adds_does_not_depend_on_the_day() -> None:
    tokenizer = TemplateTokenizer("[today: {{ day }}]" + CHATML, "<|im_end|>")
    chat = ChatFormat(tokenizer, {"day": "Monday"})
    monday = chat.following("user", "q2", answer=True)

    tokenizer.chat_template = tokenizer.chat_template.replace("{{ day }}", "Tuesday")

    assert chat.following("user", "q2", answer=True) == monday
    assert "Tuesday" in chat.opening("user", "q1", system=None, answer=True)


def test_a_template_that_rewrites_the_conversation_is_refused() -> None:
    with pytest.raises(TemplateError, match="rewrites"):
        ChatFormat(TemplateTokenizer(REWRITES))


def test_a_role_that_the_template_refuses_is_a_typed_error() -> None:
    chat = ChatFormat(TemplateTokenizer(ALTERNATES, "</s>"))

    with pytest.raises(TemplateError, match="alternate"):
        chat.following("tool", "x", answer=True)


def test_without_a_template_text_is_appended_as_it_is() -> None:
    chat = ChatFormat(PlainTokenizer())
    transcript = Transcript(chat, "t", "be kind. ")

    turn = transcript.render("user", "hello", answer=True)

    assert chat.decode(turn.token_ids) == turn.rendered == "be kind. hello"


def test_template_kwargs_reach_the_template() -> None:
    tokenizer = TemplateTokenizer("{{ mood }}:" + CHATML, "<|im_end|>")

    chat = ChatFormat(tokenizer, {"mood": "calm"})

    assert chat.opening("user", "x", system=None, answer=True).startswith("calm:")


def test_a_transcript_revives_from_its_records_and_renders_anew_for_another_tokenizer() -> None:
    chat = ChatFormat(TemplateTokenizer(CHATML, "<|im_end|>"))
    first = Transcript(chat, "one", "be kind")
    question = first.render("user", "q1", answer=True)
    records = [first.extend([question, first.answer((97, 49, 0), "stop")])]

    same = Transcript.restore(chat, "one", records)
    other_chat = ChatFormat(TemplateTokenizer(LLAMA3, "<|eot|>"))
    other = Transcript.restore(other_chat, "two", records)

    assert same.turns == first.turns
    assert same.system_prompt == other.system_prompt == "be kind"
    assert other_chat.decode(other.token_ids) == (
        "<|begin|><|h|>system<|/h|>\n\nbe kind<|eot|><|h|>user<|/h|>\n\nq1<|eot|>"
        "<|h|>assistant<|/h|>\n\na1<|eot|>"
    )
    assert [turn.text for turn in other.turns] == ["q1", "a1"]


def test_reply_text_is_cut_at_the_first_stop_string_and_the_end_of_turn() -> None:
    chat = ChatFormat(TemplateTokenizer(CHATML, "<|im_end|>"))
    tokens = [ord(c) for c in "one two three"] + [0]

    assert chat.reply_text(tokens) == "one two three"
    assert chat.reply_text(tokens, ("three", " tw")) == "one"


def test_random_keys_differ_by_agent_turn_position_and_seed() -> None:
    keys = {
        draw_key(Sampling(seed=seed), agent, turn, position)
        for seed in (0, 1)
        for agent in ("a", "b")
        for turn in (0, 1)
        for position in (0, 1)
    }

    assert len(keys) == 16
    assert draw_key(Sampling(), "a", 0, 0) == draw_key(Sampling(), "a", 0, 0)


def test_a_seed_that_stands_alone_draws_the_same_for_another_agent_and_turn() -> None:
    alone = Sampling(seed=5, seed_alone=True)

    assert draw_key(alone, "a", 0, 9) == draw_key(alone, "b", 3, 9)
    assert draw_key(alone, "a", 0, 9) != draw_key(alone, "a", 0, 10)
    other = Sampling(seed=6, seed_alone=True)
    assert draw_key(alone, "a", 0, 9) != draw_key(other, "a", 0, 9)


def test_the_hash_of_tokens_sees_every_token() -> None:
    assert tokens_hash([1, 2, 3]) == tokens_hash((1, 2, 3))
    assert len({tokens_hash([1, 2, 3]), tokens_hash([1, 2, 4]), tokens_hash([1, 2])}) == 3


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_without_a_template_roles_are_separated_by_lines(finish: str) -> None:
    chat = ChatFormat(Untold(0x110000))
    transcript = Transcript(chat, "t", "Be brief.")
    for question, answer in (("q1", "a1"), ("q2", "a2")):
        prompt = transcript.render("user", question, answer=True)
        said = [ord(c) for c in answer] + ([0] if finish == "stop" else [])
        transcript.extend([prompt, transcript.answer(said, finish)])
    transcript.extend([transcript.render("tool", "seen", answer=False)])

    end = "\0" if finish == "stop" else ""
    assert chat.decode(transcript.token_ids) == (
        f"Be brief.\n\nUser:\nq1\n\nAssistant:\na1{end}\n\nUser:\nq2\n\nAssistant:\na2{end}\n\n"
        "Tool:\nseen\n\n"
    )


def test_a_tokenizer_with_only_the_method_has_a_template() -> None:
    class Minimal:
        eos_token_id = 0

        def apply_chat_template(self, messages: list[Any], **kwargs: Any) -> str:
            text = "".join(f"[{message['role']}]{message['content']}\n" for message in messages)
            return text + ("[assistant]" if kwargs["add_generation_prompt"] else "")

    assert ChatFormat(Minimal()).opening("user", "hi", system=None, answer=True) == (
        "[user]hi\n[assistant]"
    )


def test_a_role_that_the_template_leaves_out_is_refused() -> None:
    begin = "{% for m in messages %}"
    known = f"{begin}{{% if m.role in ('user', 'assistant') %}}{CHATML.removeprefix(begin)}"
    chat = ChatFormat(TemplateTokenizer(known.replace("{% endfor %}", "{% endif %}{% endfor %}")))
    renders: list[Callable[[str], str]] = [
        lambda role: chat.opening(role, "dark", system=None, answer=False),
        lambda role: chat.following(role, "dark", answer=True),
    ]

    for render in renders:
        assert "dark" in render("user")
        with pytest.raises(TemplateError, match="leaves out what the role 'narrator' says"):
            render("narrator")
    assert "narrator" in ChatFormat(TemplateTokenizer(CHATML)).following(
        "narrator", "x", answer=False
    )
