# SPDX-License-Identifier: Apache-2.0
"""The shape of the package: no import cycles, no private names across modules, short modules, few bare `Any`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pyro_vgpds"
LONGEST = 300  # lines, unless the module's docstring states a reason: "Longer than 300 lines because …"
MOST_ANY = 120  # annotations


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imports(name: str) -> Iterator[tuple[str, str | None, int]]:
    """(module, imported name or None, line) of every import of the package's own modules, wherever it stands."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner, None, node.lineno) if inner in MODULES else (node.module, alias.name, node.lineno)


def edges(name: str) -> set[str]:
    return {module for module, _, _ in imports(name) if module in MODULES} - {name}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle of the graph, or an empty list."""
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        for other in sorted(graph[node]):
            if found := visit(other):
                return found
        path.pop()
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node))), [])


def test_no_import_cycles():
    assert cycle({name: edges(name) for name in MODULES}) == []


def test_folders_are_layers():
    """Folders import one another in one direction; the package's own `__init__` is above all that it imports."""

    def folder(name: str) -> str:
        return ".".join(name.split(".")[:2])

    graph: dict[str, set[str]] = {folder(name): set() for name in MODULES}
    for name in MODULES:
        graph[folder(name)] |= {folder(other) for other in edges(name)} - {folder(name)}
    assert cycle(graph) == []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


#: private names that Pyro, torch and Python give to those who derive from their classes, or have no public form of
OF_OTHERS = {
    "_backward_hooks", "_batch_shape", "_buffers", "_computing_median", "_execution_engine", "_exit", "_extended_shape",
    "_foreach_add_", "_foreach_addcdiv_", "_foreach_addcmul_", "_foreach_div_", "_foreach_lerp", "_foreach_mul",
    "_foreach_sqrt", "_forward_hooks", "_forward_pre_hooks", "_get_backend", "_get_trace",
    "_post_accumulate_grad_hooks", "_pyro_context", "_PYRO_STACK", "_pyro_name", "_pyro_params", "_pyro_post_sample",
    "_pyro_sample", "_pyro_samples", "_replace", "_version",
}  # fmt: skip


def private_uses(name: str) -> Iterator[str]:
    """Private names of other modules: imported, or read as an attribute that the module itself never defines."""
    tree = TREES[name]
    for module, attribute, line in imports(name):
        if module in MODULES and attribute is not None and is_private(attribute):
            yield f"{name}:{line} imports {module}.{attribute}"
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    own |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own | OF_OTHERS:
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not (of_self and node.attr in inherited(name)):
                yield f"{name}:{node.lineno} reads {ast.unparse(node)}"


def inherited(name: str) -> set[str]:
    """Private names that a class of this module may have from its bases."""
    found: set[str] = set()
    for module in edges(name):
        for node in ast.walk(TREES[module]):
            if isinstance(node, ast.ClassDef):
                found |= {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                found |= {
                    n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
                }
    return found


def test_no_private_name_of_another_module():
    assert [use for name in MODULES for use in private_uses(name)] == []


def listed(name: str) -> set[str]:
    """The names in ``__all__`` of a module."""
    for node in TREES[name].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def test_modules_list_what_others_import():
    """``__all__`` is the interface of a module, which a reader finds at its top."""
    found = [(name, module, own) for name in MODULES for module, own, _ in imports(name) if own and module in MODULES]
    is_folder = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert [use for use in found if use[1] not in is_folder and use[2] not in listed(use[1])] == []


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_short(name):
    lines = MODULES[name].read_text().count("\n")
    reason = re.search(r"Longer than 300 lines because", ast.get_docstring(TREES[name]) or "")
    assert lines <= LONGEST or reason, f"{name} has {lines} lines and its docstring gives no reason"


def any_annotations(tree: ast.AST) -> int:
    """How many arguments, results and variables are annotated as `Any` alone."""
    count = 0
    for node in ast.walk(tree):
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        count += sum(isinstance(a, ast.Name) and a.id == "Any" for a in annotations)
    return count


def test_few_annotations_are_any():
    counts = {name: any_annotations(tree) for name, tree in TREES.items()}
    most = sorted(((count, name) for name, count in counts.items() if count), reverse=True)
    assert sum(counts.values()) < MOST_ANY, most[:15]
