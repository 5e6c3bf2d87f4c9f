"""Types of the values in records of experiments and runs, which are checked when a file is read. No jax."""

import datetime
from typing import Annotated, Any, TypedDict

from tasks.storage.json_values import Count

Shape = list[Count]


class Knob(TypedDict):
    """A knob of an experiment."""

    value: str  # source code of its value
    owner: str  # the class or flag that sets it


class _WeightOfAllVersions(TypedDict):
    path: str
    shape: Shape
    dtype: str
    spec: str
    role: str
    init: str
    stddev: float
    rate: float
    decay: bool
    bytes: Count
    bytes_per_device: Count


class Weight(_WeightOfAllVersions, total=False):
    """A row of the weight table."""

    slot_bytes_per_device: Count
    method: str
    slot_spec: str


class _Parameters(TypedDict):
    parameters: Count


class Totals(_Parameters, total=False):
    """Sums over the weight table."""

    bytes: Count
    bytes_per_device: Count
    gradient_bytes_per_device: Count
    optimizer_bytes_per_device: Count


class _Checkout(TypedDict):
    digest: str
    commit: str | None
    dirty: bool | None


class Code(_Checkout, total=False):
    """A package and its checkout."""

    version: str | None


class Data(TypedDict("Described", {"is": str}), total=False):
    """An input or a vocabulary: its description and fingerprint."""

    fingerprint: str | None
    is_text: bool


class End(TypedDict):
    """How a start ended."""

    at: datetime.datetime | None
    step: Count
    reason: str


class Devices(TypedDict):
    """The devices of a start."""

    count: Count
    kind: str
    processes: Count


class _StartTime(TypedDict):
    started: datetime.datetime


class Start(_StartTime, total=False):
    """A start of training."""

    step: Count
    command: list[str]
    code: dict[str, Code]
    versions: dict[str, str]
    experiment: str
    smoke: bool
    overrides: list[str]
    data: dict[str, Data]
    ended: End | None
    devices: Devices


class _Source(TypedDict):
    workdir: str
    step: Count


class ParentRun(_Source, total=False):
    """The run that the first weights come from."""

    path: str
    experiment: str
    overrides: list[str]
    fingerprint: str
    code: dict[str, Code] | None
    optimizer: bool
    branch: bool


class ParentFile(TypedDict):
    """The file that the first weights come from."""

    file: str
    format: str


class Phase(TypedDict):
    """A phase of a run (registry.records.phases)."""

    updates: tuple[Count, Count]
    rows: Count
    positions: Count
    learning_rate: tuple[float, float]
    knobs: dict[str, str]
    config: dict[str, str | None]


class _Experiment(TypedDict):
    experiment: str
    knobs: dict[str, Knob]
    overrides: list[str]


class Record(_Experiment, total=False):
    """experiment.json of a run folder, also of earlier versions; further keys may have any value."""

    smoke: bool
    config: dict[str, str]
    weights: list[Weight]
    totals: Totals
    mesh: dict[str, Annotated[int, 1]]
    phases: list[Phase]
    doc: str
    fiddle: dict[str, dict[str, Any]]
    vocabulary: Data | None
    versions: dict[str, str]
    code: dict[str, Code]
    command: list[str]
    parent: ParentRun | ParentFile | None
    starts: list[Start]
