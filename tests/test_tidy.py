"""The repository's own rules, as a test.

Each test checks the files that git tracks against one rule, such as file lengths, shared lints of crates and allowed
addresses. A failure names the file and line that break the rule.
"""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LINES_OF_CODE_MAX = 600
FILE_BYTES_MAX = 1 << 20
# Files that may be longer, each with the reason: none so far.
LONGER: dict[str, int] = {}

# Crates that may hold unsafe code; the rest forbid it.
UNSAFE_CRATES = {
    "rowmill-kernels",
    "rowmill-io",
    "rowmill-sync",
    "rowmill-index",
    "rowmill-store",
    "rowmill-python",
    "rowmill-bench",
    "rowmill-peers",
    "rowmill-serve",
    "rowmill-testkit",
}

# Crates that may open sockets. Programs in `tests` and `examples` that only tests run may too.
SOCKET_CRATES = {
    "rowmill-remote",
    "rowmill-server",
    "rowmill-serve",
    "rowmill-storage-node",
    "rowmill-host",
}
SOCKETS = r"\b(Tcp|Unix|Udp)(Stream|Listener|Socket|Datagram)\b|\b(tokio|std|unix)::net\b|\blibc::socket\b"
# Packages that open sockets for their callers.
SOCKET_PACKAGES = {
    "axum",
    "hyper",
    "hyper-util",
    "mio",
    "object_store",
    "reqwest",
    "socket2",
    "tonic",
}

# The crates that a crate may depend on; ARCHITECTURE.md shows the order. Dependencies go in one direction only.
CRATE_IMPORTS = {
    "rowmill-splitmix": set[str](),
    "rowmill-rows": set[str](),
    "rowmill-kernels": {"rowmill-splitmix", "rowmill-rows"},
    "rowmill-io": {"rowmill-splitmix", "rowmill-sync"},
    "rowmill-sync": set[str](),
    "rowmill-index": {"rowmill-splitmix", "rowmill-rows"},
    "rowmill-log": {"rowmill-rows", "rowmill-io", "rowmill-sync"},
    "rowmill-store": {
        "rowmill-splitmix",
        "rowmill-rows",
        "rowmill-kernels",
        "rowmill-io",
        "rowmill-sync",
        "rowmill-index",
        "rowmill-log",
    },
    "rowmill-remote": {"rowmill-io", "rowmill-store"},
    "rowmill-server": set[str](),
    "rowmill-serve": {
        "rowmill-splitmix",
        "rowmill-io",
        "rowmill-rows",
        "rowmill-server",
        "rowmill-store",
        "rowmill-host",
    },
    "rowmill-nvme": {"rowmill-io"},
    "rowmill-storage-node": {
        "rowmill-io",
        "rowmill-nvme",
        "rowmill-host",
        "rowmill-server",
        "rowmill-store",
    },
    "rowmill-host": {"rowmill-rows", "rowmill-io", "rowmill-nvme", "rowmill-sync"},
    "rowmill-testkit": {"rowmill-splitmix", "rowmill-io", "rowmill-sync"},
    "rowmill-python": {
        "rowmill-rows",
        "rowmill-kernels",
        "rowmill-io",
        "rowmill-store",
        "rowmill-remote",
        "rowmill-server",
        "rowmill-serve",
        "rowmill-host",
        "rowmill-nvme",
        "rowmill-storage-node",
        "rowmill-sync",
    },
    "rowmill-peers": set[str](),
    "rowmill-bench": {
        "rowmill-rows",
        "rowmill-io",
        "rowmill-store",
        "rowmill-testkit",
        "rowmill-peers",
    },
}

