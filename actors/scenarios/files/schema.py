"""The words of a scenario file, as pydantic models; `json_schema` is what is published of them.

A word that is not here is refused: nothing in a file is ignored. Any thread.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from kvactors.actors.scenarios.files.scalars import HOLDS

__all__ = [
    "AgentWords",
    "ChannelWords",
    "EngineWords",
    "PhaseWords",
    "ProbeWords",
    "SamplingWords",
    "ScenarioWords",
    "StepWords",
    "StopWords",
    "json_schema",
]

MOST_ROUNDS = 1_000_000
MOST_SEEDS = 10_000
MOST_CHOICES = 256  # of Sampling

Whole = Annotated[int, Field(ge=-HOLDS, lt=HOLDS)]
Scalar = bool | int | float | str | None
# What ids of agents, folders and expressions can hold without a quote.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=64)]
Text = Annotated[str, StringConstraints(min_length=1)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_LISTED = BeforeValidator(_listed, json_schema_input_type=str | tuple[Text, ...])
Names = Annotated[tuple[Text, ...], _LISTED]
# Where nobody would speak or hear, and nothing would say so.
Some = Annotated[tuple[Text, ...], Field(min_length=1), _LISTED]


def _seeds(value: Any) -> Any:
    """`3`, `[1, 2]` or `1..20`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if isinstance(value, str):
        first, dots, last = value.partition("..")
        if dots and first.strip().isdecimal() and last.strip().isdecimal():
            seeds = range(int(first), int(last) + 1)
            if len(seeds[: MOST_SEEDS + 1]) > MOST_SEEDS:
                raise ValueError(f"more than {MOST_SEEDS:,} seeds")
            return list(seeds)
        raise ValueError("seeds are a whole number, a list of them, or such as 1..20")
    return value


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("its values must be different: the same seed gives the same run")
    return seeds


Seeds = Annotated[
    tuple[Whole, ...],
    BeforeValidator(_seeds, json_schema_input_type=int | str | tuple[int, ...]),
    Field(min_length=1, max_length=MOST_SEEDS),
    AfterValidator(_different),
]


class Words(BaseModel):
    """A part of the file: no other words than these."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class SamplingWords(Words):
    """How answers are drawn; what is left out is as in `Sampling`. The seed is the run's."""

    max_tokens: Whole = Field(default=256, ge=1)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, ge=0, le=1)
    top_k: Whole = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    stop: Names = ()


class EngineWords(Words):
    """Parameters of AgentSystem that a scenario may set; all others are as that has them, and null
    is its None: keys and values in float, the model's own context."""

    context: Whole | None = Field(default=None, ge=1)
    kv_bits: Literal[4, 8] | None = 4
    float_tokens: Whole = Field(default=0, ge=0)
    max_batch: Whole = Field(default=16, ge=1)
    memory_budget: str | Whole | None = None
    speculation: Literal["auto", "off"] = "auto"
    deterministic: bool = False
    reproducible: bool = False


class AgentWords(Words):
    """One agent, or with `count` or a `table` a group of them, named NAME-1, NAME-2, …"""

    count: int | None = Field(default=None, ge=1, le=100_000)
    table: Text | None = None  # a CSV file, a row for each agent; a column `name` names them
    persona: Text | None = None  # a template: the system prompt
    # Begins with the memory that another agent has when the phase `joins` begins.
    from_: Name | None = Field(default=None, alias="from")
    joins: Name | None = None
    sampling: SamplingWords = SamplingWords()
    # module:Class of an AgentBehaviour, which says what the agent says, and whom it may ask.
    behaviour: Text | None = None
    asks: Names = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.asks and self.behaviour is None:
            raise ValueError("`asks` is whom a `behaviour` asks: there is none")
        if (self.from_ is None) != (self.joins is None):
            raise ValueError("`from` and `joins` go together: whose memory, and at which phase")
        if self.from_ and (self.persona or self.table or self.count):
            raise ValueError(
                "an agent `from` another has that one's persona, and is one: leave out persona, "
                "count and table"
            )
        return self


class ChannelWords(Words):
    """Who hears what is said in it, and in which form. `listeners` is an expression that names
    them for each `speaker`; else all `members` hear, but for whoever speaks."""

    members: Some = ("all",)
    listeners: Text | None = None
    form: Text = "{{ speaker.name }}: {{ text }}"


