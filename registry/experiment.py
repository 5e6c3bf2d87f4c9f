"""Experiments: classes whose UPPER_CASE attributes are knobs, and whose methods return fresh Fiddle configs."""

import contextlib
import contextvars
import functools
import inspect
import math
import os
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import fiddle as fdl

from layers.errors import UsageError, did_you_mean, file_line
from layers.roots import is_ours
from layers.specs import P, Specs, axes_of
from registry import index
from registry.earlier.renamed import knob_advice
from registry.layout import Layout
from registry.layouts import LAYOUTS, layout_of
from registry.meshes import DeviceOrder, fitting_mesh, folded, parse_hardware, require_across, require_mesh
from registry.values import convert, is_mapping

REGISTRY: dict[str, type["Experiment"]] = {}
ENTRIES, TEMPLATES = "registry.experiments.", "registry.templates."
_DEFERS = contextvars.ContextVar("defers", default=False)
_SETTER = contextvars.ContextVar("setter", default="derive()")


class Experiment:
    """Base of all experiments.

    A knob is an UPPER_CASE class attribute. An annotation declares it (`NUM_LAYERS: int = 4`); subclasses set it
    without one (`NUM_LAYERS = 64`), and may not set names that no base declares. Values derived from knobs are
    properties. LAYOUT names a table with the placement of every weight; WEIGHTS and ACTIVATIONS hold the rows that
    differ from it. A subclass states rows by `WEIGHTS = Specs(...)`, which are added to those of its bases; rows for
    weights of a user's own layers need the annotation (`WEIGHTS: Specs = ...`).

    Raises (when a subclass is made):
      UsageError: an undeclared knob or row, or a value of the wrong type or of a mutable type.
    """

    # Placement
    MESH_AXES: tuple[str, ...] = ("data", "model")  # names of the device mesh's axes
    DEVICE_MESH_SHAPE: tuple[int, ...] = (1, 1)  # devices along each axis; a single -1 takes all that remain
    DCN_MESH_SHAPE: tuple[int, ...] | None = None
    """the factor of each size of DEVICE_MESH_SHAPE that lies across slices of TPUs or hosts of GPUs, over the network;
    None: slices along the first axis, hosts in the order of their devices"""
    MESHES: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """DEVICE_MESH_SHAPE by machine, such as {"v5e:16x16": (16, 16), "h100:8x8": (8, 8)}; others have
    DEVICE_MESH_SHAPE, as have all if a subclass or --set states it"""
    DEVICE_ORDER: DeviceOrder = "auto"  # how devices are ordered in the mesh; "auto" follows the machine's links
    LAYOUT: str = "fully_sharded"  # placement of all weights and activations: a name in registry.layouts
    SEQUENCE_AXIS: str | None = None  # a further mesh axis over which the positions of rows are split; None: none
    STACK: P = P(None)  # how the layers of stacks are split: P("stage") makes the devices of that axis a pipeline
    WEIGHTS: Specs = Specs()  # placement of weights that differs from the layout's, or that it lacks
    ACTIVATIONS: Specs = Specs()  # placement of activations that differs from the layout's; `tokens_bs` is the batch

    # Optimization
    SEED: int = 0  # seed of initial weights, data order and dropout

    overrides: ClassVar[tuple[str, ...]] = ()  # the --set values that made this class from the registered one
    smoke: ClassVar[bool] = False  # reduced by Smoke(); its mesh is folded onto the available devices
    _fault: ClassVar[UsageError | None] = None  # deferred error of the class, raised at its first use
    _place: ClassVar[tuple[str, int]]  # file and line that registered the class
    _own_rows: ClassVar[dict[str, Specs]] = {}  # the rows of WEIGHTS and ACTIVATIONS that the class itself states

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        try:
            _protect_mappings(cls, types := knob_types(cls))
            _require_valid(cls, types)
            _merge_rows(cls)
        except UsageError as error:
            _raise_or_defer(cls, error)

    def Task(self) -> fdl.Config:
        """Returns the config of the task: model, loss and optimizer."""
        raise NotImplementedError

    def Train(self) -> fdl.Config:
        """Returns the config of training: data and number of steps."""
        raise NotImplementedError

    def Test(self) -> fdl.Config:
        """Returns the config of evaluation: the splits to evaluate on."""
        raise NotImplementedError

    @classmethod
    def Smoke(cls) -> type[Self]:
        """Returns a small version of the experiment: the same table rows, and data that needs no download."""
        raise NotImplementedError

    @classmethod
    def derive(cls, **knobs: Any) -> type[Self]:
        """Returns a subclass of the same name with these knobs; `knobs_set_by` sets their recorded owner."""
        body = {"__doc__": cls.__doc__, "__module__": cls.__module__, "set_by": _SETTER.get(), **knobs}
        made: Any = type(cls.__name__, (cls,), body)
        return made

    @property
    def layout(self) -> Layout:
        """The layout, with the experiment's own rows.

        Raises:
          UsageError: it is unknown, or names axes that the mesh lacks.
        """
        return layout_of(self)

    @property
    def stage_axis(self) -> str | None:
        """The mesh axis that STACK names; None without a pipeline."""
        return next((axis for entry in self.STACK for axis in axes_of(entry)), None)

    @property
    def phases(self) -> "tuple[Experiment, ...]":
        """The experiments of the run's phases, in order; itself alone if it has none."""
        return (self,)

    phase: ClassVar[int] = 0  # the number of the phase that it is the experiment of; the first one is that of the run

    positions_split_weights = True  # SEQUENCE_AXIS also splits what the axes of the batch's rows split of weights

    @property
    def specs(self) -> Specs:
        """The placement of all weights."""
        return self.layout.weights

    @classmethod
    def knobs(cls) -> dict[str, Any]:
        """Returns every knob with its value, in the order of declaration."""
        return {name: getattr(cls, name) for name in knob_types(cls)}

    @property
    def num_devices(self) -> int:
        """Number of devices of the declared mesh, with -1 counted as 1."""
        return math.prod(self.mesh_shape().values())

    def mesh_shape(self, devices: int | None = None) -> dict[str, int]:
        """Returns axis sizes for a number of devices; None uses the declared shape, with -1 counted as 1.

        Raises:
          UsageError: the shape does not match its axes' names, or the number of devices.
        """
        shape, axes = tuple(self.DEVICE_MESH_SHAPE), tuple(self.MESH_AXES)
        if len(shape) != len(axes):
            raise UsageError(f"DEVICE_MESH_SHAPE = {shape} and MESH_AXES = {axes} differ in length. Change one.")
        if shape.count(-1) > 1 or any(size < 1 and size != -1 for size in shape):
            raise UsageError(f"DEVICE_MESH_SHAPE sizes are at least 1, and at most one is -1 (got {shape}).")
        fixed = math.prod(size for size in shape if size != -1)
        if devices is not None and self.smoke and owner(type(self), "DEVICE_MESH_SHAPE") != "--set":
            return dict(zip(axes, folded(shape, devices), strict=True))
        if devices is not None and (devices % fixed if -1 in shape else devices != fixed):
            sizes = ",".join(map(str, folded(shape, devices)))
            need = f"a multiple of {fixed}" if -1 in shape else str(fixed)
            small = "" if self.smoke else "--smoke for a small form of it, --mode=plan for its cost, "
            raise UsageError(
                f"{cls_key(type(self))} needs {need} devices (DEVICE_MESH_SHAPE = {shape}, got {devices}). Try {small}"
                f"--host_devices={fixed} for virtual devices, or --set=DEVICE_MESH_SHAPE={sizes}."
            )
        rest = 1 if devices is None else devices // fixed
        return {axis: rest if size == -1 else size for axis, size in zip(axes, shape, strict=True)}

    def across(self, mesh: Mapping[str, int]) -> dict[str, int] | None:
        """Returns the factor of each axis of a mesh that lies across slices or hosts; None if no knob states it.

        Raises:
          UsageError: DCN_MESH_SHAPE does not divide the mesh.
        """
        is_folded = self.smoke and owner(type(self), "DCN_MESH_SHAPE") != "--set"
        return None if self.DCN_MESH_SHAPE is None or is_folded else require_across(self.DCN_MESH_SHAPE, mesh)

    @property
    def machine_meshes(self) -> Mapping[str, tuple[int, ...]]:
        """MESHES; empty if --set or a class below it states DEVICE_MESH_SHAPE, or if the mesh of a small one folds."""
        nearest = next(cls for cls in type(self).__mro__ if {"MESHES", "DEVICE_MESH_SHAPE"} & set(vars(cls)))
        return self.MESHES if "MESHES" in vars(nearest) and not self.smoke else {}

    def on(self, chip: str, devices: int, granules: int) -> "Experiment":
        """Returns the experiment with the mesh that `machine_meshes` has for a machine; itself without one.

        Args:
          chip: the name of its chips.
          devices: the number of its devices.
          granules: the number of its slices or hosts. DCN_MESH_SHAPE applies to a mesh of as many.
        """
        name = fitting_mesh(self.machine_meshes, chip, devices, granules)
        return self if name is None else self.with_mesh_of(name, granules)

    def with_mesh_of(self, name: str, granules: int | None = None) -> "Experiment":
        """Returns the experiment with the mesh of this name in MESHES.

        Args:
          name: the machine.
          granules: the number of slices or hosts if it differs from the name's. A DCN_MESH_SHAPE of another number is
            dropped, unless --set states it.
        Raises:
          UsageError: the name is malformed, or the mesh does not fit its devices.
        """
        require_mesh(name, self.MESHES[name], self.MESH_AXES)
        knobs: dict[str, Any] = {"DEVICE_MESH_SHAPE": self.MESHES[name]}
        across, count = self.DCN_MESH_SHAPE, granules or parse_hardware(name, f"MESHES['{name}']").granules
        if across is not None and math.prod(across) != count and owner(type(self), "DCN_MESH_SHAPE") != "--set":
            knobs["DCN_MESH_SHAPE"] = None
        with knobs_set_by(f"MESHES['{name}']"):
            return type(self).derive(**knobs)()


