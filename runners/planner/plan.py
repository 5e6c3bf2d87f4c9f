"""--mode=plan: memory, collectives and step time of an experiment on a machine that need not be attached."""

from typing import Any

from registry.experiment import Experiment
from registry.records.snapshot import flat_config
from runners.planner.budget import Budget
from runners.planner.cost import Plan, cost
from runners.planner.machine import Machine
from runners.planner.page import write
from runners.planner.programs.compilation import Step
from runners.planner.summary import show
from runners.reports.results import make_folder
from runners.session import Session
from tasks.storage.files import Place


def plan(
    experiment: Experiment, folder: Place, machine: Machine, step: Step = "train", budget: Budget | None = None
) -> int:
    """Compiles and prints the plan, writes plan.json and plan.html; returns exit code 1 if it does not fit.

    Each phase whose update differs from those before has a plan; a token is decoded by the last phase's model.
    """
    devices = machine.devices(experiment)
    session = Session(machine.placed(experiment, len(devices)), devices)
    session.show_mesh()
    does_not_fit, seen = False, []
    for phase in session.phases if step == "train" else session.phases[-1:]:
        if (program := _program(phase)) in seen:
            continue  # another phase has the same update
        seen.append(program)
        does_not_fit |= _plan(phase, machine, step, folder, budget)["fits"] is False
    return 1 if does_not_fit else 0


def _program(session: Session) -> tuple[Any, ...]:
    """Returns what the program of an update depends on."""
    task = {path: value for path, value in flat_config(session.experiment).items() if path.startswith("task.")}
    return task, session.train.input.shapes(), session.train.input.fields


def _plan(session: Session, machine: Machine, step: Step, folder: Place, budget: Budget | None) -> Plan:
    """Compiles, prints and writes the plan of one phase; later phases have a folder of their own in `folder`."""
    number = session.experiment.phase
    folder = folder / f"phase-{number}" if number else folder
    make_folder(folder)
    content = cost(session, machine, step, explained=True)
    if len(session.experiment.phases) > 1:
        content["phase"] = number
    if budget is not None and machine.chip is not None:
        content["budget"] = budget.of(content, machine.chip.flops)
    show(content)
    write(content, session.experiment, folder)
    print(f"Written: {folder / 'plan.json'} and {folder / 'plan.html'}")
    return content
