"""TokenLogprob: how likely a token was at its place, by the model's own logits, before any filter,
penalty or temperature. Pure: any thread."""

from dataclasses import dataclass

__all__ = ["MOST_LIKELIEST", "TokenLogprob"]

# Of the likeliest tokens at a place, as many as the clients' interfaces know.
MOST_LIKELIEST = 20


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a `token` was at its place. `logprob` is None where nothing came before it; `top`
    are the likeliest tokens there and their log-probabilities, the likeliest first."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
