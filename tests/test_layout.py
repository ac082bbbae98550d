"""Rules of the source tree: what may import what, how long a file may be, and the linters."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tidegate"
MODULES = {
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
TESTS = sorted((ROOT / "tests").rglob("*.py"))

#: docs/design.md, "Packages": each imports only from those above it. Names that are not there yet are here already.
FLOORS = (
    ("units", "errors", "frozen", "settings"),
    ("host",),
    ("gguf", "gguf_reader"),
    ("policy",),
    ("engines",),
    ("worker",),
    ("guard",),
    ("gateway",),
    ("record",),
    ("doctor", "plan", "postmortem", "stress", "setup"),
    ("cli",),
    ("__main__",),
)
#: Against the floors and known. Each must still be true, so that it goes from here with the import.
KNOWN_VIOLATIONS = {("gateway", "record")}

#: Bring more memory into the guard than it has to spare, or wait.
NOT_IN_THE_GUARD = {
    "asyncio", "argparse", "tomllib", "subprocess", "pathlib", "logging", "dataclasses", "typing", "inspect",
    "http", "urllib", "ssl", "email", "tempfile", "shutil", "ast", "importlib", "concurrent", "multiprocessing",
    "socketserver", "sqlite3", "unittest",
}  # fmt: skip
#: What has an outside: files, clocks, processes, chance.
NOT_IN_THE_POLICY = {
    "os", "io", "time", "datetime", "socket", "select", "selectors", "signal", "asyncio", "subprocess", "pathlib",
    "threading", "multiprocessing", "concurrent", "random", "secrets", "tempfile", "shutil", "fcntl", "mmap",
    "resource", "ctypes", "sys", "logging", "http", "urllib", "builtins",
}  # fmt: skip


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).removeprefix("typing.") == "TYPE_CHECKING"


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement that runs, in functions too; not those of ``if TYPE_CHECKING``."""
    for node in body:
        if is_type_checking(node):
            yield from statements(node.orelse)  # type: ignore[attr-defined]
            continue
        yield node
        for part in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, part, []))
        for inner in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            yield from statements(inner.body)


def imports(path: Path) -> set[str]:
    """Dotted names of the modules that ``path`` imports when it runs."""
    found = set()
    for node in statements(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # "from tidegate.cli import main" is of a module, "from tidegate.errors import Exit" of a name.
            module = str(node.module)
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else module for name in names}
    return found - {"__future__"}


def package_of(module: str) -> str:
    """``settings`` for ``tidegate.settings.load``; empty for ``tidegate`` itself."""
    return module.partition(".")[2].partition(".")[0]


def closure(start: str) -> dict[str, set[str]]:
    """Everything that ``start`` imports, with what each of it imports; packages' ``__init__`` included."""
    found: dict[str, set[str]] = {}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        if module in found or module not in MODULES:
            continue
        found[module] = imports(MODULES[module])
        parents = [module.rsplit(".", count)[0] for count in range(1, module.count(".") + 1)]
        waiting += [*found[module], *parents]
    return found


def violations() -> set[tuple[str, str]]:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    found = set()
    for module, path in MODULES.items():
        importer = package_of(module)
        for target in imports(path):
            imported = package_of(target)
            if target.startswith("tidegate.") and imported != importer and floor[imported] > floor[importer]:
                found.add((importer, imported))
    return found


def test_every_package_has_a_floor() -> None:
    known = {name for names in FLOORS for name in names}
    assert {package_of(module) for module in MODULES} - {""} <= known


def test_packages_import_from_those_above_them_only() -> None:
    assert violations() == KNOWN_VIOLATIONS


def test_the_first_floor_does_not_import_its_own_settings() -> None:
    for module in ("units", "errors", "frozen"):
        assert not [name for name in imports(SOURCE / f"{module}.py") if name.startswith("tidegate")]


def test_the_policy_has_no_outside() -> None:
    modules = [module for module in MODULES if module.startswith("tidegate.policy")]
    assert len(modules) > 5
    for module in modules:
        used = {name.partition(".")[0] for name in imports(MODULES[module])}
        assert used & NOT_IN_THE_POLICY == set(), module
        calls = {node.func.id for node in ast.walk(ast.parse(MODULES[module].read_text()))
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
        assert calls & {"open", "print", "input", "exec", "eval", "__import__"} == set(), module


def test_the_guard_imports_the_standard_library_and_its_own_few() -> None:
    found = closure("tidegate.guard.__main__")
    assert len(found) > 20
    assert {package_of(module) for module in found} & {"gateway", "cli", "gguf", "gguf_reader", "record"} == set()
    for module, names in found.items():
        tops = {name.partition(".")[0] for name in names} - {"tidegate"}
        assert tops <= sys.stdlib_module_names, module
        assert tops & NOT_IN_THE_GUARD == set(), module


def test_the_guard_imports_nothing_late() -> None:
    """An import inside a function would read a file, and map memory, in the middle of an emergency."""
    for module in closure("tidegate.guard.__main__"):
        for node in ast.walk(ast.parse(MODULES[module].read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                late = [inner for inner in ast.walk(node) if isinstance(inner, (ast.Import, ast.ImportFrom))]
                assert late == [], f"{module}.{node.name}"


@pytest.mark.parametrize("path", [*MODULES.values(), *TESTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 700


def test_every_module_says_what_it_is() -> None:
    silent = [module for module, path in MODULES.items() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_packages_are_nouns_and_only_export() -> None:
    assert not [module for module in MODULES if re.search(r"\b(utils?|helpers|common|misc)\b", module)]


def test_the_version_is_the_newest_of_the_changelog() -> None:
    changelog = ROOT / "CHANGELOG.md"
    if not changelog.exists():
        pytest.skip("no CHANGELOG.md yet")
    versions = re.findall(r"^## \[?(\d+\.\d+\.\d+)\]?", changelog.read_text(), re.MULTILINE)
    assert versions[:1] == [tidegate.__version__]


LINTERS = [
    ("ruff", "check", "src", "tests"),
    ("ruff", "format", "--check", "src", "tests"),
    ("mypy", "src", "tests"),
]


@pytest.mark.timeout(300)  # mypy with an empty cache took 63 s on two slow cores
@pytest.mark.parametrize("command", LINTERS, ids=" ".join)
def test_linters(command: tuple[str, ...]) -> None:
    pytest.importorskip(command[0])
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
