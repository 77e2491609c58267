"""The default tokenizer, and three of other algorithms, trained on a few lines when a test
needs them."""

from functools import cache
from typing import Any

import msgpack  # type: ignore[import-untyped]
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer
from transformers import PreTrainedTokenizerFast

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.conversation.turn import Turn
from kvactors.core.model.options import DEFAULT_MODEL

ALGORITHMS = ("default", "bytes", "unigram", "wordpiece")
UNKNOWN = "<unk>"

# Combining marks, a family joined by zero-width joiners, CRLF, no-break space, wide letters.
LETTERS = "abcdeHW é\u0301\u0308\r\n\t\u00a0.,!'0日本語🦊👩\u200d💻ßŁ"
CORPUS = [
    "Hello world, hello again. He said: 'be calm!'",
    "a cab, a bed, decade by decade; abc abd abe 000 00",
    "日本語 🦊 👩\u200d💻 é e\u0301 u\u0308 ß Ł\r\n\tWe heed.",
]
SPECIALS = ["<unk>", "<|start|>", "<|end|>"]
BEGINS = 1

CHATML = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|start|>system\nBe helpful.<|end|>\n{% endif %}" + CHATML
)
# Shows an answer's thinking only until the next question.
DROPS_THINKING = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# Asks for an answer with a special token, as the default model's does.
MARKS = (
    "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)
# Ask for an answer without the white space that history has before it: as Llama-2, and as GLM-4.
SPACED = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}<|end|>"
    "{% else %}A {{ m.content }} b{% endif %}{% endfor %}"
)
BROKEN_LINE = (
    "{% for m in messages %}{{ '<|start|>' if m.role == 'assistant' else '<|end|>' }}\n"
    "{{ m.content }}{% endfor %}{{ '<|start|>' if add_generation_prompt else '' }}"
)
ASCII = "".join(map(chr, range(128)))
TEMPLATES = {
    "none": None,
    "chatml": CHATML,
    "marks": MARKS,
    "default system": DEFAULT_SYSTEM,
    "drops thinking": DROPS_THINKING,
    "spaced": SPACED,
    "broken line": BROKEN_LINE,
}


class Letters:
    """Each of these letters is a token, by its place, the first one ends. It has no vocabulary to
    show, and fails on any other letter."""

    has_chat_template = True
    eos_token_ids = frozenset([0])

    def __init__(self, letters: str) -> None:
        self._letters = letters

    def encode(self, text: str) -> list[int]:
        return [self._letters.index(letter) for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(self._letters[token] for token in tokens)

    def apply_chat_template(self, messages: list[dict[str, str]], **_options: Any) -> str:
        return "".join(message["content"] for message in messages)


@cache
def build(algorithm: str) -> Tokenizer:
    """A tokenizer; the trained ones know every one of LETTERS. WordPiece loses case and spaces."""
    if algorithm == "default":
        return Tokenizer.from_file(str(DEFAULT_MODEL / "tokenizer.json"))
    trainer: Any
    options: dict[str, Any] = {"special_tokens": SPECIALS, "show_progress": False}
    if algorithm == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = BpeTrainer(vocab_size=320, initial_alphabet=alphabet, **options)
    elif algorithm == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
        trainer = UnigramTrainer(
            vocab_size=120, initial_alphabet=list(LETTERS), unk_token="<unk>", **options
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(cleanup=False)
        trainer = WordPieceTrainer(vocab_size=200, initial_alphabet=list(LETTERS), **options)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return tokenizer


@cache
def chat_format(algorithm: str, template: str = "none") -> ChatFormat:
    """The tokenizer as a model would come with it."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=build(algorithm),
        eos_token="<|end|>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATES[template]
    return ChatFormat(wrapped)


def starting(template: str | None = None) -> ChatFormat:
    """Bytes as tokens; each text begins with <|start|>."""
    inner = Tokenizer.from_str(build("bytes").to_str())
    inner.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", BEGINS)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<|start|>", eos_token="<|end|>"
    )
    fast.chat_template = template
    return ChatFormat(fast)


def knows(chat: ChatFormat, text: str) -> bool:
    """Whether no part of the text is an unknown token."""
    return UNKNOWN not in chat.tokenizer.convert_ids_to_tokens(chat.encode(text))


def raw_turn(chat: ChatFormat, text: str) -> Turn:
    """A prompt that no template renders."""
    return Turn("user", text, tuple(chat.encode(text)), text, raw=True)


def remembering(chat: ChatFormat, *turns: Turn) -> Transcript:
    """A transcript of these turns."""
    transcript = Transcript(chat, "test")
    transcript.extend(turns)
    return transcript


def talk(chat: ChatFormat, *said: str, system: str | None = None) -> Transcript:
    """A transcript of questions and answers in turn, as asking and decoding make it."""
    transcript = Transcript(chat, "test", system)
    for index, text in enumerate(said):
        if index % 2 == 0:
            transcript.extend([transcript.render("user", text, answer=True)])
        else:
            ids = (*chat.encode_answer(text), *chat.end_of_turn)
            transcript.extend([transcript.answer(ids, "stop")])
    return transcript


def recorded(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records as they come back from a ledger."""
    loaded: list[dict[str, Any]] = msgpack.unpackb(msgpack.packb(records))
    return loaded
