"""Inquiry: what a client asks, whichever of the interfaces it speaks.

A module of `wire` makes one of a request's body; `answering` takes it as a turn of an agent. System
prompts are the messages with the role "system" at the beginning, or the first of them alone; later
ones stand where they were said. Pure: any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvactors.core.schedule.grammar import Grammar
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Call", "Client", "Form", "Inquiry", "Manner", "Message", "Role", "Tool", "ToolChoice"]

# Lower by so much that as many admissions and chunks of other sub-agents as some dozen of them take
# do not raise one to a main agent's priority.
SUB_AGENT = -8

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: `arguments` is the text of a JSON object."""

    call_id: str
    name: str
    arguments: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `calls` are the assistant's; `call_id` says which of them a
    "tool" message answers, `name` which tool. `thinking` is what the assistant thought; it is
    never compared."""

    role: Role
    text: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is a JSON schema. A `strict` one is only
    ever called with arguments that the schema allows."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools are to be called; "required" with a `name` is that one."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """What the answer's text must be: any JSON object, JSON of a `schema`, or of a `given` grammar.
    A `strict` one is refused where it cannot be held to; of another one that is left out."""

    schema: Mapping[str, Any] | None = None
    strict: bool = True
    given: Grammar | None = None

    @property
    def grammar(self) -> Grammar:
        """What the text must be. Raises InvalidGrammar for a schema that cannot be held to."""
        if self.given is not None:
            return self.given
        if self.schema is None:
            return Grammar.json_object()
        return Grammar.json_schema(self.schema, lenient=not self.strict)


@dataclass(frozen=True, slots=True)
class Manner:
    """How the model is to answer: whether it `thinks` first (None: as its template has it), with
    how much `effort` ("" for any), and what else the chat template is `told`, by name."""

    thinks: bool | None = None
    effort: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks, as far as the request says. `tenant` names the API key, "" without keys: no tenant
    learns of another. `agent` is the agent that it names itself, `thread` the conversation by the
    client's own header, `parent` the one that it came from, `cache_key` the body's
    `prompt_cache_key`. `helps`: it is a sub-agent."""

    tenant: str = ""
    agent: str = ""
    thread: str = ""
    parent: str = ""
    cache_key: str = ""
    helps: bool = False

    @property
    def priority(self) -> int:
        """Of its turns: somebody waits for a main agent, and sub-agents give way, however long
        the others of them make one wait."""
        return SUB_AGENT if self.helps else 0


@dataclass(frozen=True, slots=True)
class Inquiry:
    """All that a turn is asked with.

    `top_logprobs`: how many alternatives the client wants to see for each token, None for no
    log-probabilities. `open_end`: the client set no limit, so that an answer may have as many
    tokens as the context leaves, up to those of `sampling`. `goes_on` names an answer given before,
    by the id that `Opened.answer_id` had: `messages` are then only what follows it. `remembered`
    False leaves no agent behind. `head`: what of its `manner` changes what the chat template writes
    before a first question, or "". `one_prompt`: its client moves all but the first of the system
    messages that it begins with.
    """

    messages: tuple[Message, ...]
    client: Client = Client()
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()
    parallel: bool = True
    sampling: Sampling = field(default_factory=Sampling)
    form: Form | None = None
    top_logprobs: int | None = None
    open_end: bool = False
    goes_on: str = ""
    remembered: bool = True
    manner: Manner = Manner()
    head: str = ""
    one_prompt: bool = False

    @property
    def begun(self) -> Message | None:
        """The answer that the conversation ends with, and that is gone on with; none that calls."""
        last = self.messages[-1] if self.messages else None
        return last if last and last.role == "assistant" and not last.calls else None

    @property
    def formed(self) -> bool:
        """Whether its answer has a form, and so no thoughts."""
        return self.form is not None or self.choice.mode == "required"