# The folders of crates/rowmill-store/src, from the lowest layer to the highest, and what each may import. Files beside
# the folders belong to the first layer; all may import `error`.
STORE_FOLDERS = {
    # Options, seeded bugs, threads, memory budget, counters, files: these know nothing about rows.
    "error": set[str](),
    "options": set[str](),
    "seeded": set[str](),
    "threads": set[str](),
    "memory": set[str](),
    "metrics": set[str](),
    "files": set[str](),
    # Tables and their rows, clocks.
    "table": {"threads", "files"},
    "staleness": set[str](),
    # Rows of a shard, then of a group of shards.
    "shard": {"seeded", "memory", "files", "table"},
    "group": {"threads", "memory", "metrics", "table", "staleness", "shard"},
    # Operations on the rows of a group.
    "row_lifetime": {"table", "shard", "group"},
    "lookup": {
        "seeded",
        "threads",
        "memory",
        "metrics",
        "table",
        "staleness",
        "shard",
        "group",
        "row_lifetime",
    },
    "update": {"table", "staleness", "shard", "group", "lookup"},
    "lookahead": {"threads", "memory", "table", "shard", "group"},
    "feed": {"options", "threads", "files", "table", "shard", "group"},
    # The store: groups, tables by name, and operations on all of them.
    "store": {
        "options",
        "threads",
        "memory",
        "metrics",
        "files",
        "table",
        "staleness",
        "shard",
        "group",
        "row_lifetime",
        "lookup",
        "update",
        "lookahead",
        "feed",
    },
    "background": {"threads", "memory", "group", "store"},
    "checkpoint": {
        "options",
        "threads",
        "memory",
        "files",
        "table",
        "staleness",
        "shard",
        "group",
        "lookahead",
        "feed",
        "store",
        "background",
    },
    "replication": {"options", "files", "table", "staleness", "update", "store", "checkpoint"},
}
STORE_FLAT_MAX = 10

# The layers of python/rowmill, lowest first. A package imports packages of its own layer and of lower ones. The settings
# of a task are in its package, but belong to a lower layer than the rest of it.
PYTHON_LAYERS = (
    {"_allocator", "_core", "_extras", "_lazy", "_torch", "errors", "files", "init", "size"},
    {"ops"},
    {"nn"},
    {"optim"},
    {"store"},
    {"distributed"},
    {"config", "ctr.settings", "gnn.settings", "kge.settings"},
    {"train"},
    {"saved"},
    {"ctr", "gnn", "kge"},
    {"integrations"},
    {"conversion", "partition"},
    {"serve"},
    {"cli", "__main__"},
)
# Packages that `pip install rowmill` brings; triton comes with torch.
INSTALLED = {"numpy", "torch", "triton"}
# Folders of models. Their embeddings are arguments, which may be stored anywhere.
PYTHON_MODELS = "ctr/models"

# Hosts that a text may name: the licence, papers, pages of software we compare with, the namespace of SVG, the loopback
# address, the project's own name, and a placeholder.
HOSTS = {"rowmill.io", "www.apache.org", "arxiv.org", "doi.org", "www.w3.org", "127.0.0.1", "HOST"}
# Cargo writes the name of its index into the lock file.
ADDRESS_FREE = {"Cargo.lock", "tools/faster/Cargo.lock"}


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    paths = [ROOT / name for name in listed if name and (not suffixes or name.endswith(suffixes))]
    # A deleted file is listed until the deletion is committed.
    return [path for path in paths if path.is_file()]


def texts(*suffixes: str) -> Iterator[tuple[str, list[str]]]:
    for path in tracked(*suffixes):
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        yield str(path.relative_to(ROOT)), text.splitlines()


def matches(pattern: str, *suffixes: str) -> list[str]:
    expression = re.compile(pattern)
    return [
        f"{name}:{number}: {line.strip()}"
        for name, lines in texts(*suffixes)
        for number, line in enumerate(lines, 1)
        if expression.search(line)
    ]


def code_lines(name: str, lines: list[str]) -> int:
    comment = "//" if name.endswith((".rs", ".go")) else "#"
    return sum(1 for line in lines if line.strip() and not line.strip().startswith(comment))


