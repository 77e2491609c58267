"""What `/agents` is asked and answers, as `/docs` shows it."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvactors.actors.frontends.server.wire.reading import Seed, Stops
from kvactors.actors.system.roster import AgentState
from kvactors.actors.turns.reply import Reply
from kvactors.core.conversation.context_policy import ContextPolicy, DropOldest, Summarize
from kvactors.core.conversation.prefix_match import THRESHOLD
from kvactors.core.conversation.turn import Turn
from kvactors.core.schedule.sampling import Sampling

__all__ = [
    "AgentDetail",
    "AgentList",
    "AgentView",
    "Entry",
    "ForkBody",
    "ObserveBody",
    "Remembered",
    "RewindBody",
    "SpawnBody",
    "TranscriptAnswer",
    "TurnAnswer",
    "TurnBody",
    "entries",
    "listed",
]

Tier = Literal["active", "hot", "warm", "cold"]
AgentId = Annotated[str, Field(min_length=1, max_length=200)]


class Asked(BaseModel):
    """A request's body: a field that it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid")


class DropOldestPolicy(Asked):
    """Leave out the oldest turns at the end of the context."""

    kind: Literal["drop_oldest"]
    keep_head: int = 2
    fill: float = 0.5

    def policy(self) -> ContextPolicy:
        """For `AgentSystem.spawn`. Raises InvalidConfig."""
        return DropOldest(self.keep_head, self.fill)


class SummarizePolicy(Asked):
    """Put the model's own summary in the place of the oldest turns."""

    kind: Literal["summarize"]
    keep_head: int = 2
    fill: float = 0.5
    max_tokens: int = 256

    def policy(self) -> ContextPolicy:
        """For `AgentSystem.spawn`. Raises InvalidConfig."""
        return Summarize(self.keep_head, self.fill, self.max_tokens)


class SpawnBody(Asked):
    """A new agent. It is stored from its first turn on."""

    id: AgentId | None = Field(None, description="A name; without one it gets one.")
    system_prompt: str | None = None
    from_: AgentId | None = Field(
        None, alias="from", description="The agent whose memory it begins with."
    )
    at: int | None = Field(None, ge=0, description="Turns of that memory that it keeps.")
    context_policy: Literal["refuse"] | DropOldestPolicy | SummarizePolicy = Field(
        "refuse", description="What happens at the end of the context, until the server restarts."
    )

    def policy(self) -> ContextPolicy:
        """For `AgentSystem.spawn`. Raises InvalidConfig."""
        given = self.context_policy
        return given if isinstance(given, str) else given.policy()


class ForkBody(Asked):
    """A new agent with an agent's memory, or the first turns of it."""

    id: AgentId | None = Field(None, description="A name; without one it gets one.")
    at: int | None = Field(None, ge=0, description="Turns that it keeps: all, if not given.")


class TurnBody(Asked):
    """A turn, with the options of `Agent.ask` and most fields of `Sampling`."""

    prompt: str | list[int] | None = Field(None, description="Text, or token ids as they are.")
    messages: list[dict[str, Any]] | None = Field(
        None, description="The whole conversation instead: only what is new is computed."
    )
    match: bool = Field(False, description="`prompt` is the whole conversation.")
    threshold: float = THRESHOLD
    continue_final_message: bool = Field(
        False, description="Go on with the last of `messages`, or with the agent's last answer."
    )
    timeout: float | None = Field(None, description="Seconds, queue included.")
    priority: int = 0
    request_id: str | None = Field(
        None, description="Of a turn that is taken once: asked again, its answer is given again."
    )
    stream: bool = Field(False, description="Answer with server-sent events.")
    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: Seed = 0
    stop: Stops = []
    choices: list[str] = []
    template_kwargs: dict[str, Any] | None = Field(
        None, description="What the chat template is told for this turn."
    )

    def sampling(self) -> Sampling:
        """How it is decoded. Raises InvalidSampling."""
        return Sampling(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            stop=tuple(self.stop),
            choices=tuple(self.choices),
        )


class ObserveBody(Asked):
    """Something to remember without an answer."""

    text: str
    role: str = "user"


class RewindBody(Asked):
    """How much is forgotten: one of the three."""

    keep: int | None = Field(None, ge=0, description="Turns of the transcript that stay.")
    exchanges: int | None = Field(
        None, ge=1, description="Prompts with their answers that go, from the end."
    )
    to_token: int | None = Field(None, ge=0, description="Tokens that stay.")


