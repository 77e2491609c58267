"""How a turn is taken. Pure: any thread."""

from dataclasses import dataclass

from kvactors.actors.frontends.server.exchange.events import Reuse
from kvactors.actors.frontends.server.exchange.inquiry import Message
from kvactors.actors.frontends.server.identity.conversation import Conversation
from kvactors.actors.frontends.server.identity.index import Known

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who takes a turn, `known`, made of `parent` if that is given. Of it `keep` turns stay, which
    are the first `matched` messages said; `begins` has the notes that it knows there, and after
    `tell`, which comes with the first new one of the user, the `notes`. `fresh`: it is to be made.
    `tools`: its tools are others than those that it was told of. `alike`: it begins with the words
    of its parent, whose system prompt and tools are the same by the rules."""

    known: Known
    parent: str
    keep: int
    matched: int
    conversation: Conversation
    tell: str
    notes: str
    begins: str
    reuse: Reuse
    fresh: bool
    tools: bool = False
    alike: bool = False

    @property
    def new(self) -> tuple[Message, ...]:
        """What is said behind what stays."""
        return self.conversation.said[self.matched :]

    @property
    def telling(self) -> int:
        """Which of the new ones tells what has changed: nobody but the user is made to say it, if
        the user says something."""
        return next((at for at, said in enumerate(self.new) if said.role == "user"), 0)

    @property
    def untold(self) -> bool:
        """Whether there is nothing new to tell with, but what the user said last."""
        said = self.conversation.said
        return bool(self.tell and said) and not self.new and said[-1].role == "user"