_SPEC_TABLES = {"WEIGHTS": "weights", "ACTIVATIONS": "activations"}


def known_rows(cls: type[Experiment], table: str) -> Specs:
    """Returns the rows of WEIGHTS or ACTIVATIONS of a class: its layout's, and those that it and its bases state."""
    layout = LAYOUTS.get(cls.LAYOUT)
    return (getattr(layout, _SPEC_TABLES[table]) if layout else Specs()) | getattr(cls, table)


def stated_rows(cls: type[Experiment], table: str) -> list[str]:
    """Returns the rows of WEIGHTS or ACTIVATIONS that the entry itself or --set states, without those of its bases."""
    own = cls.__mro__[: cls.__mro__.index(written_classes(cls)[0]) + 1]
    return list(dict.fromkeys(row for base in reversed(own) for row in vars(base).get("_own_rows", {}).get(table, ())))


def _merge_rows(cls: type[Experiment]) -> None:
    """Adds the rows of spec tables that a class states to those of all its bases."""
    cls._own_rows = {}
    for table in _SPEC_TABLES:
        inherited = Specs()
        for base in reversed(cls.__mro__[1:]):
            inherited |= vars(base).get("_own_rows", {}).get(table, Specs())
        stated = vars(cls).get(table, Specs())
        own = Specs(**{row: spec for row, spec in stated.items() if inherited.get(row) != spec})
        cls._own_rows[table] = own
        if getattr(cls, table) != inherited | own:
            setattr(cls, table, inherited | own)


