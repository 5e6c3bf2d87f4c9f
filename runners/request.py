"""The request of a command: an experiment, a mode with its options, and a run folder."""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # these import JAX, which --help and the restart of the process do not wait for
    from registry.experiment import Experiment
    from runners.processes.coordination import ProcessGroup
    from runners.session import Session
    from runners.training.history import Start
    from tasks.storage.files import Place


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModeOptions:
    """Base of `Options` in every module of runners.modes: the flags of that mode."""

    several_processes: ClassVar[bool] = False  # whether several processes can run this mode together
    saves_on_sigterm: ClassVar[bool] = False  # whether SIGTERM makes all processes save the same step and exit
    needs_workdir: ClassVar[bool] = True
    reads_train: ClassVar[bool] = False  # whether it reads training data
    splits: ClassVar[tuple[str, ...]] = ()  # inputs of evaluation that it reads, by name

    def default_workdir(self, exp: str | None) -> str | None:
        """Returns the run folder if --workdir is not given; None if it must be given."""
        del exp
        return None


@dataclasses.dataclass(frozen=True)
class Request:
    """An experiment, and the flags that all modes share (runners.main)."""

    experiment: "Experiment"
    flags: argparse.Namespace
    processes: "ProcessGroup"

    @property
    def workdir(self) -> "Place":
        """The run folder; it may not exist yet."""
        from tasks.storage.files import place

        return place(self.flags.workdir)

    @property
    def start(self) -> "Start":
        """The command, for experiment.json."""
        from runners.training.history import start_of

        return start_of(self.flags, self.experiment)

    def session(self, options: ModeOptions, *, checkpoint: str | None = None) -> "Session":
        """Returns the experiment on the devices, after all checks of its data and of the other processes.

        Args:
          options: those of the mode, whose class names the data that it reads.
          checkpoint: last, best or a step, if the mode reads a checkpoint of the run folder. The session is that of the
            phase that it ends in.
        Raises:
          UsageError: processes differ, the vocabulary has changed, or the checkpoint or data is missing.
        """
        from runners.machine.compilation_cache import use_compilation_cache
        from runners.processes.consistency import require_same_data_everywhere, require_same_run
        from runners.session import Session
        from runners.training.checkpoints import require_checkpoints, session_of
        from runners.training.workdir import require_same_vocabulary

        folder = self.flags.workdir
        require_same_run(self.experiment, self.flags, self.processes)
        require_same_vocabulary(folder, self.experiment, allow_changes=self.flags.allow_changes)
        use_compilation_cache()
        session = Session(self.experiment, processes=self.processes)
        session.show_mesh()
        if checkpoint is not None:
            require_checkpoints(folder)
        session.require_data(train=options.reads_train, splits=options.splits)
        inputs = session.shared_inputs(train=options.reads_train, splits=options.splits)
        require_same_data_everywhere(inputs, self.processes)
        return session if checkpoint is None else session_of(session, self.workdir, checkpoint)

    def open_workdir(self, session: "Session", **chosen: Any) -> "Place":
        """Returns the run folder, created if it does not exist (runners.training.workdir.open_workdir)."""
        from runners.session import on_devices
        from runners.training.workdir import open_workdir

        chosen = {"allow_changes": self.flags.allow_changes, "start": self.start, "processes": self.processes, **chosen}
        # The experiment of the command: that of the session may be changed further, by a window.
        experiment = on_devices(self.experiment, list(session.mesh.devices.flat))
        return open_workdir(self.flags.workdir, experiment, session.mesh_shape, **chosen)
