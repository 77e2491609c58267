"""What callers may pass to AgentSystem and `spawn`, checked before anything starts."""

import functools
import os
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.runtime.mailbox import LanePolicy
from kvactors.actors.runtime.supervision import Supervision
from kvactors.core.errors import InvalidConfig
from kvactors.core.numbers import number, whole
from kvactors.core.schedule.speculation.speculation import DraftModel, SpeculationConfig
from kvactors.persistence.files.encryption import KEY_BYTES
from kvactors.persistence.files.home import expanded

__all__ = [
    "callable_name",
    "check_flags",
    "check_interval",
    "check_isolation",
    "check_journal",
    "check_lane",
    "check_latency",
    "check_model",
    "check_progress",
    "check_seconds",
    "check_seed",
    "check_spawn",
    "check_speculation",
    "check_storage",
    "check_turns",
    "default_store",
    "parse_bytes",
    "parse_limit",
    "store_path",
]


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def check_turns(name: str, value: object) -> int:
    """The value, called `name`: a number of turns. Raises InvalidConfig unless it is an int of at
    least 1."""
    found = whole(value)
    if found is None or found < 1:
        raise InvalidConfig(f"{name} must be an int of at least 1, not {value!r}")
    return found


def check_progress(progress: object) -> None:
    """Raise InvalidConfig for what cannot be told of progress."""
    if progress is not None and not callable(progress):
        raise InvalidConfig(f"progress must be callable, not {progress!r}")


def check_model(model: object) -> None:
    """Raise InvalidConfig for what no model can be loaded from."""
    if not callable(model) and not _is_path(model):
        raise InvalidConfig(
            f"model must be a name, a directory or a callable: {type(model).__name__}"
        )


