"""Which experiments there are, read from source text: nothing is imported, so listing takes milliseconds."""

import ast
import dataclasses
import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from layers.errors import UsageError

FAMILIES = Path(__file__).parent / "experiments"
ENTRY_POINTS = "vortaro.experiments"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A registered class, as its source text states it."""

    key: str  # "tiny.StdlibTiny"
    module: str  # what to import
    base: str  # name of the class it extends
    doc: str  # first line of its docstring
    mesh: tuple[int, ...]  # DEVICE_MESH_SHAPE, its own or inherited

    @property
    def cls(self) -> str:
        """Name of the class alone."""
        return self.key.rpartition(".")[2]


@functools.cache
def entries() -> dict[str, Entry]:
    """All entries by key: our own families and those that installed packages announce by entry point."""
    modules = [(f"registry.experiments.{path.stem}", path) for path in sorted(FAMILIES.glob("[!_]*.py"))]
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            spec = importlib.util.find_spec(point.value)
        except ImportError as error:
            where = point.dist.name if point.dist else "an installed package"
            raise UsageError(f"The entry point '{point.name}' of {where} leads nowhere: {error}.") from error
        if spec is not None and spec.origin is not None:
            modules.append((point.value, Path(spec.origin)))
    classes = {}
    for module, path in modules:
        classes.update({(module, node.name): node for node in _classes(path)})
    found = (_entry(module, node, classes) for (module, _), node in classes.items() if _is_registered(node))
    return {entry.key: entry for entry in found}


_Classes = dict[tuple[str, str], ast.ClassDef]


def _classes(path: Path) -> Iterator[ast.ClassDef]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, OSError):
        return  # resolving the module says what is wrong with it
    yield from (node for node in tree.body if isinstance(node, ast.ClassDef))


def _is_registered(node: ast.ClassDef) -> bool:
    return any(ast.unparse(decorator).rpartition(".")[2] == "register" for decorator in node.decorator_list)


def _base(node: ast.ClassDef) -> str:
    return ast.unparse(node.bases[0]).rpartition(".")[2] if node.bases else ""


def _entry(module: str, node: ast.ClassDef, classes: _Classes) -> Entry:
    doc = (ast.get_docstring(node) or "").partition("\n")[0]
    key = f"{module.removeprefix('registry.experiments.')}.{node.name}"
    return Entry(key, module, _base(node), doc, _mesh(module, node, classes))


def _mesh(module: str, node: ast.ClassDef | None, classes: _Classes) -> tuple[int, ...]:
    while node is not None:
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if "DEVICE_MESH_SHAPE" in names and isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
                return tuple(ast.literal_eval(statement.value))
        base = _base(node)
        elsewhere = [other for (_, name), other in classes.items() if name == base]
        node = classes.get((module, base)) or (elsewhere[0] if elsewhere else None)
    return (1, 1)
