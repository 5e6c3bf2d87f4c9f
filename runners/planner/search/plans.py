"""Plans of many cases of an experiment: bounds, one compilation per program, and a file of results to resume from."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from layers.errors import UsageError, first_line
from registry.build import build, config_of
from registry.experiment import Experiment
from registry.records.snapshot import placed_task
from registry.tool import render
from runners.mesh import granule_numbers, granules, make_mesh
from runners.planner.cost import Plan, cost, from_table
from runners.planner.machine import Machine
from runners.planner.programs.compilation import Step, Trace, lower_step, trace_step
from runners.planner.search.best_first import Excluded, Rank
from runners.planner.search.bounds import table_bounds
from runners.planner.search.cases import Case
from runners.planner.search.exchanges import Update, weights_with_gradient
from runners.planner.topologies import planned_cudnn
from runners.reports.results import Key, Results, experiment_hash
from runners.session import Session

Lines = dict[str, Any]
TRACES = 32  # that are kept; one of a large model takes some megabytes
NOT_COMPILED = (UsageError, NotImplementedError, jax.errors.JaxRuntimeError)


class Plans:
    """Plans of an experiment's cases on the devices of a machine with a chip (a Problem of best_first.py).

    Lines of the result file have the key of a case (its experiment, mesh, machine and JAX version) and a `part`:
    "bounds", before compilation, or "plan". `program` is the hash of the lowered program; a case with the program of
    another one takes its figures.
    """

    def __init__(self, experiment: Experiment, machine: Machine, step: Step, devices: list[Any], results: Results):
        assert machine.chip is not None
        self._experiment, self._machine, self._devices = experiment, machine, devices
        self._step: Step = step
        self._chip, self._results = machine.chip, results
        self._tables: dict[Any, Lines] = {}
        self._hashes: dict[tuple[str, ...], Key] = {}
        self._traces: dict[tuple[str, ...], tuple[Session, Trace]] = {}  # the last ones, by the case's `sets`
        self._model: dict[str, Any] | None = None  # of the update of any case
        self.compiled = 0  # programs that this object has compiled
        self.shared = 0  # cases whose program another case has, too

    @property
    def bounds(self) -> Sequence[Callable[[Case], Rank | Excluded]]:
        """Lower bounds of (step time, sum of all roofline times): from the weight table, and from the trace."""
        return self._by_table, self._by_trace

    def exchanges(self, case: Case) -> Rank:
        """Returns lower bounds of the times of a case's exchanges, in seconds: of the longest, and of all together."""
        found = self._bounds(case)
        return found["exchange_seconds"], found["exchanges_seconds"]

    def _by_table(self, case: Case) -> Rank | Excluded:
        found = self._bounds(case)
        if "reason" in found:
            return Excluded(found["reason"])
        capacity = self._machine.capacity
        assert capacity is not None
        if found["bytes"] > capacity:
            return Excluded(over_capacity(found["bytes"], capacity))
        return _longest_and_sum(found)

    def _by_trace(self, case: Case) -> Rank | Excluded:
        key = self.key(case, "bounds")
        found = self._results.find(key) or self._results.add(key, self._traced(case))
        if "reason" in found:
            return Excluded(found["reason"])
        return _longest_and_sum(self._bounds(case), found["flops"] / (self._chip.flops * len(self._devices)))

    def complete(self, case: Case) -> tuple[Plan, Rank | Excluded]:
        """Returns the plan of a case, with `fits` and, if it cannot be compiled, `reason`."""
        try:
            key = self.key(case, "plan")
        except UsageError as error:  # without a config it has no key
            reason = first_line(error, 1000)
            return {"fits": False, "reason": reason}, Excluded(reason)
        found = self._results.find(key) or self._results.add(key, self._plan(case))
        return found, rank(found)

    def key(self, case: Case, part: str) -> Key:
        """Returns the key of a line of the result file; lines with another key are ignored."""
        name, machine = tuple(case.sets), self._machine
        if name not in self._hashes:
            experiment = case.of(self._experiment)
            self._hashes[name] = {"key": experiment_hash(experiment), "mesh": self._mesh(experiment)}
        return {
            "part": part,
            **self._hashes[name],
            "order": [self._experiment.DEVICE_ORDER, *(self._experiment.DCN_MESH_SHAPE or ())],
            "jax": jax.__version__,
            "machine": [machine.topology, self._chip.name, machine.virtual_devices, machine.memory_fraction],
            "of_step": self._step,
        }

    def _mesh(self, experiment: Experiment) -> dict[str, int]:
        return experiment.mesh_shape(len(self._devices))

    def _bounds(self, case: Case) -> Lines:
        """Returns the bounds from the weight table, which rematerialization does not change."""
        knobs = tuple((name, value) for name, value in case.knobs.items() if name != "REMAT")
        if knobs not in self._tables:
            try:
                experiment = case.of(self._experiment)
                mesh = self._mesh(experiment)
                granules = self._granules(experiment, mesh)
                found = table_bounds(self._update(experiment, mesh), mesh, granules, self._chip, self._step)
                self._tables[knobs] = dataclasses.asdict(found)
            except NOT_COMPILED as error:
                self._tables[knobs] = {"reason": first_line(error, 1000)}
        return self._tables[knobs]

    def _update(self, experiment: Experiment, mesh: Mapping[str, int]) -> Update:
        """Returns what decides a case's exchanges; all but its weight table is that of all cases."""
        task, table = placed_task(experiment, mesh)
        if self._model is None:
            source = build(config_of(experiment, "train"), "train").input
            rows, length = source.batch_size, source.seq_len
            width = np.dtype(getattr(experiment, "DTYPE", "bfloat16")).itemsize
            unroll = getattr(experiment, "UNROLL", 1)
            with planned_cudnn(self._machine.target):
                learned = weights_with_gradient(task, rows, length)
            self._model = {"with_gradient": learned, "tokens": rows * length, "width": width, "unroll": unroll}
        return Update(task=task, table=table, **self._model)

    def _granules(self, experiment: Experiment, mesh: Mapping[str, int]) -> list[int]:
        """Returns the number of the slice or host of each device, in the order of the mesh."""
        across = experiment.across(mesh)
        if len(granules(self._devices, across)) == 1:
            return [0] * len(self._devices)
        return granule_numbers(make_mesh(mesh, experiment.DEVICE_ORDER, self._devices, across), across)

    def _traced(self, case: Case) -> Lines:
        """Returns the bounds from the trace of a case; a decoding step is not traced, so its FLOPs are zero."""
        if self._step == "decode":
            return {"flops": 0}
        try:
            return {"flops": self._trace(case)[1].flops}
        except NOT_COMPILED as error:
            return {"reason": first_line(error, 1000)}

    def _trace(self, case: Case) -> tuple[Session, Trace]:
        """Returns the session and the trace of a case, those of its bound if that was computed a short time before."""
        name = tuple(case.sets)
        if name not in self._traces:
            session = Session(case.of(self._experiment), self._devices)
            self._traces[name] = session, trace_step(session, self._machine, self._step)
            while len(self._traces) > TRACES:
                del self._traces[next(iter(self._traces))]
        return self._traces[name]

    def _plan(self, case: Case) -> Plan:
        """Returns the plan of one case, or why it failed."""
        try:
            session, trace = self._trace(case)
            lowered = lower_step(session, self._machine, trace)
            program = hashlib.sha256(lowered.program.as_text().encode()).hexdigest()[:16]
            twin = self._results.find(_of_program(self.key(case, "plan")) | {"program": program})
            if twin is not None:
                self.shared += 1
                return _of_twin(twin, session, self._step) | {"program": program}
            self.compiled += 1
            result = cost(session, self._machine, self._step, lowered)
        except NOT_COMPILED as error:
            return {"fits": False, "reason": first_line(error, 1000)}
        if "compiler" in result:
            result["reason"] = result["compiler"]["message"]
        return result | {"program": program}


