"""A tokenizer's tokens as bytes, for grammars: llguidance's own view of it. Any thread."""

import json
import string
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvactors.core.conversation.token_text import vocabulary
from kvactors.core.errors import InvalidGrammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["GrammarTokens"]

# Grammars that are kept compiled.
MOST_COMPILED = 64
# A number ends sooner behind a digit than behind a sign.
SIGNS = sorted(string.printable, key=lambda sign: (sign in "+-.", sign))
Groups = tuple[tuple[int, ...], ...]
# How many of the longest words are tried where a text must be long.
LONG_WORDS = 64
INCOMPLETE = "\ufffd"


class GrammarTokens:
    """What each token id says. `encode` and `decode` are those of the `tokenizer`, in the middle of
    a line; `ends` are its end tokens, the one to end with first; ids are below `size`. One of
    `ends_message` leads out of a message that others follow, or of a thought. Raises
    InvalidGrammar."""

    def __init__(
        self,
        tokenizer: Any,
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[int]], str],
        ends: Sequence[int],
        size: int,
        *,
        ends_message: Sequence[int] = (),
    ) -> None:
        if not ends:
            raise InvalidGrammar("a grammar needs a tokenizer with an end token; this has none")
        self.end = ends[0]
        self._ends_message = tuple(ends_message)
        self.size = size
        self._ll = _from_backend(tokenizer, ends, size) or _from_decoded(
            tokenizer, encode, decode, ends, size
        )
        self._decode = decode
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def matcher(self, source: str) -> "LLMatcher":
        """A matcher at the beginning of a grammar. Raises InvalidGrammar."""
        with self._lock:
            known = self._compiled.pop(source, None) or self._compile_shown(source)
            self._compiled[source] = known
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
            return known.deep_copy()

    def _compile_shown(self, source: str) -> "LLMatcher":
        """A matcher of tokens that show what the grammar allows: where decoding drops the space
        that they begin with, models begin by one that is nobody's."""
        plain = self._compile(source)
        if not self._drops_space:
            return plain
        pairs = zip(plain.compute_logit_bias(), self.words, strict=False)
        begins = [word for free, word in pairs if free and word]
        spaced = all(word.startswith(b" ") for word in begins)
        return self._compile(_behind('" "' if begins and spaced else "/ ?/", source))

    def _compile(self, source: str) -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits

        quiet = LLParserLimits(verbose_errors=False)
        made = LLMatcher(self._ll, source, log_level=0, limits=quiet)
        if made.is_error():
            raise InvalidGrammar(f"no grammar for this tokenizer: {made.get_error()}")
        return made

    @cached_property
    def _drops_space(self) -> bool:
        """Whether decoding drops the space that tokens begin with."""
        words = enumerate(self.words)
        spaced = next((i for i, word in words if word[:1] == b" " and word[1:].isalpha()), None)
        return spaced is not None and not self._decode([spaced]).startswith(" ")

    def encode(self, text: bytes) -> list[int]:
        """Token ids that say these bytes, the longest first."""
        return self._ll.greedy_tokenize(text.decode("utf-8", "replace"))

    @cached_property
    def words(self) -> tuple[bytes, ...]:
        """What each id says; nothing for ids that no grammar allows."""
        special = self._ll.is_special_token
        count = self._ll.vocab_size
        return tuple(b"" if special(i) else self._ll.decode_bytes([i]) for i in range(count))

    @cached_property
    def stand_ins(self) -> Groups:
        """Groups of ids, of each of which one stands for all where an answer is to end soon:
        brackets that close, long words, and each character, those that separate before digits."""
        return self._groups("}])>\"'")

    @cached_property
    def text_stand_ins(self) -> Groups:
        """The same within a text, where a bracket says nothing: quotes come first."""
        return self._groups("\"'}])>")

    def _groups(self, closing: str) -> Groups:
        words = self.words
        by_length = sorted(
            (i for i, word in enumerate(words) if word), key=lambda i: -len(words[i])
        )
        marks = set(closing.encode())
        closers = tuple(i for i in by_length if set(words[i]) <= marks and len(words[i]) > 1)
        letters = tuple(i for i in by_length if words[i].isalpha())[:LONG_WORDS]
        signs = {chr(words[i][0]): i for i in reversed(by_length) if len(words[i]) == 1}
        first = [(signs[sign],) for sign in closing if sign in signs]
        rest = [(signs[sign],) for sign in SIGNS if sign in signs and sign not in closing]
        return (self._ends_message, closers, *first, letters, *rest)


def _behind(lead: str, source: str) -> str:
    """A grammar behind what the rule `lead` derives."""
    grammars = json.loads(source)["grammars"] if source[:1] == "{" else [{"lark_grammar": source}]
    grammars[0]["name"] = "answer"
    led = {"name": "led", "lark_grammar": f"start: {lead} @answer"}
    return json.dumps({"grammars": [led, *grammars]})


def _from_backend(tokenizer: Any, ends: Sequence[int], size: int) -> "LLTokenizer | None":
    """From the file of a fast tokenizer, if llguidance knows its decoder."""
    from llguidance import LLTokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    backend = copy(backend)
    backend.no_padding()
    backend.no_truncation()
    count = max(size, backend.get_vocab_size(with_added_tokens=True))
    try:
        return LLTokenizer(backend.to_str(), n_vocab=count, eos_token=list(ends))
    except ValueError:
        return None


def _from_decoded(
    tokenizer: Any,
    encode: Callable[[str], list[int]],
    decode: Callable[[Sequence[int]], str],
    ends: Sequence[int],
    size: int,
) -> "LLTokenizer":
    """From what each token adds to a text when it is decoded."""
    from llguidance import LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special = {int(token) for token, what in added.items() if what.special} | set(ends)
    before = encode("a")
    start = decode(before)
    count = max(size, len(vocabulary(tokenizer)))
    words = []
    for token in range(count):
        text = decode([*before, token])
        word = text[len(start) :] if text.startswith(start) else ""
        words.append(word.encode("utf-8", "replace"))
        if not word or INCOMPLETE in word:
            special.add(token)
    made = _Decoded(encode, ends[0], words, sorted(special))
    return LLTokenizer(TokenizerWrapper(made), n_vocab=count, eos_token=list(ends))


class _Decoded:
    """A tokenizer as llguidance's wrapper wants one."""

    bos_token_id = None

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        end: int,
        words: Sequence[bytes],
        special: Sequence[int],
    ) -> None:
        self._encode = encode
        self.eos_token_id = end
        self.tokens = words
        self.special_token_ids = special

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))
