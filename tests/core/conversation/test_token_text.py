"""Decoding while a long text is encoded."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from small_tokenizers import build
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from kvactors.core.conversation.token_text import TokenText

WAIT = 60


class Held:
    """A tokenizer whose encoding of long texts is `held`; `fast`: its work is done in Rust."""

    def __init__(self, *, fast: bool) -> None:
        self.backend_tokenizer = object() if fast else None
        self.held, self.reached = threading.Event(), threading.Event()

    def encode(self, text: str, **_: Any) -> list[int]:
        if len(text) > 1:
            self.reached.set()
            assert self.held.wait(WAIT)
        return list(map(ord, text))

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


@pytest.mark.parametrize("fast", [True, False])
def test_a_stream_waits_for_no_prompt_that_is_encoded_where_decoding_changes_nothing(
    fast: bool,
) -> None:
    held = Held(fast=fast)
    text = TokenText(held)
    with ThreadPoolExecutor(2) as threads:
        prompt = threads.submit(text.encode, "a whole prompt")
        assert held.reached.wait(WAIT)
        piece = threads.submit(text.decode, [104, 105])
        if fast:
            assert piece.result(WAIT) == "hi"
        assert piece.done() is fast
        held.held.set()
        assert piece.result(WAIT) == "hi"
        assert len(prompt.result(WAIT)) == 14


@pytest.mark.parametrize("algorithm", ["bytes", "wordpiece", "unigram"])
def test_tokenizers_of_rust_say_the_same_from_many_threads_whatever_their_file_says(
    algorithm: str,
) -> None:
    backend = Tokenizer.from_str(build(algorithm).to_str())
    backend.enable_truncation(8)
    backend.enable_padding(length=16)
    text = TokenText(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<unk>"))
    said = "to be or not to be " * 500
    expected = text.encode(said)
    assert len(expected) > 16

    def repeated(work: Callable[[], object]) -> list[object]:
        return [work() for _ in range(20)]

    with ThreadPoolExecutor(4) as threads:
        encoded = [threads.submit(repeated, lambda: text.encode(said)) for _ in range(2)]
        decoded = [threads.submit(repeated, lambda: text.decode(expected)) for _ in range(2)]
        assert all(found == expected for one in encoded for found in one.result(WAIT))
        assert len({found for one in decoded for found in one.result(WAIT)}) == 1
