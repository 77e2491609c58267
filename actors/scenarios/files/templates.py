"""Templates and expressions of a file: Jinja's sandbox, whose names are known before it runs.

What a text may name is said by `Place`: a slip is found when the file is read. Any thread.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

from kvactors.actors.scenarios.files.problems import InvalidScenario, nearest

__all__ = [
    "QUERIES",
    "Problem",
    "Template",
    "calls",
    "check_names",
    "columns_of",
    "dynamic",
    "expression",
    "names_in",
    "placed",
    "template",
]

# What asks for earlier results: its argument that is not a filter, if it has one.
QUERIES: Mapping[str, tuple[str, ...]] = {
    "answers": ("phase", "agent", "step", "round"),
    "answer": ("phase", "agent", "step", "round"),
    "count": ("text", "phase", "agent", "step", "round"),
}
# Characters or items that `*` may make.
MOST_MADE = 1_000_000
Problem = Callable[[str], InvalidScenario]


class _Sandbox(ImmutableSandboxedEnvironment):
    """Without what takes the memory of a machine in ten characters."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(left) > 1 and right > 1000:
            raise SecurityError(f"{right} is too much of a power")
        many = [v for v in (left, right) if isinstance(v, str | list | tuple)]
        times = [v for v in (left, right) if isinstance(v, int)]
        if operator == "*" and many and times and len(many[0]) * times[0] > MOST_MADE:
            raise SecurityError(f"more than {MOST_MADE:,} characters")
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return _called(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return _called(super().getitem(obj, argument))


class _Call:
    """A method `of` something, without a text: that would be where it lies in memory."""

    def __init__(self, of: Callable[..., Any]) -> None:
        self._of = of
        self.__name__ = of.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._of(*args, **kwargs)

    def __repr__(self) -> str:
        raise TemplateRuntimeError(f"{self.__name__} is no text: call it")


def _called(value: Any) -> Any:
    is_method = isinstance(value, MethodType | BuiltinMethodType | FunctionType)
    return _Call(value) if is_method else value


def _printed(value: Any) -> Any:
    """What is printed: nothing whose text is where it lies in memory."""
    if not isinstance(value, Undefined) and (callable(value) or isinstance(value, Iterator)):
        name = getattr(value, "__name__", type(value).__name__)
        raise TypeError(f"{name} is no text: call it, or make a list of it")
    return value


_JINJA = _Sandbox(
    undefined=StrictUndefined,
    autoescape=False,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_printed,
)
# The same seed gives the same texts: nothing draws from the process's own random numbers.
_JINJA.globals = {name: _JINJA.globals[name] for name in ("range", "dict", "namespace")}
_JINJA.globals["range"] = _Call(safe_range)
del _JINJA.filters["random"]


def _listed(lazy: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that gives a list where it gave what can be gone through once."""

    @wraps(lazy)  # With what Jinja has written on it.
    def listed(*args: Any, **kwargs: Any) -> Any:
        made = lazy(*args, **kwargs)
        return list(made) if isinstance(made, Iterator) else made

    return listed


# Joined with a text, what can be gone through once would be where it lies in memory.
for _name in (
    *("batch", "items", "map", "reject", "rejectattr", "reverse"),
    *("select", "selectattr", "slice", "unique"),
):
    _JINJA.filters[_name] = _listed(_JINJA.filters[_name])


@dataclass(frozen=True, slots=True)
class Template:
    """A text to fill in, or an expression to evaluate, and its syntax tree."""

    source: str
    render: Callable[..., Any]
    tree: nodes.Template


@lru_cache(maxsize=4096)
def template(source: str) -> Template:
    """A text with `{{ … }}`. Raises InvalidScenario."""
    try:
        render, tree = _JINJA.from_string(source).render, _JINJA.parse(source)
    except TemplateError as error:
        raise InvalidScenario(f"{source!r:.80} is no template: {error}") from error
    return Template(source, _as_it_is(render()) if _is_plain(tree) else render, tree)


def _is_plain(tree: nodes.Template) -> bool:
    """Whether there is nothing to fill in."""
    printed = [node for out in tree.body for node in getattr(out, "nodes", [out])]
    return all(isinstance(node, nodes.TemplateData) for node in printed)


def _as_it_is(text: str) -> Callable[..., str]:
    return lambda **_: text


@lru_cache(maxsize=4096)
def expression(source: str) -> Template:
    """What stands within `{{ }}`, without these. Raises InvalidScenario."""
    try:
        tree = _JINJA.parse("{{ " + source + " }}")
        return Template(source, _JINJA.compile_expression(source, undefined_to_none=False), tree)
    except TemplateError as error:
        raise InvalidScenario(f"{source!r:.80} is no expression: {error}") from error


def dynamic(source: str) -> bool:
    """Whether a text is anything but what stands there."""
    return any(mark in source for mark in ("{{", "{%", "{#"))


def placed(made: Callable[[str], Template], source: str, problem: Problem) -> Template:
    """A template or an expression, as it is `made` of its `source`. Raises what `problem` makes."""
    try:
        return made(source)
    except InvalidScenario as error:
        raise problem(str(error)) from error


def check_names(text: Template, known: Iterable[str], problem: Problem) -> None:
    """Raise what `problem` makes for a name in a `text` that is none of the `known`, or a query of
    results with a filter that there is not."""
    names = {*known, *_JINJA.globals}
    for name in sorted(names_in(text) - names):
        raise problem(f"nothing is called {name!r}: {nearest(name, known)}")
    called = {id(call.node) for call in text.tree.find_all(nodes.Call)}
    for found in text.tree.find_all(nodes.Name):
        if found.name in QUERIES and found.ctx == "load" and id(found) not in called:
            raise problem(f"{found.name} is a question: {found.name}(…)")
    for call in text.tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in QUERIES:
            filters = QUERIES[call.node.name]
            for keyword in call.kwargs:
                if keyword.key not in filters:
                    known = nearest(keyword.key, filters)
                    raise problem(f"{call.node.name}() has no {keyword.key!r}: {known}")


def names_in(text: Template) -> set[str]:
    """What a text names that it does not make itself."""
    return find_undeclared_variables(text.tree)


def calls(text: Template) -> list[tuple[str, dict[str, Any]]]:
    """Queries of results in a text, with those of their filters that are written out."""
    found = []
    for call in text.tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in QUERIES:
            names = QUERIES[call.node.name]
            given = {**dict(zip(names, call.args, strict=False))}
            given |= {keyword.key: keyword.value for keyword in call.kwargs}
            fixed = {k: v.value for k, v in given.items() if isinstance(v, nodes.Const)}
            found.append((call.node.name, fixed))
    return found


def columns_of(text: Template, name: str) -> set[str]:
    """Attributes that a text asks of something called `name`."""
    return {
        node.attr
        for node in text.tree.find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == name
    }