def check_flags(**flags: object) -> None:
    """Raise InvalidConfig unless each is True or False: a text such as "no" is true, too."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidConfig(f"{name} must be True or False, not {value!r}")


def check_seed(seed: Any) -> int:
    """The seed. Raises InvalidConfig unless it is an int."""
    found = whole(seed)
    if found is None:
        raise InvalidConfig(f"seed must be an int, not {seed!r}")
    return found


def check_lane(lane: Any) -> LanePolicy:
    """The lane. Raises InvalidConfig unless it is a LanePolicy."""
    if not isinstance(lane, LanePolicy):
        raise InvalidConfig(f"prompt_lane must be a LanePolicy, not {lane!r}")
    return lane


def check_journal(journal: Any) -> None:
    """Raise InvalidConfig for a `journal` that no file could be made as; whether one is there
    already is seen when it is made."""
    if journal is None:
        return
    if not _is_path(journal):
        raise InvalidConfig(f"journal must be a file, not {journal!r}")
    folder = Path(journal).parent
    if not folder.is_dir():
        raise InvalidConfig(f"journal {str(journal)!r}: no directory at {folder}")


def check_spawn(prompt_lane: Any, behaviour: Any, supervision: Any, parent: Any) -> None:
    """Raise InvalidConfig for a `prompt_lane`, `behaviour`, `supervision` or `parent` that no agent
    has, and for a supervision of nothing."""
    if prompt_lane is not None:
        check_lane(prompt_lane)
    if behaviour is not None and not (isinstance(behaviour, AgentBehaviour) or callable(behaviour)):
        raise InvalidConfig(
            f"behaviour must be an AgentBehaviour or a callable that makes one, not {behaviour!r}"
        )
    if supervision is not None and not isinstance(supervision, Supervision):
        raise InvalidConfig(f"supervision must be a Supervision, not {supervision!r}")
    if supervision is not None and behaviour is None:
        raise InvalidConfig("supervision says how a behaviour goes on: pass behaviour= too")
    if parent is not None and not isinstance(parent, str):
        raise InvalidConfig(f"parent must be the id of an agent, not {parent!r}")


def check_storage(store: Any, encryption_key: Any) -> None:
    """Raise InvalidConfig for a `store` or `encryption_key` that no store could be opened with."""
    if store is True or not (store is None or store is False or _is_path(store)):
        raise InvalidConfig(f"store must be a directory, None or False, not {store!r}")
    if encryption_key is None:
        return
    if store is False:
        raise InvalidConfig("encryption_key needs a store: nothing is kept with store=False")
    # What was given is not shown: it may be a key with a slip in it.
    if not callable(encryption_key) and (
        not isinstance(encryption_key, bytes) or len(encryption_key) != KEY_BYTES
    ):
        raise InvalidConfig(f"encryption_key must be {KEY_BYTES} bytes or a callable")


def check_seconds(name: str, value: Any) -> float:
    """The value. Raises InvalidConfig unless it is a number above 0, and finite."""
    found = number(value)
    if found is None or not 0 < found <= sys.float_info.max:
        raise InvalidConfig(f"{name} must be above 0 seconds, not {value!r}")
    return found


def check_latency(seconds: Any) -> float | None:
    """The value, None as it is. Raises InvalidConfig unless it is a number above 0, and finite."""
    return None if seconds is None else check_seconds("target_latency", seconds)


def check_interval(seconds: Any) -> float | None:
    """The value, None as it is. Raises InvalidConfig unless it is from a microsecond to a second:
    what Python takes for the time after which threads take turns."""
    found = number(seconds)
    if seconds is not None and (found is None or not 1e-6 <= found <= 1):
        raise InvalidConfig(f"switch_interval must be from 1e-6 to 1 second, not {seconds!r}")
    return found


def check_isolation(isolation: object) -> bool:
    """Whether nothing is shared. Raises InvalidConfig unless it is "shared" or "strict"."""
    if isolation not in ("shared", "strict"):
        raise InvalidConfig(f'isolation is "shared" or "strict", not {isolation!r}')
    return isolation == "strict"


def check_speculation(speculation: object, *, isolated: bool) -> SpeculationConfig | None:
    """What drafts, None for nothing; where agents are `isolated` they repeat only themselves.
    Raises InvalidConfig unless it is "auto", "off" or a DraftModel."""
    if isinstance(speculation, DraftModel):
        check_model(speculation.source)
        return SpeculationConfig(share=not isolated, draft=speculation)
    if speculation not in ("auto", "off"):
        raise InvalidConfig(f'speculation is "auto", "off" or a DraftModel, not {speculation!r}')
    return SpeculationConfig(share=not isolated) if speculation == "auto" else None


def default_store() -> Path:
    """Where memories are kept if no store is named: `$KVACTORS_HOME`, else `~/.kvactors`. Raises
    InvalidConfig as `expanded`."""
    return expanded(os.environ.get("KVACTORS_HOME") or "~/.kvactors")


def store_path(store: "str | Path | bool | None") -> Path | None:
    """Where memories are kept, wherever the process goes from here; None: nowhere."""
    if store is False:
        return None
    unnamed = store is None or store is True
    return (default_store() if unnamed else expanded(str(store))).absolute()


def callable_name(source: object) -> str | None:
    """The name of a callable model; None for paths and for callables without one."""
    if isinstance(source, functools.partial):
        return callable_name(source.func)
    if not callable(source):
        return None
    name = getattr(source, "name", None) or getattr(source, "__name__", None)
    return name if isinstance(name, str) and name != "<lambda>" else None


def parse_limit(name: str, value: int | str | None, least: int = 1) -> int | None:
    """Bytes of "8GB", 8_000_000_000 or None: no limit. Raises InvalidConfig for a `value`, called
    `name`, below `least`, or that is no number of bytes."""
    return None if value is None else parse_bytes(name, value, least)


def parse_bytes(name: str, value: int | str, least: int = 1) -> int:
    """Bytes of "8GB" or 8_000_000_000. Raises InvalidConfig for a `value`, called `name`, below
    `least`, or that is no number of bytes."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?B?)\s*", value.upper())
        unit = None if match is None else _UNITS.get(match[2])
        if match is None or unit is None or match[1].count(".") > 1 or match[1] == ".":
            raise InvalidConfig(f'{name} is bytes or text such as "8GB", not {value!r}')
        value = int(Decimal(match[1]) * unit)
    found = whole(value)
    if found is None or found < least:
        bound = "above 0" if least else "or None"
        raise InvalidConfig(f"{name} is a whole number of bytes {bound}, not {value!r}")
    return found


def _is_path(value: object) -> bool:
    text = str(value) if isinstance(value, str | os.PathLike) else ""
    return bool(text) and "\0" not in text
