"""Request: one record per running sequence, from admission to its last token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvactors.core.cache.spec import NO_FORM, KVForm
from kvactors.core.schedule.guide import Guide
from kvactors.core.schedule.logprobs import TokenLogprob
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Request", "StopMatcher"]


class StopMatcher:
    """Finds stop strings in text as it is decoded by `decode`, across the borders of tokens,
    `behind` some: a decoder may strip a space at the beginning of what it is given."""

    def __init__(
        self,
        stop: tuple[str, ...],
        decode: Callable[[list[int]], str],
        behind: Sequence[int] = (),
    ) -> None:
        self._stop = stop
        self._reach = max((len(text.encode()) for text in stop), default=0) + 8
        self._decode = decode
        self._behind = list(behind[-self._reach :]) if stop else []
        self._known = len(decode(self._behind).rstrip("\ufffd")) if self._behind else 0

    def matches(self, tokens: list[int], begin: int = 0) -> bool:
        """Whether the text of the tokens generated so far, those from `begin` on, contains a stop
        string.

        Called after every token: only the tail that the newest tokens can have touched
        is copied and decoded, one token per character of the longest stop string and some more.
        """
        if not self._stop:
            return False
        if len(tokens) - self._reach > begin:
            text = self._decode(tokens[-self._reach :])
        else:
            text = self._decode([*self._behind, *tokens[begin:]])[self._known :]
        return any(stop in text for stop in self._stop)


@dataclass(slots=True, eq=False)
class Request:
    """One turn of one agent inside the engine. `kept <= cached <= len(tokens)` always.

    `tokens` is the agent's whole transcript plus what was generated so far; `kept` of them
    were in the agent's cache when the turn began, `cached` have KV in this request's row;
    the first `prompt` are the transcript with the new turn, which added the last `fresh` of
    those. Times are in seconds of the engine's clock; `restore_seconds` is a duration.
    `stream` asks for each token as it is decoded.
    `turn` counts the agent's turns and goes into random keys, `serial` names this attempt.
    `suspect` marks a suspect of a failed step, which runs alone for `probation` steps. One
    that is `passing` leaves no KV behind; of one that `lends`, whose agent is forgotten, it stays
    in memory alone, for others that begin alike.
    The first `shared` tokens are a system prompt that other agents may have too, of which
    `prompt_hash` is the hash; `awaited` are as many as others wait for, and `blocks` hashes of
    its whole blocks, where somebody asked for them. It shares with those of its `tenant`, with
    nobody if that is None. `preempted` counts how often the turn had to give its row up,
    the last time after `gave_way_after` turns of the engine had ended. With `choices` (the token
    ids of each,
    its end of turn included) nothing is decoded: they are scored one after the other, and one
    of them is the answer. With a `guide` what is decoded keeps to a grammar. `told` are the tokens
    that it draws first, whatever the model makes of them: what a puppet says. `form` is how its KV
    is kept, set by the engine.
    `passed_over` counts admissions, then plans, that went by; `entered` is the admission after
    which it began to wait (WaitingTurns).
    `logprobs` are those of `generated`, `prompt_logprobs` those of the prompt but for its first
    token, where `sampling` asks for them.
    """

    agent_id: str
    turn: int
    tokens: list[int]
    prompt: int
    sampling: Sampling
    generate: bool
    stop_tokens: frozenset[int]
    matcher: StopMatcher
    fresh: int
    serial: int = 0
    stream: bool = False
    submitted_at: float = 0.0
    priority: int = 0
    passing: bool = False
    lends: bool = False
    form: KVForm = NO_FORM
    shared: int = 0
    prompt_hash: str = ""
    tenant: str | None = None
    blocks: list[str] = field(default_factory=list)
    awaited: int = 0
    preempted: int = 0
    gave_way_after: int = 0
    kept: int = 0
    cached: int = 0
    cache_state: str = "cold"
    cancelled: bool = False
    choices: tuple[tuple[int, ...], ...] = ()
    scores: tuple[float, ...] = ()
    guide: Guide | None = None
    told: tuple[int, ...] = ()
    arrival: int = 0
    passed_over: int = 0
    entered: int = 0
    suspect: bool = False
    probation: int = 0
    admitted_at: float = 0.0
    restore_seconds: float = 0.0
    prefilled_at: float = 0.0
    first_token_at: float = 0.0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def forgotten(self) -> bool:
        """Whether its agent will have no KV of it: none is written, nor does anybody leave memory
        for what may stay."""
        return self.passing or self.lends

    @property
    def past(self) -> int:
        """Tokens of the prompt that its agent had before: the store may have their KV."""
        return self.prompt - self.fresh

    @property
    def generated(self) -> list[int]:
        """Token ids decoded in this turn."""
        return self.tokens[self.prompt :]

    @property
    def decoded(self) -> int:
        """How many tokens were decoded in this turn."""
        return len(self.tokens) - self.prompt

    def told_at(self, place: int) -> int | None:
        """The token that this turn is told to draw behind `place` others; None: what it likes."""
        return self.told[place] if place < len(self.told) else None

    @property
    def says_stop(self) -> bool:
        """Whether the token that was decoded last ends the turn, whatever it may still have."""
        if self.tokens[-1] in self.stop_tokens or self.matcher.matches(self.tokens, self.prompt):
            return True
        return self.guide is not None and self.guide.completed_by(self.decoded)

    @property
    def target(self) -> int:
        """Tokens that must be cached before decoding can start.

        The last one is fed by the first decode step, or together with a short rest of the prompt;
        a turn without an answer is prefilled whole.
        """
        return len(self.tokens) - 1 if self.generate else len(self.tokens)

    @property
    def most_tokens(self) -> int:
        """Tokens that it has at most when it ends."""
        return self.prompt + (self.sampling.max_tokens if self.generate else 0)

    @property
    def longest_choice(self) -> int:
        """Tokens of the longest of its choices; its row has room for them behind its prompt."""
        return max(map(len, self.choices), default=0)

    @property
    def offered(self) -> int:
        """Tokens at its beginning that others may begin with as soon as they are cached."""
        return max(self.shared, self.awaited)

    @property
    def remaining(self) -> int:
        """Tokens still to prefill."""
        return max(0, self.target - self.cached)

    @property
    def scoring(self) -> bool:
        """Whether log-probabilities of its prompt are still wanted: it begins with no KV then."""
        return self.sampling.prompt_logprobs and len(self.prompt_logprobs) < self.prompt - 1

    def check(self) -> None:
        """Prove `kept <= cached <= submitted`."""
        assert 0 <= self.kept <= self.cached <= len(self.tokens)
