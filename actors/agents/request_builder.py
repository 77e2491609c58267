"""What a prompt makes of a transcript, and what the engine gets of it."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvactors.actors.agents.answers import prompt_of
from kvactors.actors.turns.messages_agent import Ask
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.prompt import (
    Continuation,
    NewText,
    NewTokenIds,
    WholeConversation,
    WholeText,
    characters,
)
from kvactors.core.cache.blocks import BLOCK_TOKENS
from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.hashing import common_prefix, tokens_hash
from kvactors.core.conversation.prefix_match import (
    Draft,
    continue_behind,
    match_messages,
    match_text,
)
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import (
    ContextExceeded,
    EmptyPrompt,
    InvalidSampling,
    TokenOutOfRange,
)
from kvactors.core.schedule.guide import Guide
from kvactors.core.schedule.request import Request, StopMatcher
from kvactors.core.schedule.sampling import Sampling

logger = logging.getLogger(__name__)

# Tokens of a system prompt from which on it is worth waiting for who prefills it.
LEAST_SHARED = 64

Choices = tuple[tuple[int, ...], ...]

__all__ = [
    "check_length",
    "log_prompt",
    "longest_answer",
    "make_choices",
    "make_draft",
    "make_request",
    "retokenized_tokens",
]


def check_length(transcript: Transcript, asked: TurnOptions, context: int) -> None:
    """Raise ContextExceeded where a text that is `asked`, or what the `transcript` begins with, has
    more characters than a whole `context` of the longest tokens, before it is tokenized."""
    chat, given = transcript.chat, asked.prompt
    begins = not transcript.turns and isinstance(given, NewText | NewTokenIds)
    system = (transcript.system_prompt or "") if begins else ""
    chat.check_length(
        max(len(system) + characters(given), *map(len, asked.sampling.choices), 0), context
    )


def make_draft(transcript: Transcript, ask: Ask) -> Draft:
    """The transcript as it is before the answer. Raises InvalidInput, TemplateError."""
    asked, given = ask.turn, ask.turn.prompt
    if isinstance(given, WholeConversation):
        said, share = given.messages, given.threshold
        return match_messages(transcript, said, share, goes_on=given.goes_on)
    if isinstance(given, WholeText):
        return match_text(transcript, given.text, given.threshold)
    if isinstance(given, Continuation):
        said, system = given.messages, given.system
        return continue_behind(transcript, given.keep, said, system, begun=given.begun)
    if isinstance(given, NewText):
        turn = transcript.render(asked.role, given.text, answer=asked.answer)
    else:
        text, ids = given.model.chat.decode(given.token_ids), given.token_ids
        if given.model.tokenizer_id != transcript.tokenizer_id:
            chat = transcript.chat
            ids = tuple(chat.encode(text) if transcript.turns else chat.encode_whole(text))
        turn = Turn(asked.role, text, ids, text, raw=True)
    return Draft(len(transcript.turns), (turn,), None, transcript.system_prompt)


def make_request(
    agent_id: str,
    transcript: Transcript,
    draft: Draft,
    ask: Ask,
    spec: ModelCacheSpec,
    *,
    isolated: bool = False,
) -> Request:
    """The request that runs a `draft` of the `transcript` of `agent_id`, as `ask` asks, on a model
    with this `spec`. An `isolated` one shares no KV. Raises
    EmptyPrompt, TokenOutOfRange, ContextExceeded, InvalidSampling for choices too long for
    the model's windows or of the same tokens, and InvalidGrammar for a grammar that no answer of
    `max_tokens` meets."""
    turns = [*transcript.turns[: draft.keep], *draft.turns]
    tokens = [token for turn in (*turns, draft.begun) for token in turn.token_ids]
    if not tokens or (draft.match is None and not draft.turns[0].token_ids):
        raise EmptyPrompt("the prompt has no tokens")
    known = _remembered(transcript, draft, tokens)
    chat, asked, sampling = transcript.chat, ask.turn, ask.turn.sampling
    choices = make_choices(transcript, draft, ask)
    _check_tokens((tokens, *choices), spec)
    max_tokens = longest_answer(ask, choices)
    if choices:
        sampling = replace(sampling, max_tokens=max_tokens)
        if max_tokens > BLOCK_TOKENS and any(layer.window for layer in spec.layers):
            raise InvalidSampling(
                f"a choice of {max_tokens} tokens: a model with sliding windows can take "
                f"back {BLOCK_TOKENS} at most"
            )
    if len(tokens) + max_tokens > spec.context:
        raise ContextExceeded(
            f"{known} tokens remembered + {len(tokens) - known} new + max_tokens {max_tokens} = "
            f"{len(tokens) + max_tokens} exceed the context of {spec.context} tokens",
            len(tokens),
            spec.context - max_tokens,
        )
    alone = isolated or sampling.prompt_logprobs
    lends = asked.lends and not alone
    passing = not (asked.remembered or lends)
    private = alone or passing
    shared = (
        [] if private or draft.keep else _shared_beginning(transcript, draft.system_prompt, tokens)
    )
    if asked.answer:
        # The last token is fed by the step that draws.
        shared = shared[: len(tokens) - 1]
    return Request(
        agent_id=agent_id,
        turn=len(turns) - 1,
        tokens=tokens,
        prompt=len(tokens),
        sampling=sampling,
        generate=asked.answer,
        stop_tokens=chat.eos,
        matcher=StopMatcher(sampling.stop, chat.decode, draft.begun.token_ids),
        fresh=len(tokens) - known,
        serial=ask.ticket.serial,
        stream=ask.ticket.tokens is not None,
        submitted_at=ask.ticket.submitted_at,
        priority=asked.priority if asked.answer else asked.priority - 1,
        passing=passing,
        lends=lends,
        shared=len(shared),
        prompt_hash=tokens_hash(shared) if shared else "",
        tenant=None if private else asked.tenant,
        choices=choices,
        guide=_guide(chat, sampling, spec, draft.begun) if asked.answer else None,
    )


def make_choices(transcript: Transcript, draft: Draft, ask: Ask) -> Choices:
    """The tokens of each choice that `ask` gives for the answer to a `draft` of the `transcript`.
    Raises InvalidSampling where two have the same."""
    texts = ask.turn.sampling.choices if ask.turn.answer else ()
    choices = tuple(_choice(transcript.chat, text, prompt_of(transcript, draft)) for text in texts)
    _check_different(texts, choices)
    return choices


def longest_answer(ask: Ask, choices: Choices) -> int:
    """How many tokens the answer to `ask` may have: those of the longest of its `choices`, if it
    has any."""
    most = max(map(len, choices), default=ask.turn.sampling.max_tokens)
    return most if ask.turn.answer else 0


def _guide(chat: ChatFormat, sampling: Sampling, spec: ModelCacheSpec, begun: Turn) -> Guide | None:
    """What keeps the answer to its grammar, if it has one. Raises InvalidGrammar."""
    if sampling.grammar is None:
        return None
    tokens = chat.grammar_tokens(spec.vocab_size)
    return Guide(tokens, sampling.grammar, sampling.max_tokens, begun.token_ids)


def log_prompt(request: Request, draft: Draft, *, with_text: bool) -> None:
    """A line of the log for the `request` of a `draft` that begins; `with_text`: what it says."""
    if logger.isEnabledFor(logging.DEBUG):
        words = f": {[turn.text for turn in draft.turns]!r}" if with_text else ""
        new = request.fresh
        logger.debug("%r: turn %d adds %d tokens%s", request.agent_id, request.turn, new, words)


def _choice(chat: ChatFormat, text: str, asked: Turn) -> tuple[int, ...]:
    """The tokens of an answer that ends here, to what is `asked`. Without the end a choice that
    another one begins with would always be the likelier of the two."""
    raw = asked.raw
    said = chat.encode_behind(asked.rendered, text) if raw else chat.encode_answer(text)
    return (*said, *chat.end_of_turn)


def _check_different(texts: Sequence[str], choices: Choices) -> None:
    """Raise InvalidSampling where two of the `texts` have the same tokens, `choices`."""
    known: dict[tuple[int, ...], str] = {}
    for text, tokens in zip(texts, choices, strict=True):
        other = known.setdefault(tokens, text)
        if other != text:
            raise InvalidSampling(
                f"the choices {other!r} and {text!r} have the same tokens: give one of them"
            )


def retokenized_tokens(transcript: Transcript, draft: Draft) -> int:
    """Tokens of the draft's turns that another tokenizer made."""
    turns = (*transcript.turns[: draft.keep], *draft.turns)
    return sum(len(turn.token_ids) for turn in turns if turn.source)


def _shared_beginning(
    transcript: Transcript, system_prompt: str | None, tokens: list[int]
) -> list[int]:
    """The tokens of a first turn that every agent with this system prompt has too."""
    shared = common_prefix(transcript.chat.beginning(system_prompt), tokens)
    return tokens[:shared] if shared >= LEAST_SHARED else []


def _check_tokens(told: Iterable[Sequence[int]], spec: ModelCacheSpec) -> None:
    """Raise TokenOutOfRange: MLX reads beyond the embedding without a check, and takes the process
    with it."""
    last = max(max(tokens, default=0) for tokens in told)
    if last >= spec.vocab_size:
        raise TokenOutOfRange(
            f"token id {last} is outside the vocabulary of the model, 0 <= id < "
            f"{spec.vocab_size}: its tokenizer knows more tokens than its embedding"
        )


def _remembered(transcript: Transcript, draft: Draft, tokens: list[int]) -> int:
    """How many of these tokens, from the first on, are the transcript's too."""
    if draft.keep == len(transcript.turns):
        return sum(len(turn.token_ids) for turn in transcript.turns)
    return common_prefix(transcript.token_ids, tokens)
