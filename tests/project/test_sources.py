"""What comments and docstrings cite can be looked up: the list of sources in core/README.md."""

import re

import pytest
from house import FOLDERS, ROOT, files, name

# [paper, 3.4], [schema, Tensor Layout]; a shape such as [rows, T] is none.
CITED = re.compile(r"(?<![\w\[])\[([a-z][a-z-]*), (\d+\.\d+|[A-Z][a-z]{2}[\w ]*)\]")
# Documents that are not here, by names that nobody else knows.
NOWHERE = re.compile(
    r"\bseed 00\d|\bthe seeds?'s? (table|formula|formats|text|check)|\bthe specification\b"
    r"|\((the )?design[,)]|\b(design|layout|facts|style)\.md\b",
    re.IGNORECASE,
)
PAGE = (ROOT / "core/README.md").read_text(encoding="utf-8").partition("## Sources")[2]
LISTED = dict(re.findall(r"^\| `\[([a-z-]+)\]` \| (.*) \|$", PAGE, re.MULTILINE))
TEXTS = {
    name(path): " ".join(re.sub(r"\n\s*#?", "\n", path.read_text(encoding="utf-8")).split())
    for path in (*files(*FOLDERS, "tests", "examples"), ROOT / "bench/LOG.md")
    if path.name != "test_sources.py"
}


def citations(text: str) -> set[tuple[str, str]]:
    return set(CITED.findall(text))


def test_every_key_that_is_cited_is_in_the_list() -> None:
    wrong = {place: citations(text) for place, text in TEXTS.items()}

    assert {at: found for at, found in wrong.items() if {key for key, _ in found} - {*LISTED}} == {}


def test_every_section_that_is_cited_is_told_of() -> None:
    cited = {found for text in TEXTS.values() for found in citations(text)}

    assert [(key, part) for key, part in sorted(cited) if part not in LISTED.get(key, "")] == []


def test_every_source_is_cited() -> None:
    assert {key for text in TEXTS.values() for key, _ in citations(text)} == {*LISTED}


def test_nothing_cites_a_document_that_is_not_here() -> None:
    found = {place: [hit[0] for hit in NOWHERE.finditer(text)] for place, text in TEXTS.items()}

    assert {place: hits for place, hits in found.items() if hits} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a table [write-up, 3.4].", {("write-up", "3.4")}),
        ("as [rumour, Appendix B] has it", {("rumour", "Appendix B")}),
        ("[rows, T], dict[str, Any] and Callable[[str, Any], None]", set()),
    ],
)
def test_a_citation_is_told_from_a_shape(text: str, found: set[tuple[str, str]]) -> None:
    assert citations(text) == found
