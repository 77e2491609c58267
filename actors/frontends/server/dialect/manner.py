"""How a model is to think, in the words that its chat template has for it. Pure: any thread."""

from dataclasses import dataclass
from typing import Any

from kvactors.actors.frontends.server.dialect.dialect import Dialect
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry, Manner
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.errors import InvalidInput, TemplateError

__all__ = ["Spoken", "spoken"]

# Whether to think, by mlx-lm and most templates, and by DeepSeek's and Granite's.
_THINKS = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"
# What stands for an effort that a template does not name itself.
_NEAREST = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


@dataclass(frozen=True, slots=True)
class Spoken:
    """A `dialect` whose template is `told` more, of which it has nothing for what is `unread`:
    `effort`, `thinks` and names. `head`: what of that changes what it writes before a first
    question, as JSON, or ""."""

    dialect: Dialect
    told: dict[str, Any] | None = None
    unread: tuple[str, ...] = ()
    head: str = ""


def spoken(dialect: Dialect, inquiry: Inquiry) -> Spoken:
    """The `dialect` in the manner of an `inquiry`. Raises InvalidInput where its template refuses
    what a client tells it."""
    told, unread = _told(dialect.chat, inquiry.manner)
    try:
        chat = dialect.chat.told(told)
    except TemplateError as error:
        if _EFFORT not in told or _EFFORT in inquiry.manner.told:
            raise InvalidInput(f"chat_template_kwargs: {error}") from error
        # Its template has efforts of its own.
        del told[_EFFORT]
        chat, unread = dialect.chat.told(told), (*unread, "effort")
    if inquiry.formed and chat.opens_thought:
        # What has a form is no thought, and would stand within one for ever.
        quiet = told | {name: False for name in _THINKS if chat.shows(name)}
        if not dialect.chat.told(quiet).opens_thought:
            asked = {"effort": inquiry.manner.effort, "thinks": inquiry.manner.thinks}
            told, unread = quiet, (*unread, *(name for name, wish in asked.items() if wish))
            chat = dialect.chat.told(told)
    return Spoken(dialect.under(chat), told or None, unread, chat.begun_by)


def _told(chat: ChatFormat, manner: Manner) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the template of `chat` is told of a `manner`; and what of that it does not read, by
    `effort`, `thinks` and the names that the client said."""
    told, unread = dict[str, Any](), list[str]()
    effort = manner.effort if chat.names(manner.effort) else _NEAREST.get(manner.effort, "")
    if effort and chat.shows(_EFFORT):
        told[_EFFORT] = effort
    elif manner.effort:
        unread.append("effort")
    thinks = bool(manner.effort) if manner.thinks is None else manner.thinks
    if thinks or manner.thinks is not None:
        known = {name: thinks for name in _THINKS if chat.shows(name)}
        told |= known
        unread += ["thinks"] if manner.thinks is not None and not known else []
    told |= manner.told
    return told, (*unread, *(name for name in manner.told if not chat.reads(name)))
