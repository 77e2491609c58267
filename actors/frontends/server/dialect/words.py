"""What an answer says beside its calls. One thread at a time."""

from collections.abc import Iterator

from kvactors.actors.frontends.server.exchange.events import Said, TokenLogprob
from kvactors.core.conversation.hashing import common_prefix

__all__ = ["Words"]


class Words:
    """`text` is what was said so far. Blanks at its beginning and around calls are nobody's words,
    unless all of it is said `as_it_is`: those that may stand before a call wait, and are said if
    more words follow."""

    def __init__(self, *, as_it_is: bool) -> None:
        self.text = ""
        self._as_it_is = as_it_is
        self._waiting = Said("")
        self._behind_call = False
        self._told = 0
        self._heard = ""

    def go_on(self, heard: str) -> None:
        """Of what was said so far, and of the blanks that wait, these words are told already."""
        begins = len(self.text) - len(self.text.lstrip())
        self._heard = self.text[:begins] + heard.lstrip()
        self._told = common_prefix(self.text, self._heard)

    def add(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> Iterator[Said]:
        """Some more text, and what its tokens were given with."""
        begun = self.text or self._as_it_is
        if begun or text.strip():
            whole = self._waiting.text + text if begun else text.lstrip()
            logprobs = self._waiting.logprobs + logprobs
            self.text += whole
            self._waiting, self._behind_call = Said(""), False
            if self._told < len(self._heard):
                self._told = max(self._told, common_prefix(self.text, self._heard))
            fresh, self._told = self.text[self._told :], len(self.text)
            if fresh:
                yield Said(fresh, logprobs)

    def wait(self, blank: str, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Blanks, which a call may follow."""
        if self.text:
            before = self._waiting
            self._waiting = Said(before.text + blank, before.logprobs + logprobs)

    def called(self) -> None:
        """A call follows."""
        self._behind_call = True

    def end(self) -> Iterator[Said]:
        """Nothing follows."""
        if not self._behind_call:
            yield from self.add("", ())
