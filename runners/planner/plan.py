"""--mode=plan: memory, collectives and step time of an experiment on a machine that need not be attached."""

from registry.experiment import Experiment
from runners.planner.budget import Budget
from runners.planner.cost import cost
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
    """Compiles and prints the plan, writes plan.json and plan.html; returns exit code 1 if it does not fit."""
    devices = machine.devices(experiment)
    session = Session(machine.placed(experiment, len(devices)), devices)
    session.show_mesh()
    make_folder(folder)
    content = cost(session, machine, step, explained=True)
    if budget is not None and machine.chip is not None:
        content["budget"] = budget.of(content, machine.chip.flops)
    show(content)
    write(content, experiment, folder)
    print(f"Written: {folder / 'plan.json'} and {folder / 'plan.html'}")
    return 1 if content["fits"] is False else 0
