"""Tools that Anthropic's models know without a schema, and their clients run: what others are told
of them. Pure: any thread.

Source: what the anthropic package's memory tool takes, and langchain-anthropic's bash and editor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kvactors.actors.frontends.server.exchange.inquiry import Tool

__all__ = ["known_tool"]

_TEXT = {"type": "string"}
_FILES = ("view", "create", "str_replace", "insert")
_LOOKS = (
    "`view` shows the file or folder `path`, of a file the lines of `view_range` if given; "
    "`create` writes `file_text` to it; `str_replace` puts `new_str` in place of `old_str`, which "
    "must be there once; `insert` puts {} behind the line `insert_line`, 0 for the beginning"
)


def _commands(names: Sequence[str], *texts: str) -> dict[str, Any]:
    """A schema for these commands, with `texts` beside those that all have."""
    lines = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    fields = {
        "command": {"type": "string", "enum": list(names)},
        "path": _TEXT,
        "view_range": lines,
        "insert_line": {"type": "integer"},
    }
    fields |= dict.fromkeys(("file_text", "old_str", "new_str", *texts), _TEXT)
    return {"type": "object", "properties": fields, "required": ["command"]}


_TOOLS = {
    "bash": Tool(
        "bash",
        "Runs a `command` in a bash shell that stays open between calls, and gives what it prints. "
        "With `restart` the shell begins anew.",
        {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}},
    ),
    "text_editor": Tool(
        "text_editor",
        f"Looks at text files and changes them: {_LOOKS.format('`new_str`')}.",
        _commands(_FILES),
    ),
    "memory": Tool(
        "memory",
        "Keeps what is to be remembered in files below /memories. Look there first, and write down "
        f"what later conversations need: {_LOOKS.format('`insert_text`')}; `delete` removes "
        "`path`; `rename` moves `old_path` to `new_path`.",
        _commands((*_FILES, "delete", "rename"), "insert_text", "old_path", "new_path"),
    ),
}


def known_tool(tool: Mapping[str, Any]) -> Tool | None:
    """What a `tool` of such a kind is, whatever its version; None for another."""
    kind = tool.get("type")
    name, _, version = kind.rpartition("_") if isinstance(kind, str) else ("", "", "")
    return _TOOLS.get(name) if version.isdecimal() else None