class AgentView(BaseModel):
    """An agent and where its memory is."""

    id: str
    tier: Tier
    turns: int = Field(description="Entries of its transcript.")
    tokens: int
    memory_tokens: int = Field(description="Of these, how many have KV in memory.")
    memory_bytes: int
    disk_tokens: int = Field(description="And how many on disk.")
    disk_bytes: int
    last_used: float | None = Field(description="Seconds since 1970, None before it is stored.")
    problem: str | None = Field(None, description="Why its ledger cannot be read.")

    @classmethod
    def of(cls, agent_id: str, state: AgentState) -> "AgentView":
        """A `state` under the id by which its client knows the agent."""
        names = (name for name in cls.model_fields if name != "id")
        return cls(id=agent_id, **{name: getattr(state, name) for name in names})


class AgentDetail(BaseModel):
    """An agent, and what it begins with."""

    agent: AgentView
    system_prompt: str | None
    context: int = Field(description="Tokens that it may remember.")


class AgentList(BaseModel):
    """Agents, the last used first."""

    agents: list[AgentView]
    total: int = Field(description="How many there are, listed or not.")
    tiers: dict[Tier, int] = Field(description="How many of all are in each tier.")


def listed(
    states: Sequence[AgentState], shown: Callable[[str], str], q: str, limit: int
) -> AgentList:
    """The first of `states`, `limit` at most, whose ids have `q` in them as they are `shown`."""
    named = ((shown(state.agent_id), state) for state in states)
    found = ((name, state) for name, state in named if q.lower() in name.lower())
    views = [AgentView.of(name, state) for name, state in islice(found, limit)]
    return AgentList(agents=views, total=len(states), tiers=Counter(state.tier for state in states))


class Entry(BaseModel):
    """One turn of a transcript, and where its KV is."""

    role: str
    text: str
    tokens: int
    end: int = Field(description="Tokens of the transcript up to its end.")
    tier: Literal["hot", "warm", "cold"]
    finish: str | None = Field(description="How an answer ended; None for what was said to it.")
    stands_for: int = Field(description="Earlier turns of which it is a summary.")


class TranscriptAnswer(BaseModel):
    """What an agent remembers: finished turns."""

    id: str
    system_prompt: str | None
    turns: list[Entry]


class TurnAnswer(BaseModel):
    """The end of a turn, as `Reply`; timing in seconds."""

    agent: str
    text: str
    answer: str = Field(description="Of the text what is no thought and no header.")
    finish_reason: Literal["stop", "length", "cancelled"]
    cache: Literal["hot", "warm", "cold"]
    match: str | None
    usage: dict[str, int]
    timing: dict[str, float]
    scores: dict[str, float] | None

    @classmethod
    def of(cls, agent_id: str, reply: Reply) -> "TurnAnswer":
        """A `reply` of an agent, under the id by which its client knows it."""
        return cls.model_validate({"agent": agent_id, **_fields(reply)})


class Remembered(BaseModel):
    """What is left after a rewind, or there after something was observed."""

    turns: int
    tokens: int


def entries(turns: tuple[Turn, ...], state: AgentState) -> list[Entry]:
    """The `turns` of a transcript whose agent is in this `state`. The last token of an answer has
    no KV before the next turn, which does not count."""
    found, end = [], 0
    for turn in turns:
        end += len(turn.token_ids)
        tier: Literal["hot", "warm", "cold"] = (
            "hot"
            if state.memory_tokens >= end - 1
            else "warm"
            if state.disk_tokens >= end - 1
            else "cold"
        )
        found.append(
            Entry(
                role=turn.role,
                text=turn.text,
                tokens=len(turn.token_ids),
                end=end,
                tier=tier,
                finish=turn.finish,
                stands_for=turn.stands_for,
            )
        )
    return found


def _fields(reply: Reply) -> dict[str, Any]:
    usage = {name: getattr(reply.usage, name) for name in type(reply.usage).__slots__}
    timing = {name: getattr(reply.timing, name) for name in type(reply.timing).__slots__}
    names = ("text", "answer", "finish_reason", "cache", "match")
    kept = {name: getattr(reply, name) for name in names}
    scores = None if reply.scores is None else dict(reply.scores)
    return {**kept, "usage": usage, "timing": timing, "scores": scores}
