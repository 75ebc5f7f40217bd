"""Documents must match the tree.

These tests find and name Python blocks that no longer run, commands with invalid flags, links to missing pages, commands that
are missing in the guide, crates that are missing in the code map, and claims that are missing in the table.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from python.tests.warm import warm_python
from rowmill.cli import main
from rowmill.cli.command import command_parser

ROOT = Path(__file__).resolve().parents[1]
LOOSE = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PAGES = [ROOT / name for name in LOOSE] + [
    page for folder in ("docs", "benchmarks") for page in sorted((ROOT / folder).rglob("*.md"))
]

STATUSES = ("reproduced", "partly", "not", "not yet", "not answerable here: ")
CLAIM_IDS = [
    f"{paper}{number}"
    for paper, count in {"F": 18, "P": 38, "D": 13, "R": 11, "K": 21}.items()
    for number in range(1, count + 1)
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run in order as one program, in an empty folder."""
    program = tmp_path / "page.py"
    program.write_text("\n".join(python_blocks(page)))
    folder = tmp_path / "folder"
    folder.mkdir()
    run = subprocess.run(
        [warm_python(), "-W", "error", str(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_existing_targets(page: Path) -> None:
    # `[text](target)`, `[text](target#anchor)`, and either with a title: `[text](target "title")`.
    links = re.findall(r"\]\(([^)#:\s]*)(#[^)\s]*)?(?: \"[^\"]*\")?\)", page.read_text())
    broken: list[str] = []
    for target, anchor in links:
        to = page.parent / target if target else page
        if not to.exists() or (anchor and anchor[1:] not in anchors(to)):
            broken.append(target + anchor)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_paths_exist(page: Path) -> None:
    """A path in backticks that starts with one of our folders must exist."""
    rooms = "crates|python|tests|benchmarks|docs|tools|examples"
    named = re.findall(rf"`((?:{rooms})/[\w./-]+)`", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_code_map_names_every_crate_and_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    crates = [path.parent.name for path in (ROOT / "crates").glob("*/Cargo.toml")]
    package = ROOT / "python/rowmill"
    modules = [path.name for path in package.glob("*.py") if not path.name.startswith("_")]
    packages = [f"{path.parent.name}/" for path in package.glob("*/__init__.py")]
    assert [room for room in crates + modules + packages if f"`{room}`" not in text] == []


def claims() -> dict[str, list[str]]:
    lines = (ROOT / "docs/claims.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row for row in rows if re.fullmatch(r"[FPDRK]\d+", row[0])}


def test_every_claim_has_one_row() -> None:
    assert list(claims()) == CLAIM_IDS


@pytest.mark.parametrize("claim", CLAIM_IDS)
def test_claim_has_a_verdict_and_its_evidence(claim: str) -> None:
    _, text, command, figure, status = claims()[claim]
    assert text
    assert status in STATUSES or status.startswith(STATUSES[-1])
    answered = status in {"reproduced", "partly", "not"}
    assert (command != "-" and figure != "-") == answered
    for script in re.findall(r"[\w/]+/run\.py", command):
        assert (ROOT / script).is_file()


def commands(capsys: pytest.CaptureFixture[str], *of: str) -> set[str]:
    """Names of the commands that the help of `rowmill`, or of one of its groups of commands, lists."""
    with pytest.raises(SystemExit):
        main([*of, "--help"])
    return set(re.findall(r"^ {4}([a-z]+)(?: |$)", capsys.readouterr().out, re.MULTILINE))


def test_the_guide_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """In the first column of its table: `rowmill NAME`, `rowmill GROUP NAME`, or `NAME` of the group named before it."""
    groups = {"data", "kge", "storage"}
    there = commands(capsys) - groups
    there |= {f"{group} {name}" for group in groups for name in commands(capsys, group)}
    page = (ROOT / "docs/guide/command-line.md").read_text()
    listed: set[str] = set()
    for cell in re.findall(r"^\| (`[^|]+)", page.partition("\n## All commands\n")[2], re.MULTILINE):
        group = ""
        for name in re.findall(r"`(?:rowmill )?([a-z ]+)`", cell):
            group = f"{name.split()[0]} " if " " in name else group
            listed.add(name if " " in name else group + name)
    assert listed == there


def shell_commands(page: Path) -> Iterator[list[str]]:
    """Arguments of the `rowmill` commands in the shell blocks of a page."""
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"^ {4,}(?:torchrun .*)?rowmill (.+)$", text, re.MULTILINE):
        yield shlex.split(line, comments=True)


@pytest.mark.parametrize("page", [page for page in PAGES if any(shell_commands(page))], ids=name_of)
def test_shell_commands_have_valid_flags(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = command_parser()
    for arguments in shell_commands(page):
        try:
            parser.parse_args(arguments)
        except SystemExit:
            pytest.fail(f"rowmill {shlex.join(arguments)}: {capsys.readouterr().err}")


def test_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.search(r"^ {4}make( |$)", text, re.MULTILINE)
    assert "make test" in text


def test_the_program_of_the_readme_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Killed after 30 of 60 steps and started again, it prints the last lines of an uninterrupted run."""
    program = tmp_path / "train.py"
    program.write_text("\n".join(python_blocks(ROOT / "README.md")))

    def lines_of_run(folder: Path) -> list[str]:
        return subprocess.run(
            [warm_python(), str(program)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        ).stdout.splitlines()

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    # In a separate process, so that the store can be opened again as soon as it has ended.
    with subprocess.Popen(
        [sys.executable, str(program)], cwd=killed, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert any(line.startswith("30 steps") for line in run.stdout)
        run.kill()
    resumed = lines_of_run(killed)
    assert not resumed[0].startswith(("10 ", "20 ", "30 ")), "it started from the beginning"
    assert resumed[-1] == lines_of_run(whole)[-1]