def _protect_mappings(cls: type[Experiment], types: dict[str, Any]) -> None:
    """Makes the dicts that a class states for knobs of type Mapping unchangeable, because subclasses share them."""
    for name in [name for name, hint in types.items() if is_mapping(hint) and isinstance(vars(cls).get(name), dict)]:
        setattr(cls, name, MappingProxyType(vars(cls)[name]))


def _require_valid(cls: type[Experiment], types: dict[str, Any]) -> None:
    """Raises a UsageError for the first knob, row or other attribute that a class may not set."""
    declared = inspect.get_annotations(cls)
    known = [knob for base in cls.__mro__[1:] for knob in inspect.get_annotations(base) if knob.isupper()]
    mixins = [base for base in cls.__mro__ if not issubclass(base, Experiment) and base is not object]
    attributes = [(each, name, value) for each in (cls, *mixins) for name, value in vars(each).items()]
    for base, name, value in attributes:
        if not name.isupper():
            _require_no_shadow(base, name, value, types)
            continue
        if name not in known and name not in declared:
            advice = knob_advice(name) or did_you_mean(name, known)
            raise UsageError(
                f"{base.__name__} sets {name}, which no base declares. {advice} (A new knob is "
                f"declared by its annotation: `{name}: {type(value).__name__} = ...`.)"
            )
        if isinstance(value, list | dict | set):
            raise UsageError(f"{base.__name__}.{name} = {value!r} can be changed in place. Use a tuple or Specs(...).")
        convert(value, types[name], f"{base.__name__}.{name}")
        if base is cls and isinstance(value, Specs) and name not in declared:
            rows = {row for base in cls.__mro__[1:] if issubclass(base, Experiment) for row in known_rows(base, name)}
            for row in set(value) - rows:
                raise UsageError(
                    f"{cls.__name__}.{name} has a row '{row}' that neither a layout nor a base has. "
                    f"{did_you_mean(row, rows)} (Rows for weights of your own layers are declared by the annotation: "
                    f"`{name}: Specs = ...`.)"
                )


def _require_no_shadow(cls: type, name: str, value: Any, types: dict[str, Any]) -> None:
    """Rejects `num_heads = 8`, which sets no knob and hides a property of that name."""
    is_plain = not callable(value) and not hasattr(type(value), "__get__")
    if name.upper() in types and is_plain and not hasattr(Experiment, name):
        knob = name.upper()
        raise UsageError(f"{cls.__name__} sets {name}, which is not a knob. Write {knob} = {value!r}.")


