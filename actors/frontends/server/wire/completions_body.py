"""What a text completion asks: its body, with as many texts to go on with as it has prompts.
Pure: any thread."""

import secrets
from dataclasses import replace
from typing import Any

from pydantic import Field

from kvactors.actors.frontends.server.exchange.completion import Completion
from kvactors.actors.frontends.server.exchange.inquiry import Client
from kvactors.actors.frontends.server.wire.errors import refused
from kvactors.actors.frontends.server.wire.guided import Guided
from kvactors.actors.frontends.server.wire.reading import Seed, Stops
from kvactors.core.schedule.logprobs import MOST_LIKELIEST
from kvactors.core.schedule.sampling import Sampling

__all__ = ["CompletionBody", "asked_of"]

# Texts that one request may ask for.
MOST_TEXTS = 1024
# What the interface itself takes where nothing is said.
USUAL_TOKENS = 16


class CompletionBody(Guided):
    """A text completion's body; what is not here is ignored."""

    prompt: Any
    model: str = ""
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MOST_LIKELIEST)
    max_tokens: int | None = Field(None, ge=0)
    n: int | None = Field(None, ge=1, le=MOST_TEXTS)
    stop: str | Stops | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


def asked_of(body: CompletionBody, client: Client) -> list[Completion]:
    """The completions that a `client` asks for with a `body`: `n` of each prompt, in order. Raises
    Failure."""
    if body.suffix:
        raise refused("suffix", "what follows a text cannot be given: only what comes before")
    prompts, count = _prompts(body.prompt), body.n or 1
    if len(prompts) * count > MOST_TEXTS:
        raise refused("prompt", f"{len(prompts)} prompts, {count} times: at most {MOST_TEXTS}")
    sampling = _sampling(body)
    return [
        Completion(
            prompt,
            replace(sampling, seed=sampling.seed + number),
            echo=bool(body.echo),
            answer=body.max_tokens != 0,
            client=client,
        )
        for prompt in prompts
        for number in range(count)
    ]


def _sampling(body: CompletionBody) -> Sampling:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    form = body.guided()
    return Sampling(
        # None at all is no answer, and no number of tokens.
        max_tokens=USUAL_TOKENS if body.max_tokens is None else max(1, body.max_tokens),
        **body.filters(),
        seed=secrets.randbits(31) if body.seed is None else body.seed,
        top_logprobs=body.logprobs,
        prompt_logprobs=bool(body.echo) and body.logprobs is not None,
        stop=tuple(text for text in stop if text),
        grammar=form.grammar if form else None,
    )


def _prompts(given: Any) -> list[str | tuple[int, ...]]:
    """A text, token ids, or a list of either. Raises Failure."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise refused("prompt", "text, token ids, or a list of texts or of token ids")
    if _are_ids(given):
        return [tuple(given)]
    for index, one in enumerate(given):
        if not isinstance(one, str) and not (isinstance(one, list) and _are_ids(one)):
            raise refused(f"prompt.{index}", "text, or a list of token ids that are ints")
    return [one if isinstance(one, str) else tuple(one) for one in given]


def _are_ids(given: list[Any]) -> bool:
    return all(isinstance(one, int) and not isinstance(one, bool) for one in given)