def test_files_can_be_read_in_one_sitting() -> None:
    counts = {name: code_lines(name, lines) for name, lines in texts(".rs", ".py", ".go", ".sh")}
    assert {
        name: count for name, count in counts.items() if count > LONGER.get(name, LINES_OF_CODE_MAX)
    } == {}
    assert set(LONGER) <= set(counts), "an exception for a file that is gone"


def test_no_large_files() -> None:
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked()}
    assert {name: size for name, size in sizes.items() if size > FILE_BYTES_MAX} == {}


def test_no_markers_of_unfinished_work() -> None:
    # The patterns are written so that they do not match themselves.
    assert matches(r"\b(TO|FIX)(DO|ME)\b|\bXX{2}\b") == []
    assert matches(r"\b(todo|unimplemented|dbg)!\(|#\[ignore\]", ".rs") == []
    assert matches(r"raise\s+NotImplementedE|\bassert\s+True\b|pytest\.skip\(\)", ".py") == []


def test_no_paths_of_one_machine() -> None:
    assert matches(r"(^|[^A-Za-z0-9_.])/(work|farm|root|home/\w+|Users/\w+)/") == []


def test_addresses_are_of_allowed_hosts_only() -> None:
    expression = re.compile(r"https?://([A-Za-z0-9.-]+)")
    found = [
        f"{name}:{number}: {host}"
        for name, lines in texts()
        if name not in ADDRESS_FREE
        for number, line in enumerate(lines, 1)
        for host in expression.findall(line)
        if host not in HOSTS
    ]
    assert found == []


def test_no_trailing_whitespace_and_no_carriage_returns() -> None:
    assert matches(r"[ \t]+$|\r") == []


def crates() -> list[Path]:
    return sorted(path.parent for path in (ROOT / "crates").glob("*/Cargo.toml"))


@pytest.mark.parametrize("crate", crates(), ids=lambda path: path.name)
def test_crate_shares_the_lints_and_depends_on_allowed_crates_only(crate: Path) -> None:
    manifest = tomllib.loads((crate / "Cargo.toml").read_text())
    assert manifest["package"]["name"] == crate.name
    assert manifest["lints"] == {"workspace": True}
    imports = {name for name in manifest.get("dependencies", {}) if name.startswith("rowmill-")}
    assert imports <= CRATE_IMPORTS[crate.name]
    if crate.name not in UNSAFE_CRATES:
        assert "#![forbid(unsafe_code)]" in (crate / "src/lib.rs").read_text()


@pytest.mark.parametrize("crate", crates(), ids=lambda path: path.name)
def test_sockets_are_opened_by_servers_and_remote_copies_only(crate: Path) -> None:
    manifest = tomllib.loads((crate / "Cargo.toml").read_text())
    packages = SOCKET_PACKAGES & manifest.get("dependencies", {}).keys()
    lines = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in tracked(".rs")
        if path.is_relative_to(crate / "src")
        for found in re.finditer(SOCKETS, path.read_text())
    ]
    if crate.name in SOCKET_CRATES:
        assert packages or lines, f"{crate.name} opens no socket any more: remove it from the table"
    else:
        assert (packages, lines) == (set(), [])


def imported_folders(file: Path, source: Path) -> Iterator[str]:
    """Imports of a file from other folders of `source`. Unit tests may import anything."""
    code = "\n".join(
        line for line in file.read_text().splitlines() if not line.lstrip().startswith("//")
    )
    code = code.split("#[cfg(test)]\nmod tests {")[0]
    yield from re.findall(r"\bcrate::(\w+|\{)", code)
    # Enough `super`s lead to the root, from which everything can be named.
    depth = len(file.relative_to(source).parts) - (file.name == "mod.rs")
    yield from re.findall(rf"^use (?:super::){{{depth}}}(\w+|\{{|\*)", code, re.MULTILINE)


