"""Random JSON schemas whose values are bounded in length, and objects of them."""

from random import Random
from typing import Any

__all__ = ["random_schema"]

WORDS = ("name", "age", "city", "tags", "kind", "x", "note_2", "ünits", "is open", "a/b")
PATTERNS = (r"^[A-Z]{2}-[0-9]{3}$", r"^(red|green)?$", r"^[a-f]+x{2,4}$", r"^\w{1,8}@\w{2,4}\.com$")
FORMATS = ("date", "ipv4", "uuid")


def random_schema(random: Random) -> dict[str, Any]:
    """A schema of an object, three levels deep at most."""
    return _object(random, 3)


def _object(random: Random, depth: int) -> dict[str, Any]:
    names = random.sample(WORDS, random.randint(0, 5))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(random, depth - 1) for name in names},
        "required": [name for name in names if random.random() < 0.6],
        "additionalProperties": False,
    }
    return schema


def _array(random: Random, depth: int) -> dict[str, Any]:
    least = random.randint(0, 2)
    items = _value(random, depth - 1)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + 3}


def _string(random: Random, _depth: int) -> dict[str, Any]:
    least = random.choice((0, 0, 3, 12))
    return random.choice(
        (
            {"type": "string", "minLength": least, "maxLength": least + random.randint(0, 20)},
            {"type": "string", "pattern": random.choice(PATTERNS)},
            {"type": "string", "format": random.choice(FORMATS)},
        )
    )


def _number(random: Random, _depth: int) -> dict[str, Any]:
    low = random.randint(-2000, 2000)
    kind = random.choice(("integer", "number"))
    return {"type": kind, "minimum": low, "maximum": low + random.randint(0, 5000)}


def _fixed(random: Random, _depth: int) -> dict[str, Any]:
    values = ["red", 'a "quoted" word', 7, -1.5, None, True, "ärger", ["x", 1], {"deep": False}]
    if random.random() < 0.3:
        return {"const": random.choice(values)}
    return {"enum": random.sample(values, random.randint(1, 4))}


def _either(random: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(random, depth - 1) for _ in range(random.randint(2, 3))]}


def _plain(random: Random, _depth: int) -> dict[str, Any]:
    return {"type": random.choice(("boolean", "null", ["boolean", "null"]))}


def _value(random: Random, depth: int) -> dict[str, Any]:
    flat = [_string, _number, _fixed, _plain]
    kinds = flat if depth <= 0 else [*flat, _object, _array, _either]
    return random.choice(kinds)(random, depth)
