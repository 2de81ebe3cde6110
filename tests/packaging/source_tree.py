"""The source tree as the packaging tests see it: which modules there are, and what each one imports."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("scheduler", "node_agent", "inference", "gateway", "cli")


@dataclass(frozen=True)
class Import:
    """One imported name, written out from the top-level package of the checkout."""

    module: str
    is_relative: bool
    line: int


@dataclass(frozen=True)
class Module:
    """One source file, with its dotted name in a checkout (`scheduler.core.decide`)."""

    path: Path
    name: str

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def tree(self) -> ast.Module:
        """Parsed anew each time: the trees of all modules would take 1 GB."""
        return ast.parse(self.path.read_text(), str(self.path))

    def at(self, line: int) -> str:
        """`scheduler/core/decide.py:12`, as editors and terminals open it."""
        return f"{self.path.relative_to(ROOT)}:{line}"

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import in the file, those inside functions and TYPE_CHECKING blocks too.

        `from a import b` gives `a.b`: b may be a module, and where it is not, its module is `a` all the same.
        """
        return tuple(self._imports_below(self.tree))

    def imports_inside_functions(self) -> Iterator[Import]:
        """The imports that are made when a function is called."""
        for node in statements(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._imports_below(node)

    def _imports_below(self, root: ast.AST) -> Iterator[Import]:
        for node in statements(root):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, False, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                for alias in node.names:
                    yield Import(f"{base}.{alias.name}", node.level > 0, node.lineno)

    def _base(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        parents = self.package.split(".")
        kept = parents[: len(parents) - (node.level - 1)]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def text(self) -> Iterator[tuple[str, int]]:
        """The string literals of the code with their lines, docstrings left out."""
        tree = self.tree
        docstrings = {
            id(node.body[0].value)
            for node in statements(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield node.value, node.lineno


def statements(root: ast.AST) -> Iterator[ast.AST]:
    """The node and all statements below it: a tenth of what `ast.walk` visits."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            below = getattr(node, name, None)
            if isinstance(below, list):  # the body of a lambda or of `x if y else z` is an expression
                waiting.extend(below)


def modules(*folders: str) -> list[Module]:
    """The modules below the named top-level folders."""
    return [module for folder in folders for module in _modules_below(folder)]


@cache
def _modules_below(folder: str) -> tuple[Module, ...]:
    return tuple(
        Module(path, ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


def tracked_files() -> list[Path]:
    """What a clone would hold: tracked files and new ones that are not ignored, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    names = (Path(name.decode()) for name in output.split(b"\0") if name)
    return sorted(path for path in names if (ROOT / path).is_file())
