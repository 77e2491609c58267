"""Conversations and prompts whose common prefix is looked for, and what must be kept of them."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from small_tokenizers import (
    ALGORITHMS,
    LETTERS,
    build,
    chat_format,
    knows,
)

from kvactors.core.conversation.prefix_match import Draft
from kvactors.core.conversation.transcript import Transcript

__all__ = [
    "WORDS",
    "assert_kept",
    "decoded",
    "every_template",
    "every_tokenizer",
    "quick",
    "text_of",
    "texts",
    "true_ends",
]

WORDS = ("Hello", "world", "abc,", "be", "a", "decade", "calm!")


texts = st.text(st.sampled_from(LETTERS), min_size=1, max_size=40) | st.lists(
    st.sampled_from(WORDS), min_size=1, max_size=12
).map(" ".join)


every_tokenizer = pytest.mark.parametrize("algorithm", ALGORITHMS)


every_template = pytest.mark.parametrize(
    "template", ["chatml", "default system", "drops thinking", "spaced", "broken line"]
)


quick = settings(max_examples=60)


def text_of(transcript: Transcript, draft: Draft) -> str:
    return "".join(t.rendered for t in [*transcript.turns[: draft.keep], *draft.turns])


def decoded(transcript: Transcript, draft: Draft) -> str:
    """What the model reads."""
    turns = [*transcript.turns[: draft.keep], *draft.turns]
    return transcript.chat.decode([token for turn in turns for token in turn.token_ids])


def true_ends(algorithm: str, text: str) -> list[int]:
    """Where each token ends, as the tokenizer itself says when it splits the text."""
    encoding = build(algorithm).encode(text, add_special_tokens=False)
    if algorithm != "bytes":
        ends = [end for _, end in encoding.offsets]
        # A marker put in front of a text is given the place of the letter behind it.
        for i in range(len(ends) - 2, -1, -1):
            if encoding.offsets[i + 1][0] < ends[i]:
                ends[i] = ends[i + 1]
        return ends
    # Offsets do not tell whether the bytes of a character are complete; decoding does.
    decode = chat_format(algorithm).decode
    shown = [decode(encoding.ids[: i + 1]) for i in range(len(encoding.ids))]
    whole = [len(part) if text.startswith(part) else None for part in shown]
    return [next(end for end in whole[i:] if end is not None) for i in range(len(whole))]


def assert_kept(algorithm: str, text: str, tokens: int, common: int) -> None:
    """Of a text's tokens, those are kept whose characters match, and no other."""
    ends = true_ends(algorithm, text)
    assert all(end <= common for end in ends[:tokens])
    if knows(chat_format(algorithm), text):
        reached = max(ends[:tokens], default=0)
        possible = max((end for end in ends if end <= common), default=0)
        # A token of nothing but white space may wait for the one after it.
        assert not text[reached:possible].strip()
