"""A request's body: from bytes to a record. Pure: any thread.

What many values cost is not their bytes but their number, so that the number is bounded before
anything is made of them.
"""

import json
import math
import re
import sys
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import core_schema

from kvactors.actors.frontends.server.exchange.inquiry import Manner
from kvactors.actors.frontends.server.wire.errors import Failure, refused
from kvactors.core.conversation.turn import MOST_TOLD, check_template_kwargs
from kvactors.core.errors import InvalidInput
from kvactors.core.schedule.sampling import LEAST_SEED, MOST_SEED, MOST_WHOLE

__all__ = [
    "Body",
    "Drawn",
    "Listed",
    "Seed",
    "Stops",
    "content_of",
    "manner_of",
    "name_of",
    "of_provider",
    "record_of",
]

MOST_NESTED = 64
# Keys and values of a body: a thousand prompts of a thousand token ids.
MOST_VALUES = 1 << 20
# Lists and objects of a body, of which each costs as much as twenty ids.
MOST_LISTS = 100_000
# Messages, tools and the like of one request.
MOST_LISTED = 10_000
# Stop strings: all of them are looked for behind each token.
MOST_STOPS = 64
# Characters of a number that an error shows.
MOST_SHOWN = 40
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_B = TypeVar("_B", bound="Body")
_I = TypeVar("_I")


class _Bounded:
    """A list of which the first wrong item is enough: one error for each would take seconds.
    (pydantic's own `FailFast` cannot stand in a union before Python 3.12.)"""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema = handler(source)
        assert schema["type"] == "list"
        return {**schema, "fail_fast": True, "max_length": MOST_LISTED}


Listed = Annotated[list[_I], _Bounded()]
Stops = Annotated[list[str], Field(max_length=MOST_STOPS)]
Seed = Annotated[int, Field(ge=LEAST_SEED, le=MOST_SEED)]


class Body(BaseModel):
    """A request's body. Fields that it does not know are kept aside, and named as ignored."""

    model_config = ConfigDict(extra="allow", strict=False)


class Drawn(Body):
    """A body that says how tokens are drawn, within the bounds of `Sampling`."""

    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MOST_WHOLE)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, allow_inf_nan=False)
    min_tokens: int | None = Field(None, ge=0, le=MOST_WHOLE)
    ignore_eos: bool | None = None

    def filters(self) -> dict[str, Any]:
        """These in the engine's words, but for those that are left out; a temperature is 1 then."""
        given = {name: getattr(self, name) for name in Drawn.model_fields}
        found = {"temperature": 1.0} | {k: v for k, v in given.items() if v is not None}
        if found.get("top_k") == -1:
            # Others' word for none.
            found["top_k"] = 0
        if found.pop("ignore_eos", False):
            found["min_tokens"] = MOST_WHOLE
        if "top_p" in found:
            # To the engine 0 says that there is none: clients mean the narrowest.
            found["top_p"] = max(found["top_p"], sys.float_info.epsilon)
        return found


def manner_of(
    told: dict[str, Any] | None, field: str, effort: object, *, thinks: bool | None = None
) -> Manner:
    """How to answer by what is `told` as `chat_template_kwargs`, by an `effort` that stands in the
    `field`, of which "none" is no thinking, and by whether the model `thinks`. Raises Failure."""
    if not isinstance(effort, str | None):
        raise refused(field, f"a word, such as low or high, not {effort!r:.40}")
    try:
        check_template_kwargs(told, InvalidInput, MOST_TOLD)
    except InvalidInput as error:
        raise refused("chat_template_kwargs", str(error)) from error
    if effort == "none":
        effort, thinks = None, False
    return Manner(thinks, effort or "", told or {})


def unmet(reasoning: dict[str, Any] | None, *met: str) -> list[str]:
    """What of a body's `reasoning` changes nothing: all that is set but what is `met`."""
    wishes = (reasoning or {}).items()
    return [f"reasoning.{wish}" for wish, value in wishes if value and wish not in met]


def record_of(raw: bytes, kind: type[_B]) -> _B:
    """The JSON in `raw` as a record of this `kind`. Raises Failure with the field named."""
    content = content_of(raw)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise refused(place, first["msg"]) from error


def content_of(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`, within the bounds of a body. Raises Failure."""
    content = _content(raw)
    if _is_deep(content):
        raise Failure(400, f"the body is nested deeper than {MOST_NESTED}")
    if not isinstance(content, dict):
        raise Failure(400, f"the body is a JSON object, not {type(content).__name__}")
    return content


def _content(raw: bytes) -> Any:
    """What the JSON in `raw` says. Raises Failure."""
    _check_number(raw)
    try:
        # As bytes it may be UTF-16, and have halves of characters that are no text.
        text = raw.decode("utf-8-sig")
        content = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        return _well_formed(content) if _SURROGATE.search(raw) else content
    except (ValueError, RecursionError) as error:
        raise Failure(400, f"the body is no JSON: {error}") from error


def _check_number(raw: bytes) -> None:
    """Raise Failure 413 if `raw` has more values, or more lists, than a body may have."""
    values, lists = _numbers(raw, 0, len(raw))
    if values > MOST_VALUES or lists > MOST_LISTS:
        # Some of these may be signs in texts.
        values, lists = _numbers_outside(raw)
    if values > MOST_VALUES:
        raise Failure(413, f"the body has more than {MOST_VALUES} keys and values")
    if lists > MOST_LISTS:
        raise Failure(413, f"the body has more than {MOST_LISTS} lists and objects")


def _numbers_outside(raw: bytes) -> tuple[int, int]:
    """How many values and lists there are outside of texts; no more than is too much is counted."""
    values = lists = place = 0
    for text in _STRING.finditer(raw):
        here = _numbers(raw, place, text.start())
        # Texts without anything between them are no JSON, and would be counted for long.
        values, lists, place = values + max(1, here[0]), lists + here[1], text.end()
        if values > MOST_VALUES or lists > MOST_LISTS:
            return values, lists
    here = _numbers(raw, place, len(raw))
    return values + here[0], lists + here[1]


def _numbers(raw: bytes, start: int, end: int) -> tuple[int, int]:
    """Before each key and value but the first stands one of these signs."""
    lists = raw.count(b"[", start, end) + raw.count(b"{", start, end)
    return raw.count(b",", start, end) + raw.count(b":", start, end) + lists, lists


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise ValueError(f"{digits[:MOST_SHOWN]} is larger than a number can be")
    return value


def of_provider(tool: Any) -> bool:
    """Whether a `tool` that is named is no function, but a kind that only a provider runs."""
    return isinstance(tool, dict) and tool.get("type", "function") != "function"


def name_of(where: str, tool: Any) -> str:
    """The name of a `tool` in the field `where`. Raises Failure without one."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not name:
        raise refused(f"{where}.name", "a tool needs a name")
    return name


def _well_formed(content: Any) -> Any:
    """`content` with U+FFFD for halves of characters: clients cut texts within one."""
    text = json.dumps(content, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(text.decode("utf-16", "replace"))


def _is_deep(content: Any) -> bool:
    """Whether something in it is nested deeper than it may be."""
    level: list[Any] = [[content]]
    for _ in range(MOST_NESTED + 1):
        within = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for some in within for one in some if isinstance(one, (dict, list))]
        if not level:
            return False
    return True
