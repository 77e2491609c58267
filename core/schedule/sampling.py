"""Sampling: parameters, and the draw of one row (filters as in mlx-lm, our own random keys)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from kvactors.core.errors import InvalidSampling
from kvactors.core.numbers import number, whole
from kvactors.core.schedule.grammar import Grammar
from kvactors.core.schedule.logprobs import MOST_LIKELIEST

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = [
    "LEAST_SEED",
    "MOST_SEED",
    "MOST_WHOLE",
    "Filters",
    "Sampling",
    "draw",
    "draw_choice",
    "draw_key",
    "filtered",
]


# Each costs one forward of its own tokens.
MOST_CHOICES = 256
# Each is looked for in as many of the last tokens, token by token.
LONGEST_STOP = 1000
# Below, floats of 32 bits have no room for what is divided by it.
LEAST_TEMPERATURE = 1e-6
# Below, it is 0 as a float of 32 bits, and no token would be left.
LEAST_TOP_P = 1e-30
# Below and beyond, a float of 32 bits has no number for it, or none for what it makes of logits.
LEAST_PENALTY, MOST_PENALTY = 1e-30, 1e30
# Beyond it all tokens are alike, and a float32 has no number for much more.
MOST_TEMPERATURE = 1e6
# Bits of an int that an error has digit by digit.
LONGEST_SHOWN = 200
# What 64 bits hold, with a sign or without one.
LEAST_SEED, MOST_SEED = -(2**63), 2**64 - 1
# What crosses between machines.
MOST_WHOLE = 2**63 - 1
# Parameters from 0 to so much.
_NUMBERS = {
    "temperature": MOST_TEMPERATURE,
    "top_p": 1.0,
    "min_p": 1.0,
    "repetition_penalty": float("inf"),
}


class Filters(NamedTuple):
    """Those of the parameters of a Sampling that shape the draw of one token."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a turn is decoded. All defaults: greedy, at most 256 tokens.

    `temperature` 0 is greedy, and so is less than 1e-6; `top_p`, `top_k`, `min_p` filter as in
    mlx-lm (0 or 1.0: off); `repetition_penalty` 1.0 is off; `seed`, of 64 bits with a sign or
    without, makes with the agent, the turn and the position the random key, so that a draw does
    not depend on who shares the batch; with `seed_alone` the seed and the position make it, so
    that another agent draws the same. With `top_logprobs` the reply has each token's
    log-probability by the model's own logits, and so many of the likeliest at its place (0 to
    20); with `prompt_logprobs` too, of all that came before the answer as well, which is computed
    from its beginning for that. `stop` strings, of 1,000 characters at most, end the turn and are
    cut from the reply's text. With `choices` the
    answer is one of these texts, drawn by what the model gives each as a whole, its end of turn
    included (they have an order, and no two may have the same tokens); then of all that shapes the
    answer only `temperature`, `seed` and `seed_alone` apply. With a `grammar` the answer has its
    form, whole within `max_tokens`. Any other answer is not ended by the model before `min_tokens`
    tokens: as many as `max_tokens`, or more, measure it. Raises InvalidSampling.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    stop: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    grammar: Grammar | None = None
    seed_alone: bool = False
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.choices, set | frozenset):
            raise InvalidSampling(f"choices need an order, which no set has: {self.choices!r:.80}")
        object.__setattr__(self, "stop", _texts("stop", self.stop))
        object.__setattr__(self, "choices", _texts("choices", self.choices))
        for name, least in (("max_tokens", 1), ("top_k", 0), ("min_tokens", 0)):
            object.__setattr__(self, name, _whole(name, getattr(self, name), least, MOST_WHOLE))
        object.__setattr__(self, "seed", _whole("seed", self.seed, LEAST_SEED, MOST_SEED))
        for name, most in _NUMBERS.items():
            object.__setattr__(self, name, _within(name, getattr(self, name), most))
        if self.temperature < LEAST_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        if self.top_p > 0:
            object.__setattr__(self, "top_p", max(self.top_p, LEAST_TOP_P))
        if any(len(text) > LONGEST_STOP for text in self.stop):
            raise InvalidSampling(f"a stop string has {LONGEST_STOP} characters at most")
        for name in ("prompt_logprobs", "seed_alone"):
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidSampling(f"{name} must be True or False, not {value!r:.80}")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidSampling(f"grammar must be a Grammar, not {self.grammar!r:.80}")
        if self.grammar is not None and self.choices:
            raise InvalidSampling("an answer has a grammar or choices, not both")
        if self.repetition_penalty == 0:
            raise InvalidSampling("repetition_penalty must be above 0; 1.0 turns it off")
        penalty = min(max(self.repetition_penalty, LEAST_PENALTY), MOST_PENALTY)
        object.__setattr__(self, "repetition_penalty", penalty)
        if self.top_logprobs is not None:
            most = _whole("top_logprobs", self.top_logprobs, 0, MOST_LIKELIEST)
            object.__setattr__(self, "top_logprobs", most)
        elif self.prompt_logprobs:
            raise InvalidSampling("prompt_logprobs needs top_logprobs: 0 for the tokens' own")
        if len(set(self.choices)) < len(self.choices) or len(self.choices) > MOST_CHOICES:
            raise InvalidSampling(
                f"choices must be different, {MOST_CHOICES} at most, not {self.choices!r}"
            )

    @property
    def greedy(self) -> bool:
        """Whether the next token is the plain argmax of the logits."""
        return self.temperature == 0 and self.repetition_penalty == 1.0

    @property
    def filters(self) -> "Filters":
        """What shapes the draw of one token."""
        return Filters(
            self.temperature, self.top_p, self.top_k, self.min_p, self.repetition_penalty
        )


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise InvalidSampling(f"{name} must be strings, not {value!r}")
    texts = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidSampling(f"{name} must be non-empty strings, not {value!r}")
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise InvalidSampling(f"{name} must be valid unicode, not {value!r}")
    return texts


