"""How a turn is taken. Pure: any thread."""

from dataclasses import dataclass, replace

from kvactors.actors.frontends.server.exchange.events import Reuse
from kvactors.actors.frontends.server.exchange.inquiry import Message
from kvactors.actors.frontends.server.identity.conversation import Conversation
from kvactors.actors.frontends.server.identity.index import Known

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who takes a turn, `known`, made of `parent` if that is given. Of it `keep` turns stay, which
    are the first `matched` messages said; `begins` has the notes that it knows there, and after
    `tell`, which comes with the first new one of the user, the `notes`. Of `tools` beside those it
    began with it knows `had` there. `fresh`: it is to be made. `alike`: it begins with the words
    of its parent, whose system prompt and tools are the same by the rules. `begun` is the answer
    that it goes on with: its `own`, behind the turns that stay, or one that it is told of."""

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
    had: str = ""
    tools: str = ""
    alike: bool = False
    begun: Message | None = None
    own: bool = False

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
    def tells_tools(self) -> bool:
        """Whether it is told of tools that it knows nothing of."""
        return self.tools != self.had

    @property
    def apart(self) -> bool:
        """Whether it is told of them by a turn of its own: nobody new is the user."""
        return self.tells_tools and all(said.role != "user" for said in self.new)

    @property
    def untold(self) -> bool:
        """Whether there is nothing new to tell with, but what was said last: of tools behind
        whatever that was, of all else with what the user said."""
        said = self.conversation.said
        told = self.tells_tools or bool(self.tell and said and said[-1].role == "user")
        return told and bool(said) and not self.new

    def going_on(self, begun: Message) -> "Plan":
        """This one, of a conversation that ends with the answer `begun`: that is gone on with, and
        nothing is told in the middle of it."""
        own, reuse = not self.new, self.reuse
        if reuse.how == "again":
            reuse = replace(reuse, how="forked")
        if len(self.new) == 1:
            # The beginning of what is known there is nothing else.
            reuse = replace(reuse, miss="")
        plan = replace(
            self,
            keep=self.keep - own,
            matched=self.matched - own,
            conversation=self.conversation.before_last,
            reuse=reuse,
            begun=begun,
            own=own,
        )
        if any(message.role == "user" for message in plan.new):
            return plan
        return replace(plan, tell="", notes=plan.begins, tools=plan.had)
