"""
The documents say what is true: links, names, commands, code and tables are compared with the code.

What a page claims in prose is for people to check; what a program can check is checked here.
"""

from __future__ import annotations

import configparser
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import billing_jobs.worker.results  # noqa: F401 - its error has a page too
from billing_jobs.config import Settings, child_environment
from billing_jobs.domain.errors import BillingJobsError
from billing_jobs.embedded.valkey import EmbeddedValkey

ROOT = Path(__file__).parents[2]
#: Made by a run; so is what begins with a dot, save the continuous integration.
SKIPPED = frozenset(("__pycache__", "build", "dist"))
KEPT = frozenset((".ci", ".github", ".gitignore"))
#: A list of cases from elsewhere: its links and commands belong to notes that are not here.
FOREIGN = ROOT / "tests" / "cases" / "celery_failures.md"
README_LINES_MAX = 120
BLOCK_SECONDS = 60.0
#: A worker gets this much longer than its jobs, and never less than a minute.
STOP_SLACK_SECONDS, STOP_SECONDS_MIN = 5.0, 60.0

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
OUR_PATH = re.compile(
    r"((?:benchmarks|billing_jobs|deploy|docs|examples|migrations|requirements|tests)/[\w./-]*\w/?)"
    r"(?:::(test_\w+))?"
)
COMMAND = re.compile(r"(?:^|\s|/|\(|\$\()billing-jobs((?: +[^\s`|)&;]+)+)")
OPTION = re.compile(r"--[a-z][a-z-]+")
MACHINE = re.compile(
    r"(?<![\w.-])/(?:work|root|tmp/[\w.-]+)/|--(?:extra-)?index-url|--find-links|/simple\b"
)


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of code on a page."""

    page: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def files() -> Iterator[Path]:
    """Return every file of ours."""
    waiting = [ROOT]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            hidden = path.name.startswith(".") and path.name not in KEPT
            if hidden or path.name in SKIPPED or path.suffix == ".egg-info" or path.is_symlink():
                continue
            if path.is_dir():
                waiting.append(path)
            else:
                yield path


@cache
def pages() -> tuple[Path, ...]:
    """Return every page of ours."""
    return tuple(path for path in files() if path.suffix == ".md" and path != FOREIGN)


@cache
def text(page: Path) -> str:
    """Return a page's text."""
    return page.read_text("utf-8")


def prose(page: Path) -> str:
    """Return a page without its blocks of code, line by line where it was."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text(page))


def blocks(page: Path) -> list[Block]:
    """Return the blocks of code of a page."""
    return [
        Block(page, text(page)[: match.start()].count("\n") + 1, match[2].strip(), match[3])
        for match in FENCE.finditer(text(page))
    ]


def runnable() -> list[Block]:
    """Return the blocks that say of themselves that they run."""
    return [block for page in pages() for block in blocks(page) if block.language == "python run"]


def generator() -> ModuleType:
    """Load the script that makes the reference pages."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_link_leads_somewhere() -> None:
    """A dead link in an error page costs an operator minutes that she does not have."""
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages()
        for target in LINK.findall(prose(page))
        if not target.startswith(("https://", "http://")) and not _leads(page, target)
    ]

    assert "\n".join(dead) == ""


def test_every_file_and_test_that_is_named_exists() -> None:
    """A guarantee whose test is gone is only a promise."""
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages()
        for name in CODE.findall(prose(page))
        if not _exists(name)
    ]

    assert "\n".join(gone) == ""


def test_every_python_block_compiles() -> None:
    """Code that does not compile was never tried."""
    for page in pages():
        for block in blocks(page):
            if block.language.startswith("python"):
                compile(block.code, str(block), "exec")


@pytest.mark.parametrize("block", runnable(), ids=str)
def test_a_block_that_says_it_runs_does_run(
    block: Block, database_url: str, broker: EmbeddedValkey, tmp_path: Path
) -> None:
    """People copy from the docs; each block runs in a process of its own on real servers."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", block.code],
        env=child_environment({"database_url": database_url, "broker_url": broker.url}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BLOCK_SECONDS,
        check=False,
    )

    assert ran.returncode == 0, f"{block}\n{ran.stdout}{ran.stderr}"


def test_pages_made_from_the_code_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that was true once is worse than none."""
    monkeypatch.setenv("COLUMNS", "80")
    for name, page in generator().PAGES.items():
        assert text(ROOT / name) == page(), f"{name} is old: run python docs/generate.py"


