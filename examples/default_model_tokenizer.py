"""The default model's tokenizer: greedy longest match over a small fixed vocabulary.

Nothing is learned: the pieces come from the word lists of the recall worlds, in a fixed
order, so the same ids result on every machine. Names are left out on purpose: a name the
model has met is then spelled from pieces exactly like one it has not.
"""

import json
import re
import string
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from kvactors.core.model.worlds import words
from kvactors.core.model.worlds.relations import RELATIONS

__all__ = ["END", "PAD", "SPECIALS", "VOCABULARY", "build_tokenizer", "save_tokenizer"]

VOCABULARY = 1792
PAD, START, END = "<pad>", "<s>", "<|end|>"
SPECIALS = (PAD, START, END, "<unk>", "<|system|>", "<|user|>", "<|assistant|>")
# Metaspace writes a word's leading space as this.
LONGEST_WORD = 64
SPACE = "▁"
_OTHER_CHARACTERS = "\n\t’‘“”–—…€£°" + words.ACCENTED

# No trimming: what a turn renders to must not depend on what follows it.
TEMPLATE = (
    "{% for message in messages %}{% if loop.first %}<s>{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _sentences() -> list[str]:
    """Every text whose words are kept whole, the most needed first."""
    wordings = [text for r in RELATIONS for text in (*r.says, *r.asks, r.answer)]
    small_talk = [text for pair in words.SMALL_TALK.items() for text in pair]
    lists = [
        (*words.TOPICS, *(item for items in words.TOPICS.values() for item in items)),
        words.SYSTEMS, words.CHATTER, words.PREFIXES, words.ASIDES, words.CORRECTIONS,
        words.UNITS, words.ADJECTIVES, words.KIN, words.PLACES, words.SHOPS, words.THINGS,
        words.EVENTS, words.FOODS, words.CITIES, words.JOBS, words.SPOTS, words.DAYS,
        words.LANGUAGES, words.GAMES, words.PAINTED, words.GOODS, words.COMMON,
    ]  # fmt: skip
    fixed = ["I do not know. Okay. favorite color am pm o'clock"]
    return [*fixed, *small_talk, *wordings, *(text for items in lists for text in items)]


def _whole_words() -> list[str]:
    found: dict[str, None] = {}
    for sentence in _sentences():
        for word in re.findall(r"[A-Za-z]{2,}", re.sub(r"\{\w+\}", "", sentence)):
            found[SPACE + word] = None
    for opening in ("The", "My", "What", "Where", "Which", "When", "How", "Who", "Do", "Is"):
        found[SPACE + opening.lower()] = None
    return list(found)


def _vocabulary() -> dict[str, int]:
    pairs = [f"{number:02d}" for number in range(100)]
    pieces: list[str] = [
        *SPECIALS,
        SPACE,
        "'s",
        *(c for c in string.printable[:94] + _OTHER_CHARACTERS),
        *(SPACE + letter for letter in string.ascii_letters + string.digits),
        *pairs,
        *(SPACE + pair for pair in pairs),
        *words.PIECES,
        *(SPACE + piece for piece in words.OPEN_PIECES),
        *(SPACE + piece.capitalize() for piece in words.OPEN_PIECES),
        *_whole_words(),
    ]
    kept = list(dict.fromkeys(pieces))[:VOCABULARY]
    kept += [f"<|reserved{index}|>" for index in range(VOCABULARY - len(kept))]
    return {piece: index for index, piece in enumerate(kept)}


def _pre_tokenizer() -> PreTokenizer:
    # Groups of letters and digits, or of anything else, each with its leading space. WordPiece
    # takes the cube of a word's length, and makes one <unk> of what is longer than it allows.
    word = rf"{SPACE}?[\p{{L}}\p{{N}}]{{1,{LONGEST_WORD}}}"
    groups = Regex(rf"'s(?![\p{{L}}\p{{N}}])|{word}|{SPACE}?[^\p{{L}}\p{{N}}{SPACE}]")
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=False),
            pre_tokenizers.Split(groups, behavior="isolated"),
        ]
    )


def build_tokenizer() -> Tokenizer:
    """The tokenizer, with the role marks as special tokens."""
    model = models.WordPiece(
        vocab=_vocabulary(), unk_token="<unk>", continuing_subword_prefix="",
        max_input_chars_per_word=10_000,
    )  # fmt: skip
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return tokenizer


def save_tokenizer(directory: Path) -> None:
    """Write the three tokenizer files that transformers loads."""
    build_tokenizer().save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": START,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
