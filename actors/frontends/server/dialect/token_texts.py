"""What tokens say, one by one: for log-probabilities, whose clients want each token's text. Any
thread."""

from collections import deque
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from kvactors.actors.frontends.server.exchange.events import TokenLogprob
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.token_offsets import Detokenizer
from kvactors.core.schedule.logprobs import TokenLogprob as Scored

__all__ = ["TokenLine", "TokenTexts"]

# Of tokens in the middle of a line, as long as there is their tokenizer.
_texts = WeakKeyDictionary[ChatFormat, dict[int, str]]()


class TokenTexts:
    """The texts of the tokens of one answer or prompt, in order, by the tokenizer of `chat`.

    They add up to the whole text, so a character of several tokens stands at the last of them. End
    tokens say nothing, unless `ends`; the first stands `behind` these.
    """

    def __init__(self, chat: ChatFormat, *, ends: bool = False, behind: Sequence[int] = ()) -> None:
        self._chat = chat
        self._silent = frozenset[int]() if ends else chat.eos
        self._said = Detokenizer(chat.decode, behind)

    def tell(self, tokens: Iterable[Scored]) -> tuple[TokenLogprob, ...]:
        """The next tokens, with their texts and those of the likeliest at their places."""
        return tuple(map(self._tell, tokens))

    def _tell(self, given: Scored) -> TokenLogprob:
        top = tuple((token, _alone(self._chat, token), logprob) for token, logprob in given.top)
        text = "" if given.token in self._silent else self._said.add([given.token])
        return TokenLogprob(given.token, text, given.logprob, top)


class TokenLine:
    """Tokens in line until their text is passed on, which may be later or never."""

    def __init__(self) -> None:
        self._line: deque[tuple[int, TokenLogprob]] = deque()
        self._end = self._place = 0

    def add_text(self, text: str) -> None:
        """Put a text in line that no token says."""
        self._end += len(text)

    def add(self, tokens: Iterable[TokenLogprob]) -> None:
        """Put the next tokens in line."""
        for token in tokens:
            self._line.append((self._end, token))
            self._end += len(token.text)

    def pass_on(self, text: str) -> tuple[TokenLogprob, ...]:
        """The tokens that begin in what comes next of the text."""
        self._place += len(text)
        passed = []
        while self._line and self._line[0][0] < self._place:
            passed.append(self._line.popleft()[1])
        return tuple(passed)

    def rest(self) -> tuple[TokenLogprob, ...]:
        """Those that are left: they said nothing, or their text was cut."""
        left = tuple(token for _, token in self._line)
        self._line.clear()
        return left


def _alone(chat: ChatFormat, token: int) -> str:
    """What a token says in the middle of a line."""
    known = _texts.setdefault(chat, {})
    if token not in known:
        before = chat.encode("a")
        start, text = chat.decode(before), chat.decode([*before, token])
        known[token] = text[len(start) :] if text.startswith(start) else chat.decode([token])
    return known[token]
