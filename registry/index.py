"""Index of experiments, read from source text: nothing is imported, so listing takes milliseconds."""

import ast
import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layers.errors import UsageError, file_line

FAMILIES = Path(__file__).parent / "experiments"
TEMPLATES = Path(__file__).parent / "templates"
ENTRY_POINTS = "vortaro.experiments"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A registered class as declared in its source text."""

    key: str  # "tiny.StdlibTiny"
    module: str  # module to import
    base: str  # name of the class it extends
    doc: str  # first line of its docstring
    mesh: tuple[int, ...]  # DEVICE_MESH_SHAPE, its own or inherited
    meshes: dict[str, tuple[int, ...]]  # MESHES, its own or inherited; none if a class below it states `mesh`
    place: str  # file and line of the class

    @property
    def cls(self) -> str:
        """Name of the class without its module."""
        return self.key.rpartition(".")[2]


@functools.cache
def entries() -> dict[str, Entry]:
    """Returns all entries by key: Vortaro's own families, and families that installed packages declare by entry point.

    Raises:
      UsageError: an entry point cannot be found, or two classes have one name.
    """
    modules = _modules("registry.experiments", FAMILIES)
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            spec = importlib.util.find_spec(point.value)
        except Exception as error:  # importing a parent package of the module can fail in any way
            where = point.dist.name if point.dist else "an installed package"
            raise UsageError(f"The entry point '{point.name}' of {where} cannot be found: {error}.") from error
        if spec is not None and spec.origin is not None:
            modules[point.value] = Path(spec.origin)
    bases = _modules("registry.templates", TEMPLATES)
    nodes = {module: list(_classes(path)) for module, path in (bases | modules).items()}
    classes = {(module, node.name): node for module in nodes for node in nodes[module]}
    found: dict[str, Entry] = {}
    for module, path in modules.items():
        for node in filter(_is_registered, nodes[module]):
            entry = _entry(module, path, node, classes)
            if entry.key in found:
                raise two_of_one_name(entry.key, found[entry.key].place, entry.place)
            found[entry.key] = entry
    return found


def _modules(package: str, folder: Path) -> dict[str, Path]:
    """Returns the files of a package's modules, by module name."""
    return {f"{package}.{path.stem}": path for path in sorted(folder.glob("[!_]*.py"))}


def two_of_one_name(key: str, first: str, second: str) -> UsageError:
    """Returns the error for two registered classes with one key, with their positions."""
    return UsageError(f"Two experiments have the name '{key}': {first} and {second}. Rename one of them.")


def count(path: Path, name: str) -> int:
    """Returns the number of registered classes of that name in a file, at any depth; 0 if the file does not exist."""
    nodes = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef))
    return sum(node.name == name and _is_registered(node) for node in nodes)


_Classes = dict[tuple[str, str], ast.ClassDef]


def _classes(path: Path) -> Iterator[ast.ClassDef]:
    yield from (node for node in _tree(path).body if isinstance(node, ast.ClassDef))


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError):
        return ast.Module([], [])  # resolving the module reports the syntax error


def _is_registered(node: ast.ClassDef) -> bool:
    return any(ast.unparse(decorator).rpartition(".")[2] == "register" for decorator in node.decorator_list)


def _base(node: ast.ClassDef) -> str:
    return ast.unparse(node.bases[0]).rpartition(".")[2] if node.bases else ""


def _entry(module: str, path: Path, node: ast.ClassDef, classes: _Classes) -> Entry:
    doc = (ast.get_docstring(node) or "").partition("\n")[0]
    key = f"{module.removeprefix('registry.experiments.')}.{node.name}"
    place = file_line(str(path), node.decorator_list[0].lineno)
    mesh = tuple(_stated({"DEVICE_MESH_SHAPE"}, module, node, classes).get("DEVICE_MESH_SHAPE") or (1, 1))
    meshes = _stated({"DEVICE_MESH_SHAPE", "MESHES"}, module, node, classes).get("MESHES")
    return Entry(key, module, _base(node), doc, mesh, meshes if isinstance(meshes, dict) else {}, place)


def _stated(knobs: set[str], module: str, node: ast.ClassDef | None, classes: _Classes) -> dict[str, Any]:
    """Returns the values of knobs in the nearest class whose body states any of them; None for one that is computed."""
    while node is not None:
        found: dict[str, Any] = {}
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if knobs & {*names} and isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
                found |= dict.fromkeys(knobs & {*names})
                with contextlib.suppress(ValueError, TypeError):
                    found |= dict.fromkeys(knobs & {*names}, ast.literal_eval(statement.value))
        if found:
            return found
        base = _base(node)
        elsewhere = [other for (_, name), other in classes.items() if name == base]
        node = classes.get((module, base)) or (elsewhere[0] if elsewhere else None)
    return {}
