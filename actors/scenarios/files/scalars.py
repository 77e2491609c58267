"""Which values the plain words of YAML are: those of YAML 1.2's core schema. Any thread.

YAML 1.1 takes 12:30 for 750, 010 for 8, 1e-3 and 9_000 for what they are not, and yes for true.
"""

import re

import yaml

__all__ = ["HOLDS", "Loader"]

# What a journal can hold: whole numbers from -HOLDS on, and less than HOLDS.
HOLDS = 2**63
# Digits beyond which Python takes its time.
MOST_DIGITS = 100
_TAG = "tag:yaml.org,2002:"
_HELD_OTHERWISE = {_TAG + name for name in ("bool", "int", "float", "timestamp", "value")}
# Kind, pattern, and the characters that it begins with.
_CORE = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)


class Loader(yaml.SafeLoader):
    """Makes plain values alone, numbers and truth values as YAML 1.2 has them; what else 1.1 knows,
    such as times and dates, is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # As its parent has it.
        first: [(tag, pattern) for tag, pattern in found if tag not in _HELD_OTHERWISE]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _int(loader: Loader, node: yaml.Node) -> int:
    text = str(loader.construct_scalar(node))  # type: ignore[arg-type]
    bases = {"0o": 8, "0x": 16}
    value = int(text, bases.get(text[:2], 10)) if len(text) <= MOST_DIGITS else HOLDS
    if not -HOLDS <= value < HOLDS:
        problem = f"{text:.20} has more than 64 bits"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return value


def _float(loader: Loader, node: yaml.Node) -> float:
    text = str(loader.construct_scalar(node)).lower()  # type: ignore[arg-type]
    # Python has them without the dot.
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


for _kind, _pattern, _first in _CORE:
    Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern})$"), list(_first))
Loader.add_constructor(_TAG + "int", _int)
Loader.add_constructor(_TAG + "float", _float)