def test_every_command_that_is_shown_exists_with_its_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command that is refused when it is typed from a page ends the trust in all pages."""
    monkeypatch.setenv("COLUMNS", "80")
    made = generator()
    known = {path: set(OPTION.findall(made.help_of(path))) for path in made.command_paths()}
    known[()] = set(OPTION.findall(made.help_of(())))

    wrong = [
        f"{page.relative_to(ROOT)}: billing-jobs{shown}"
        for page in pages()
        if page.name != "cli.md"
        for shown in _commands(page)
        if not _is_known(shown.split(), known)
    ]

    assert "\n".join(wrong) == ""


def test_each_error_code_has_its_page_and_no_page_is_left_over() -> None:
    """The command prints the page's name with each error."""
    codes = {BillingJobsError.code, *(kind.code for kind in _below(BillingJobsError))}
    there = {page.stem: text(page) for page in (ROOT / "docs" / "errors").glob("*.md")}
    contents = there.pop("README")

    assert {page.partition("\n")[0] for page in there.values()} == {f"# {code}" for code in codes}
    assert set(there) == codes
    assert {name for name in there if f"({name}.md)" not in contents} == set()


def test_no_file_names_a_machine() -> None:
    """The repository stands alone: it names no directory and no registry of a machine."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files()
        if path != Path(__file__)
        for match in MACHINE.finditer(path.read_bytes().decode("utf-8", "replace"))
    ]

    assert "\n".join(found) == ""


def test_the_readme_stays_short() -> None:
    """The first page is read when it fits on two screens."""
    assert len(text(ROOT / "README.md").splitlines()) <= README_LINES_MAX


def test_every_package_that_is_installed_is_listed_with_its_licence() -> None:
    """Whoever ships this must know what comes along."""
    installed = re.findall(r"^([\w.-]+)==", text(ROOT / "requirements" / "run.txt"), re.MULTILINE)
    listed = re.findall(r"^\| `([\w.-]+)` \|", text(ROOT / "THIRD_PARTY.md"), re.MULTILINE)

    assert sorted(listed) == sorted(installed)


def test_systemd_waits_longer_than_a_worker_needs_to_stop() -> None:
    """A stop that systemd cuts short costs a wait for the lease of each job that ran."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(text(ROOT / "deploy" / "billing-jobs-worker.service"))

    seconds = float(unit["Service"]["TimeoutStopSec"])
    default = Settings.model_fields["stop_deadline_seconds"].default

    assert seconds >= max(default + STOP_SLACK_SECONDS, STOP_SECONDS_MIN)


def _leads(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if not path.exists():
        return False
    return not anchor or anchor in {_slug(heading) for heading in HEADING.findall(text(path))}


def _slug(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def _exists(name: str) -> bool:
    match = OUR_PATH.fullmatch(name)
    if match is None:
        return True
    path = ROOT / match[1]
    return path.exists() and (match[2] is None or f"def {match[2]}(" in text(path))


def _commands(page: Path) -> Iterator[str]:
    """Return what follows `billing-jobs` in every piece of code of a page."""
    shell = [block.code for block in blocks(page) if block.language in {"sh", "text", ""}]
    for piece in (*CODE.findall(prose(page)), *"\n".join(shell).splitlines()):
        yield from (match[1] for match in COMMAND.finditer(piece))


def _is_known(words: list[str], known: dict[tuple[str, ...], set[str]]) -> bool:
    names = [word for word in words if re.fullmatch(r"[a-z]+", word)]
    path = next(
        (tuple(names[:n]) for n in (2, 1) if tuple(names[:n]) in known and len(names) >= n), ()
    )
    options = {option for word in words for option in OPTION.findall(word)}
    bare = not names or words[0].startswith("-") or words[0] == "..."
    return (bool(path) or bare) and options <= known[path] | known[()]


def _below(kind: type[BillingJobsError]) -> Iterator[type[BillingJobsError]]:
    for child in kind.__subclasses__():
        if child.__module__.startswith("billing_jobs.") and not child.__name__.startswith("_"):
            yield child
        yield from _below(child)
