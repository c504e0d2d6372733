"""The documents hang together: links lead somewhere, no page is lost, and lists are those of the code."""

import fnmatch
import inspect
import re
from pathlib import Path

import pytest

import caramel.errors
from caramel.cli.main import COMMANDS
from caramel.frontend import program_file

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()] + PAGES

MIGRATION_PAGES = ("from-horovod.md", "from-mirrored-strategy.md")
"""Pages of whole scripts, which test_migration.py executes."""

FENCE = re.compile(r"^ *(```+|:::+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`+[^`\n]*`+")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?[^)]*\)")
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(path):
    return str(path.relative_to(ROOT))


def prose(path):
    """A document without its blocks of code."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def headings(path):
    """Titles of all headings, with their levels."""
    found = re.findall(r"^(#+) +(.*?) *#*$", prose(path), re.MULTILINE)
    return [(len(marks), title) for marks, title in found]


def slug(title):
    """The anchor of a heading, as GitHub and MyST make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(path):
    found, seen = set(), {}
    for _, title in headings(path):
        made = slug(title)
        number = seen[made] = seen.get(made, -1) + 1
        found.add(f"{made}-{number}" if number else made)
    return found


def links(path):
    """Where the links and images of a document lead, but for those to other hosts."""
    text = re.sub(r"^ {4,}.*$", "", prose(path), flags=re.MULTILINE)
    targets = LINK.findall(CODE.sub("code", text))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def wrong_links(path):
    wrong = []
    for target in links(path):
        place, _, anchor = target.partition("#")
        to = (path.parent / place).resolve() if place else path
        is_there = to.exists() and to.is_relative_to(ROOT)
        if not is_there or (anchor and (to.suffix != ".md" or anchor not in anchors(to))):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path):
    assert not wrong_links(path)


def test_links_are_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# A title, `with` code\n## Twice\n## Twice\n```\n# no title\n```\n")
    page = tmp_path / "a.md"
    page.write_text(
        "# Here\n[a](b.md) [b](b.md#a-title-with-code) [c](#here) [d](https://example.com) [e](b.md#twice-1)\n"
        "![f](none.png) [g\nh](b.md#no-title) `[i](none.md)` [`j`](none.md) [![k](b.md)](c.md)\n```\n[l](m.md)\n```\n"
    )
    assert wrong_links(page) == ["none.png", "b.md#no-title", "none.md", "c.md"]


def entries(path):
    """The pages in the toctrees of a page."""
    found = set()
    for block in TOCTREE.findall(path.read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.strip() and not line.startswith(":"):
                pattern = str((path.parent / f"{line.strip()}.md").relative_to(DOCS))
                found |= {p for p in PAGES if p != path and fnmatch.fnmatchcase(str(p.relative_to(DOCS)), pattern)}
                assert ":glob:" in block or (DOCS / pattern).exists(), f"{name_of(path)} lists {line.strip()}"
    return found


def test_every_page_is_in_a_toctree():
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting.extend(sorted(entries(page)))
    assert not [name_of(page) for page in PAGES if page not in reached]


def test_every_page_has_one_title():
    assert not [name_of(page) for page in PAGES if [level for level, _ in headings(page)].count(1) != 1]


def test_pages_that_use_special_words_link_to_the_glossary():
    words = re.compile(r"\b(forward window|rho|gap closed|utilisation)\b", re.IGNORECASE)
    others = [p for p in PAGES if p.name not in ("glossary.md", "architecture.md") and p.parent.name != "decisions"]
    using = [page for page in others if words.search(CODE.sub("", prose(page)))]
    assert len(using) > 5
    assert not [name_of(page) for page in using if "glossary.md" not in page.read_text(encoding="utf-8")]


def test_the_version_to_cite_is_this_one():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", text, re.MULTILINE) == [caramel.__version__]


def test_every_error_has_a_section():
    classes = [
        name
        for name, value in vars(caramel.errors).items()
        if inspect.isclass(value) and issubclass(value, caramel.errors.CaramelError)
    ]
    sections = [title for level, title in headings(DOCS / "troubleshooting.md") if level == 2]
    assert sorted(sections) == sorted([*classes, "It hangs"])  # the last is no error


def test_errors_have_messages():
    """A message in each section, but for the base class, which is never raised."""
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[2:]:
        assert re.search(r"^    \S", section, re.MULTILINE), section.partition("\n")[0]


def test_every_key_of_a_program_file_is_described():
    text = (DOCS / "how-to" / "program-files.md").read_text(encoding="utf-8")
    top, rest = text.split("### evaluation")
    rows = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
    keys = {name: value for name, value in vars(program_file).items() if name.endswith("_KEYS")}
    assert set(rows.findall(rest)) == keys.pop("_EVALUATION_KEYS")
    (of_program,) = keys.values()
    assert set(rows.findall(top)) == of_program


TERMS = """
Model, parameter, fact, bucket, transfer, start boundary, end boundary, backward window, forward window, depth, collective of the
forward pass, target, Emission, DistributedModel, Plan, rho, alpha, beta, gamma, gap, gap closed, exposed time, limit, naive limit,
lower bound, utilisation, chunk, replica, rank, worker, driver, analyzer, policy, modifier, trace, network model, threshold, pending,
postponed, piece, deterministic mode, all-reduce
"""


def test_glossary():
    lines = (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line.startswith("- ")]
    assert all(re.fullmatch(r"- \*\*[^*]+\*\*: \S.*[.;\w%]", line) for line in entries)
    others = [line for line in lines if line and not line.startswith(("- ", "#", "One line"))]
    assert not others, "an entry of more than one line"
    terms = [line.split("**")[1] for line in entries]
    assert len(set(terms)) == len(terms)
    known = {part for term in terms for part in [term, *term.split(", ")]}
    wanted = {" ".join(term.split()) for term in TERMS.split(",")}
    assert not wanted - known


def test_examples_are_collected():
    """Each page with an example is one that pytest's glob finds."""
    source = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (glob,) = re.findall(r"--doctest-glob=(\S+?)[ \"]", source)
    for page in PAGES:
        if ">>>" in page.read_text(encoding="utf-8"):
            assert fnmatch.fnmatchcase(name_of(page), glob)


def test_examples_are_executed():
    blocks = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES if page.name not in MIGRATION_PAGES}
    assert not [
        name_of(page) for page, text in texts.items() if not all(">>>" in block for block in blocks.findall(text))
    ]


def test_the_readme_has_every_command():
    rows = re.findall(r"^\| `caramel (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(command.name for command in COMMANDS)


def test_the_table_of_rules_has_every_file():
    folder = ROOT / "caramel" / "frontend" / "batch"
    table = (folder / "__init__.py").read_text().split("=\n")[2]
    listed = set(re.findall(r"^(\w+) ", table, re.MULTILINE)) | {"reshape"}  # which is named beside another
    assert listed == {path.stem for path in folder.glob("*.py")} - {"__init__"}