class StepWords(Words):
    """What each speaker of a phase does: one of tell, say, ask, choose."""

    tell: Text | None = None
    say: Text | None = None
    ask: Text | None = None
    choose: Names | None = None
    prompt: Text | None = None  # of choose
    as_: Variable | None = Field(default=None, alias="as")
    to: Names = ()
    when: Text | None = None
    sampling: SamplingWords = SamplingWords()

    @model_validator(mode="after")
    def _check(self) -> Self:
        verbs = [v for v in ("tell", "say", "ask", "choose") if getattr(self, v) is not None]
        if len(verbs) != 1:
            raise ValueError(f"a step is one of tell, say, ask, choose, not {verbs or 'none'}")
        if (self.choose is None) != (self.prompt is None):
            raise ValueError("`choose` has a `prompt`, and no other step has one")
        if self.tell is not None and "sampling" in self.model_fields_set:
            raise ValueError("nothing is answered to `tell`: it has no `sampling`")
        if self.choose is not None and len(set(self.choose)) < max(2, len(self.choose)):
            raise ValueError("`choose` is between two or more different texts")
        if len(self.choose or ()) > MOST_CHOICES:
            raise ValueError(f"`choose` is between {MOST_CHOICES} texts at most")
        return self

    @property
    def verb(self) -> str:
        """Which of the four it is."""
        return next(v for v in ("tell", "say", "ask", "choose") if getattr(self, v) is not None)

    @property
    def template(self) -> str:
        """What is said to the speaker."""
        text = self.prompt if self.verb == "choose" else getattr(self, self.verb)
        assert text is not None
        return str(text)

    @property
    def name(self) -> str:
        """What results call it."""
        return self.as_ or self.verb


class PhaseWords(Words):
    """Speakers do steps, in rounds. `restart`, `swap_model` and `fork` happen before it."""

    name: Name
    who: Some = ("all",)
    order: Literal["round_robin", "random", "together", "rule", "free"] = "round_robin"
    rule: Text | None = None  # an expression: the names of a round's speakers
    starts: Names = ()  # of order free
    rounds: int = Field(default=1, ge=1, le=MOST_ROUNDS)
    when: Text | None = None
    until: Text | None = None
    channel: Name | None = None  # where `say` is heard
    steps: tuple[StepWords, ...] = ()
    restart: bool = False
    swap_model: Text | None = None
    fork: dict[Name, dict[Variable, Scalar]] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.order == "rule") != (self.rule is not None):
            raise ValueError("`order: rule` has a `rule`, and no other order has one")
        if self.starts and self.order != "free":
            raise ValueError("`starts` is of `order: free`: who speaks without having heard")
        if self.until and self.rounds == 1:
            raise ValueError(
                "`until` needs `rounds`, the most there may be: a scenario must be able to end"
            )
        if len(self.fork) == 1:
            raise ValueError("`fork` has two or more branches")
        return self


class ProbeWords(Words):
    """A question outside of the story, which leaves no trace."""

    name: Name
    ask: Text
    who: Some = ("all",)
    after: Some = ("all",)  # phases at whose end it is asked
    each: Text | None = None  # an expression: one question for each `item` of this list
    about: Name | None = None  # the phase in which it was told, for working memory
    choices: Names = ()
    expect: Text | None = None
    match: Literal["exact", "contains"] | None = None  # see `as_expected`
    never_told: bool = False  # what is expected is that the agent does not know
    when: Text | None = None
    sampling: SamplingWords = SamplingWords()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.never_told and self.expect is None:
            raise ValueError("`never_told` needs `expect`: how an agent says that it does not know")
        if self.about and self.never_told:
            raise ValueError("what was `never_told` is `about` no phase")
        if self.choices and len(set(self.choices)) < max(2, len(self.choices)):
            raise ValueError("`choices` are two or more different texts")
        if len(self.choices) > MOST_CHOICES:
            raise ValueError(f"`choices` are {MOST_CHOICES} texts at most")
        return self


class StopWords(Words):
    """Ends the run as soon as something is so, at the end of a round, in whichever branch."""

    when: Text
    reason: Text = "a stop rule"


class ScenarioWords(Words):
    """All of a file."""

    name: Name
    about: str = ""
    model: Text = "default"
    engine: EngineWords = EngineWords()
    sampling: SamplingWords = SamplingWords()
    seeds: Seeds = (0,)
    parameters: dict[Variable, Scalar | tuple[Scalar, ...]] = {}
    agents: dict[Name, AgentWords] = Field(min_length=1)
    channels: dict[Name, ChannelWords] = {}
    phases: tuple[PhaseWords, ...] = Field(min_length=1)
    probes: tuple[ProbeWords, ...] = ()
    metrics: Names = ()  # module:function of a Run, beside those that every run has
    stop: tuple[StopWords, ...] = ()
    on_failure: Literal["go_on", "stop"] = "go_on"


def json_schema() -> dict[str, Any]:
    """The JSON schema of scenario files, for editors; `inherits` is of files alone."""
    schema = ScenarioWords.model_json_schema(by_alias=True)
    schema["properties"]["inherits"] = {
        "type": "string",
        "description": "another file, whose words hold where this one has none",
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