def store_files() -> Iterator[tuple[str, Path]]:
    """Files of the store with their folders, without those of unit tests."""
    source = ROOT / "crates/rowmill-store/src"
    for path in tracked(".rs"):
        if path.is_relative_to(source) and path.name != "lib.rs":
            parts = path.relative_to(source).parts
            if "tests" not in parts and path.stem not in ("tests", "golden"):
                yield parts[0].removesuffix(".rs"), path


def test_folders_of_the_store_import_lower_ones_only() -> None:
    folders = list(STORE_FOLDERS)
    for number, (folder, allowed) in enumerate(STORE_FOLDERS.items()):
        assert allowed <= set(folders[:number]), f"{folder} may import a higher layer"
    used: dict[str, set[str]] = {folder: set() for folder in folders}
    found: list[str] = []
    for folder, path in store_files():
        assert folder in STORE_FOLDERS, f"add {folder} and its allowed imports to STORE_FOLDERS"
        for other in imported_folders(path, ROOT / "crates/rowmill-store/src"):
            used[folder].add(other)
            if other not in STORE_FOLDERS[folder] | {folder, "error"}:
                found.append(f"{path.relative_to(ROOT)} imports {other}")
    assert found == []
    unused = {folder: STORE_FOLDERS[folder] - used[folder] for folder in folders}
    assert {folder: rest for folder, rest in unused.items() if rest} == {}, (
        "allowed but no longer imported"
    )


def test_folders_of_the_store_have_a_module_header() -> None:
    source = ROOT / "crates/rowmill-store/src"
    assert len([path for path in tracked(".rs") if path.parent == source]) <= STORE_FLAT_MAX
    for folder in {path.parent for _, path in store_files()} - {source}:
        header = itertools.takewhile(
            lambda line: line.startswith("//!"), (folder / "mod.rs").read_text().splitlines()
        )
        assert " ".join(header).count(". ") >= 1, f"{folder.name}/mod.rs says too little"


def imported_modules(path: Path) -> Iterator[str]:
    """Modules of rowmill, without that prefix, that a module imports at run time."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("rowmill.") for name in names if name.startswith("rowmill."))


def layer_of(module: str) -> int | None:
    """The layer of the longest matching name in the table; None for names of rowmill itself."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        for layer, names in enumerate(PYTHON_LAYERS):
            if ".".join(parts[:length]) in names:
                return layer
    return None


def python_modules() -> dict[str, Path]:
    package = ROOT / "python/rowmill"
    paths = {path.relative_to(package).with_suffix(""): path for path in package.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}


def test_python_packages_import_their_own_and_lower_layers_only() -> None:
    found: list[str] = []
    for module, path in python_modules().items():
        if module == "__init__":
            continue
        layer = layer_of(module)
        assert layer is not None, f"add {module} to PYTHON_LAYERS"
        for other in imported_modules(path):
            # A name of the top level, such as `rowmill.open`, comes from the store or from below it.
            below = layer_of(other) or 0
            if below > layer:
                found.append(f"{path.relative_to(ROOT)} imports {other} of a higher layer")
    assert found == []


def test_private_python_packages_are_imported_within_their_parent_only() -> None:
    private = {name for name in python_modules() if re.search(r"\._\w+$", name)}
    assert "distributed._exchange" in private
    found = [
        f"{path.relative_to(ROOT)} imports {other}"
        for module, path in python_modules().items()
        for other in imported_modules(path)
        for name in private
        if f"{other}.".startswith(f"{name}.") and not module.startswith(name.rpartition(".")[0])
    ]
    assert found == []


def third_party_imports(body: list[ast.stmt], installed: bool) -> Iterator[str]:
    """Third-party packages that the statements import outside of `with extra(...)` and `if TYPE_CHECKING`."""
    for statement in body:
        names: list[str] = []
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [statement.module or ""]
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        inside = isinstance(statement, ast.With) and any(
            ast.unparse(item.context_expr).startswith("extra(") for item in statement.items
        )
        packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
        if not installed:
            yield from packages - {"rowmill"} - INSTALLED
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from third_party_imports(getattr(statement, field, []), installed or inside)


