"""What an inquiry asks, in the words of the model: turns, drawing, tokens."""

import re
from collections.abc import Sequence
from dataclasses import replace

from kvactors.actors.frontends.server.answering.home import Home, Speaker
from kvactors.actors.frontends.server.dialect.dialect import Dialect, read_whole
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry, Message
from kvactors.actors.frontends.server.identity.conversation import read
from kvactors.actors.frontends.server.identity.plan import Plan
from kvactors.actors.turns.prompt import Continuation
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.prefix_match import conversation_text
from kvactors.core.conversation.rewind import begun_answer
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import TemplateError
from kvactors.core.schedule.sampling import Sampling

__all__ = ["LEAST_ROOM", "continuation", "prompt_tokens", "sampling_of", "shortened"]

# What a template may put around a turn, in tokens.
FRAME_TOKENS = 64
# An answer that a client set a limit for is let have less, but not less than so many tokens: where
# the context does not leave them, the client is told that it is full, and compacts.
LEAST_ROOM = 256
# An answer without a limit may have so many tokens, where a quarter of the memory holds them.
LONGEST = 32_768
# Characters that are tokenized at once to be counted.
AT_ONCE = 64 << 10


def continuation(
    dialect: Dialect, inquiry: Inquiry, plan: Plan, agent: Speaker
) -> tuple[Continuation, tuple[int, ...]]:
    """What the turn of an `inquiry` says in a `dialect`, behind what its `agent` has by `plan`; and
    the tokens that its answer goes on with."""
    conversation = plan.conversation
    new = list(plan.new)
    tools = dialect.told("", inquiry.tools) if plan.tells_tools else ""
    if plan.apart:
        new.append(Message("system", tools))
        tools = ""
    if told := "\n\n".join(text for text in (plan.tell, tools) if text):
        at = plan.telling
        new[at] = replace(new[at], text=f"{told}\n\n{new[at].text}")
    first = new[0].role if new else "user"
    system = dialect.system(conversation.system, inquiry.tools, first)
    if plan.alike:
        # The ledger's own text stands: what differs was told, or says nothing.
        system = agent.system_prompt or ""
    said, turns = tuple(map(dialect.turn, new)), agent.transcript().turns
    begun = _begun(dialect, inquiry, plan, turns)
    if not begun:
        return Continuation(plan.keep, said, system), ()
    known = Transcript(dialect.chat, "", system)
    known.turns = list(turns)
    answer = begun_answer(known, len(turns) if new else plan.keep, begun)
    return Continuation(plan.keep, said, system, begun), answer.token_ids


def _begun(dialect: Dialect, inquiry: Inquiry, plan: Plan, turns: Sequence[Turn]) -> str:
    """What the answer goes on with by `plan`: of the agent's own answer, which its `turns` have,
    what its client has heard, with what was thought before."""
    begun = plan.begun
    if begun is None:
        return ""
    if not plan.new and plan.keep < len(turns) and (answer := turns[plan.keep]).is_answer:
        own = answer.rendered.removesuffix(answer.hidden)
        read = read_whole(dialect, inquiry, own)
        said, heard = read.text.strip(), begun.text.strip()
        if plan.own or (said == heard and not read.calls):
            return own
        if heard and said.startswith(heard):
            # It may stand in thoughts and in calls, too.
            places = (place.start() for place in re.finditer(f"(?={re.escape(said)})", own))
            ends = (own[: place + len(heard)] for place in places)
            known = (end for end in ends if read_whole(dialect, inquiry, end).text.strip() == heard)
            if end := next(known, ""):
                return end
    return dialect.beginning(begun, inquiry)[1] if begun.text else ""


def sampling_of(
    system: Home, dialect: Dialect, inquiry: Inquiry, agent: Speaker, said: Continuation
) -> Sampling:
    """How the answer of an `agent` of `system` to an `inquiry` is drawn, in the form that is asked
    for in this `dialect`, and how long it may be behind what is `said`: no longer than the context
    leaves, for clients set limits of far more than a model has."""
    grammar = dialect.grammar(inquiry)
    # A grammar says itself how many calls there may be, and has marks in texts of its own.
    stops = dialect.stops(inquiry) if grammar is None else ()
    sampling = replace(inquiry.sampling, grammar=grammar, stop=(*inquiry.sampling.stop, *stops))
    chat, turns = system.chat, agent.transcript().turns[: said.keep]
    opening = [said.system] if said.system and not said.keep else []
    begun = [said.begun] if said.begun else []
    texts = [*opening, *(text for _, text in said.messages), *begun]
    info, most = system.info, sum(_most_tokens(text) for text in texts)
    known = sum(len(turn.token_ids) for turn in turns)
    left = info.spec.context - known
    if inquiry.open_end:
        held = info.memory_budget // 4 // max(1, info.spec.bytes_per_token) - known
        longer = min(LONGEST, left - most, held - most)
        sampling = replace(sampling, max_tokens=max(sampling.max_tokens, longer))
    if sampling.max_tokens + most <= left:
        return sampling
    chat.check_length(sum(map(len, texts)), info.spec.context)
    left -= _tokens_of(chat, said, texts)
    if inquiry.open_end:
        return replace(sampling, max_tokens=max(1, min(sampling.max_tokens, left)))
    return shortened(sampling, left)


def shortened(sampling: Sampling, left: int) -> Sampling:
    """`sampling` of no more tokens than are `left` of the context, or LEAST_ROOM."""
    return replace(sampling, max_tokens=min(sampling.max_tokens, max(left, LEAST_ROOM)))


def _tokens_of(chat: ChatFormat, said: Continuation, texts: Sequence[str]) -> int:
    """About how many tokens what is `said` has, in so many `texts`: some more than that."""
    try:
        text = conversation_text(chat, said.messages, None if said.keep else said.system or None)
    except TemplateError:
        # It does not take these turns alone.
        return sum(len(chat.encode(part)) + FRAME_TOKENS for part in texts)
    return _counted(chat, text) + FRAME_TOKENS


def _most_tokens(text: str) -> int:
    """More than a text has, without a look at it: each stands for a byte or more."""
    return len(text.encode("utf-8", "surrogatepass")) + FRAME_TOKENS


def prompt_tokens(dialect: Dialect, inquiry: Inquiry) -> int:
    """How many tokens an `inquiry` has that begins anew, in a `dialect`; of a long one within one
    for each 64 Ki of its characters."""
    chat, conversation = dialect.chat, read(inquiry, (), None)
    said = conversation.said
    begins = dialect.system(conversation.system, inquiry.tools, said[0].role if said else "user")
    return _counted(
        chat, conversation_text(chat, [dialect.turn(message) for message in said], begins)
    )


def _counted(chat: ChatFormat, text: str) -> int:
    """Tokens of a text, in parts: who reads or writes meanwhile waits for one of them."""
    parts = range(0, len(text), AT_ONCE)
    return sum(len(chat.encode(text[begin : begin + AT_ONCE])) for begin in parts)