def _longest_and_sum(found: Lines, compute: float = 0.0) -> Rank:
    """Returns the lower bound of a rank from the bounds of the table and the time of computation."""
    memory = found["memory_seconds"]
    return max(compute, memory, found["exchange_seconds"]), compute + memory + found["exchanges_seconds"]


def over_capacity(least: int, capacity: int) -> str:
    """Returns a sentence on a state that is larger than the memory."""
    return f"weights and optimizer take {' of '.join(render.apart(least, capacity, render.size))}"


def rank(plan: Plan) -> Rank | Excluded:
    """Returns the sort key of a plan that fits: its step time, then the sum of all roofline times."""
    if not plan.get("fits"):
        return Excluded(plan.get("reason", "over the capacity"))
    return plan["roofline_step_seconds"], sum(plan["roofline"].values())


def _of_program(key: Key) -> Key:
    """Returns the part of a key that all cases with the same program share: all but the experiment."""
    return {name: value for name, value in key.items() if name != "key"}


def _of_twin(twin: Lines, session: Session, step: Step) -> Plan:
    """Returns the plan of a session whose program is that of another case."""
    own = {
        "experiment": session.name,
        "overrides": list(session.experiment.overrides),
        "memory_bytes_per_device": twin.get("memory_bytes_per_device", {})
        | from_table(session.task, session.table, session.mesh_shape, step),
    }
    return {name: value for name, value in twin.items() if name not in ("key", "compile_seconds")} | own