def test_packages_of_extras_are_imported_by_name_of_the_extra() -> None:
    """`pip install rowmill` brings torch and numpy; any other import says which extra installs it."""
    found = [
        f"{path.relative_to(ROOT)} imports {package} outside of `with extra(...)`"
        for path in python_modules().values()
        for package in third_party_imports(ast.parse(path.read_text()).body, installed=False)
    ]
    assert found == []


def test_click_models_import_no_store() -> None:
    """Click models import each other and operators on plain tensors, but no lookups and no store."""
    models = [path for path in python_modules().values() if PYTHON_MODELS in path.as_posix()]
    assert len(models) > 10
    allowed = (PYTHON_MODELS.replace("/", "."), "ops.interaction", "ops.linear")
    found = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in models
        for other in imported_modules(path)
        if not other.startswith(allowed)
    ]
    assert found == []


def test_placement_needs_only_the_standard_library() -> None:
    """Placement works without Kubernetes: packages of other modules are allowed in tests only."""
    folder = ROOT / "scheduler/placement"
    own = "rowmill.io/scheduler/placement"
    foreign = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked(".go")
        if path.is_relative_to(folder) and not path.name.endswith("_test.go")
        for name in re.findall(
            r'^(?:import)?\s+(?:\w+ )?"([\w./-]+)"$', path.read_text(), re.MULTILINE
        )
        if "." in name.split("/")[0] and name != own and not name.startswith(f"{own}/")
    ]
    assert foreign == []


def test_every_dependency_has_its_reason() -> None:
    lines = (ROOT / "Cargo.toml").read_text().splitlines()
    start = lines.index("[workspace.dependencies]")
    end = next(i for i in range(start + 1, len(lines)) if lines[i].startswith("["))
    bare = [
        lines[i]
        for i in range(start + 1, end)
        if re.match(r"[a-z]", lines[i])
        and not lines[i].startswith("rowmill-")
        and not re.match(r"#|[a-z]", lines[i - 1])
    ]
    assert bare == []


def test_unsafe_blocks_are_documented_one_by_one_or_for_a_whole_impl() -> None:
    """The lint is denied for all crates; where it is allowed, one comment covers every method."""
    lints = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["lints"]
    assert lints["clippy"]["undocumented_unsafe_blocks"] == "deny"
    bare = [
        f"{name}:{number + 1}"
        for name, lines in texts(".rs")
        for number, line in enumerate(lines)
        if "allow(clippy::undocumented_unsafe_blocks" in line
        and not any("SAFETY of all" in above for above in comment_above(lines, number))
    ]
    assert bare == []


def comment_above(lines: list[str], number: int) -> Iterator[str]:
    for above in reversed(lines[:number]):
        if not above.strip().startswith("//"):
            return
        yield above


def test_every_benchmark_has_a_question_and_a_runner() -> None:
    folders = {path.parent for path in tracked() if path.is_relative_to(ROOT / "benchmarks")}
    questions = folders - {ROOT / "benchmarks", ROOT / "benchmarks/results"}
    top = {
        ROOT / "benchmarks" / path.relative_to(ROOT / "benchmarks").parts[0] for path in questions
    }
    missing = [
        f"{folder.name}/{name}"
        for folder in sorted(top)
        for name in ("run.py", "README.md")
        if not (folder / name).is_file()
    ]
    assert missing == []


def test_locks_are_complete_and_hold_no_addresses() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if re.match(r"[A-Za-z0-9]", line)]
    assert len(pins) > 20
    assert [line for line in pins if "==" not in line or not line.endswith("\\")] == []


def test_documents_name_their_subjects() -> None:
    """Sentences name their subject, such as the caller, a thread or a follower."""
    # The pattern is written so that it does not match itself.
    assert (
        matches(r"(?i)\b(who(ever)|some(body)|no(body))\b", ".go", ".md", ".py", ".rs", ".toml")
        == []
    )