def _raise_or_defer(cls: type[Experiment], error: UsageError) -> None:
    """Raises the error, or defers it until the class is used, so that the rest of its module can be imported."""
    if not _DEFERS.get() or not is_written(cls):
        raise error
    cls._fault = type(error)(f"{file_line(*_calling_line())}: {error}")


@contextlib.contextmanager
def faults_deferred() -> Iterator[None]:
    """Defers errors of the classes defined inside; `require_sound` raises them."""
    token = _DEFERS.set(True)
    try:
        yield
    finally:
        _DEFERS.reset(token)


def require_sound(cls: type[Experiment]) -> type[Experiment]:
    """Returns the class; raises the UsageError deferred for it or for one of its bases."""
    if cls._fault is not None:
        raise cls._fault
    return cls


def knob_types(cls: type[Experiment]) -> dict[str, Any]:
    """Returns the declared type of every knob, bases first."""
    types: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, Experiment) and inspect.get_annotations(base):
            types |= _own_types(base)
    return types


@functools.cache  # annotations do not change, and those made by `derive` have none
def _own_types(cls: type[Experiment]) -> dict[str, Any]:
    """Returns the declared type of every knob that a class itself declares."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in inspect.get_annotations(cls) if name.isupper()}


def declared_value(cls: type[Experiment], knob: str) -> Any:
    """Returns the value of a knob where its annotation first declares it: the template's."""
    base = next(base for base in reversed(cls.__mro__) if knob in inspect.get_annotations(base))
    return vars(base).get(knob)


def written_classes(cls: type[Experiment]) -> list[type[Experiment]]:
    """Returns the experiments that a class extends, itself included, nearest first, without those made by `derive`."""
    return [base for base in cls.__mro__ if issubclass(base, Experiment) and is_written(base)]


def doc_line(cls: type) -> str:
    """Returns the first line of a class's docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]


def is_written(cls: type) -> bool:
    """Returns whether the class is defined in source text, not made by `derive`."""
    return "set_by" not in vars(cls)


@contextlib.contextmanager
def knobs_set_by(setter: str) -> Iterator[None]:
    """Makes `derive` record `setter` as the owner of the knobs that it sets inside: a flag, or "Smoke()"."""
    token = _SETTER.set(setter)
    try:
        yield
    finally:
        _SETTER.reset(token)


def owner(cls: type[Experiment], knob: str) -> str:
    """Returns the owner of `knob`: a class key, a flag such as "--set" or "--widths", "Smoke()" or "derive()"."""
    base = next(base for base in cls.__mro__ if knob in vars(base))
    return vars(base).get("set_by") or cls_key(base)


def register(cls: type[Experiment]) -> type[Experiment]:
    """Registers an experiment under `family.Class`; a class decorator.

    Raises:
      UsageError: the class has no docstring, or another class has its name.
    """
    key, cls._place = cls_key(cls), _calling_line()
    if not vars(cls).get("__doc__"):
        needs = f"{cls.__name__} needs a docstring. Describe it in one sentence for `registry list`."
        _raise_or_defer(cls, UsageError(needs))
    before = REGISTRY.get(key)
    if before is not None and not _is_again(cls, before):
        raise index.two_of_one_name(key, file_line(*before._place), file_line(*cls._place))
    if not is_ours(cls.__module__) and (entry := index.entries().get(key)) and entry.module != cls.__module__:
        raise index.two_of_one_name(key, entry.place, file_line(*cls._place))
    REGISTRY[key] = cls
    return cls


def _is_again(cls: type[Experiment], before: type[Experiment]) -> bool:
    """Returns whether `cls` is the same class as `before`, imported a second time or after an edit of its file."""
    same_name = (cls.__module__, cls.__qualname__) == (before.__module__, before.__qualname__)
    (file, line), (file_before, line_before) = cls._place, before._place
    moved = file == file_before and line != line_before
    return same_name and not (moved and index.count(Path(file), cls.__name__) > 1)


def _calling_line() -> tuple[str, int]:
    """Returns the file and line that called this module."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals is globals():
        frame = frame.f_back
    return os.path.abspath(frame.f_code.co_filename), frame.f_lineno


def cls_key(cls: type[Experiment]) -> str:
    """Returns `tiny.StdlibTiny` for Vortaro's own families, `their.module.Name` for a user's."""
    module = cls.__module__.removeprefix(ENTRIES)
    return f"{module.removeprefix('registry.') if module.startswith(TEMPLATES) else module}.{cls.__name__}"