def _whole(name: str, value: object, least: int, most: int) -> int:
    found = whole(value)
    if found is None:
        raise InvalidSampling(f"{name} must be an int, not {value!r}")
    if found < least:
        raise InvalidSampling(f"{name} must be at least {least}, not {_shown(found)}")
    if found > most:
        raise InvalidSampling(f"{name} must be at most {most}, not {_shown(found)}")
    return found


def _shown(found: int) -> str:
    """Python writes no int of thousands of digits."""
    bits = found.bit_length()
    return str(found) if bits <= LONGEST_SHOWN else f"an int of {bits} bits"


def _within(name: str, value: object, most: float) -> float:
    found = number(value)
    if found is None or not 0 <= found <= most:
        shown = _shown(value) if isinstance(value, int) else repr(value)
        raise InvalidSampling(f"{name} must be a number in [0, {most:g}], not {shown}")
    if found == float("inf"):
        raise InvalidSampling(f"{name} must be finite")
    return found


def draw_key(sampling: Sampling, agent_id: str, turn: int, position: int) -> int:
    """The 64-bit random key of one token: (seed of `sampling`, `agent_id`, `turn`, `position`), or
    of seed and position alone if `sampling` says so."""
    if sampling.seed_alone:
        return xxhash.xxh3_64_intdigest(b"%d|%d" % (sampling.seed, position))
    name = agent_id.encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(b"%d|%d|%d|" % (sampling.seed, turn, position) + name)


def draw(
    logits: "mx.array", filters: Filters, key: "mx.array", context: "mx.array | None"
) -> "mx.array":
    """The next token of one row, lazily: logits [vocab] -> token id, scalar uint32.

    `filters` say how, `key` [2] is its random number, as MLX has it. `context` holds the latest
    token ids of the row for the repetition penalty. GPU thread.
    """
    import mlx.core as mx
    from mlx_lm import sample_utils

    row = logits[None].astype(mx.float32)
    if filters.repetition_penalty != 1.0 and context is not None:
        penalize = sample_utils.make_repetition_penalty(
            filters.repetition_penalty, context_size=context.size
        )
        row = penalize(context, row)
    if filters.temperature == 0:
        return mx.argmax(row[0, ...], axis=-1)
    row = filtered(row - mx.logsumexp(row, axis=-1, keepdims=True), filters)
    return mx.random.categorical(row[0, ...] / filters.temperature, key=key)


def filtered(row: "mx.array", filters: Filters) -> "mx.array":
    """Log-probabilities [1, vocab], -inf where a token is left out: as mlx-lm's filters, which are
    compiled anew for each value that they have not seen."""
    import mlx.core as mx

    if 0 < filters.top_p < 1:
        rising = mx.sort(row, axis=-1)
        likely = mx.exp(rising)
        above = mx.cumsum(likely, axis=-1, reverse=True, inclusive=False)
        most = filters.top_p * (above[:, :1] + likely[:, :1])
        dropped = (above >= most).sum(axis=-1, keepdims=True)
        row = mx.where(row < mx.take_along_axis(rising, dropped, axis=-1), -mx.inf, row)
    if filters.min_p > 0:
        least = mx.max(row, axis=-1, keepdims=True) + math.log(filters.min_p)
        row = mx.where(row < least, -mx.inf, row)
    if 0 < filters.top_k < row.shape[-1]:
        others = mx.argpartition(-row, kth=filters.top_k - 1, axis=-1)[:, filters.top_k :]
        row = mx.put_along_axis(row, others, mx.array(-mx.inf), axis=-1)
    return row


def draw_choice(scores: Sequence[float], sampling: Sampling, key: int) -> int:
    """The index of one of the choices, given their total log-probabilities, `scores` [choices];
    `sampling` says how, `key` is the random number. GPU thread."""
    import mlx.core as mx

    if sampling.temperature == 0:
        return max(range(len(scores)), key=scores.__getitem__)
    weights = mx.array(list(scores)) / sampling.temperature
    return int(mx.random.categorical(weights, key=mx.random.key(key)).item())  # type: ignore[arg-type]
