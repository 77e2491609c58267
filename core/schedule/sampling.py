"""Sampling: parameters, and the draw of one row (mlx-lm's filters, our own random keys)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from kvactors.core.errors import InvalidSampling
from kvactors.core.schedule.logprobs import MOST_LIKELIEST

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = ["Sampling", "draw", "draw_choice", "draw_key"]


# Each costs one forward of its own tokens.
MOST_CHOICES = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a turn is decoded. All defaults: greedy, at most 256 tokens.

    `temperature` 0 is greedy; `top_p`, `top_k`, `min_p` filter as in mlx-lm (0 or 1.0: off);
    `repetition_penalty` 1.0 is off; `seed` with the agent, the turn and the position makes
    the random key, so that a draw does not depend on who shares the batch. With
    `top_logprobs` the reply has each token's log-probability by the model's own logits, and
    so many of the likeliest at its place (0 to 20); with `prompt_logprobs` too, of all that
    came before the answer as well, which is computed from its beginning for that. `stop` strings
    end the turn and are cut from the reply's text. With `choices` the answer is one of these
    texts, drawn by what the model gives each as a whole, its end of turn included; then only
    `temperature` and `seed` apply. Raises InvalidSampling.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _texts("stop", self.stop))
        object.__setattr__(self, "choices", _texts("choices", self.choices))
        _whole("max_tokens", self.max_tokens, 1)
        _whole("top_k", self.top_k, 0)
        _whole("seed", self.seed, None)
        _within("temperature", self.temperature, 0.0, float("inf"))
        _within("top_p", self.top_p, 0.0, 1.0)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 0.0, float("inf"))
        if self.repetition_penalty == 0:
            raise InvalidSampling("repetition_penalty must be above 0; 1.0 turns it off")
        if self.top_logprobs is not None:
            _whole("top_logprobs", self.top_logprobs, 0, MOST_LIKELIEST)
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


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise InvalidSampling(f"{name} must be strings, not {value!r}")
    texts = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidSampling(f"{name} must be non-empty strings, not {value!r}")
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise InvalidSampling(f"{name} must be valid unicode, not {value!r}")
    return texts


def _whole(name: str, value: object, least: int | None, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidSampling(f"{name} must be an int, not {value!r}")
    if least is not None and value < least:
        raise InvalidSampling(f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise InvalidSampling(f"{name} must be at most {most}, not {value}")


def _within(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidSampling(f"{name} must be a number in [{low:g}, {high:g}], not {value!r}")
    if value == float("inf"):
        raise InvalidSampling(f"{name} must be finite")


def draw_key(sampling: Sampling, agent_id: str, turn: int, position: int) -> int:
    """The 64-bit random key of one token: (seed of `sampling`, `agent_id`, `turn`, `position`)."""
    name = agent_id.encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(b"%d|%d|%d|" % (sampling.seed, turn, position) + name)


def draw(
    logits: "mx.array", sampling: Sampling, key: int, context: "mx.array | None"
) -> "mx.array":
    """The next token of one row, lazily: logits [vocab] -> token id, scalar uint32.

    `sampling` says how, `key` is its random number. `context` holds the latest token ids of the row
    for the repetition penalty. GPU thread.
    """
    import mlx.core as mx
    from mlx_lm import sample_utils

    row = logits[None].astype(mx.float32)
    if sampling.repetition_penalty != 1.0 and context is not None:
        penalize = sample_utils.make_repetition_penalty(
            sampling.repetition_penalty, context_size=context.size
        )
        row = penalize(context, row)
    if sampling.temperature == 0:
        return mx.argmax(row[0], axis=-1)
    row = row - mx.logsumexp(row, axis=-1, keepdims=True)
    if 0 < sampling.top_p < 1:
        row = sample_utils.apply_top_p(row, sampling.top_p)
    if sampling.min_p > 0:
        row = sample_utils.apply_min_p(row, sampling.min_p)
    if 0 < sampling.top_k < row.shape[-1]:
        row = sample_utils.apply_top_k(row, sampling.top_k)
    return mx.random.categorical(row[0] / sampling.temperature, key=mx.random.key(key))


def draw_choice(scores: Sequence[float], sampling: Sampling, key: int) -> int:
    """The index of one of the choices, given their total log-probabilities, `scores` [choices];
    `sampling` says how, `key` is the random number. GPU thread."""
    import mlx.core as mx

    if sampling.temperature == 0:
        return max(range(len(scores)), key=scores.__getitem__)
    weights = mx.array(list(scores)) / sampling.temperature
    return int(mx.random.categorical(weights, key=mx.random.key(key)).item())  # type: ignore[arg-type]
