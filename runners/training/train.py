"""Training: the loop of updates, with metrics, evaluation, checkpoints, signals and progress."""

import collections
import dataclasses
import os
import signal
import time
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from layers.attention.implementations import description, recorded
from layers.errors import UsageError, VortaroError
from registry.records.record import load
from registry.runs.metrics import EVALS, VALIDATION, WEIGHTS
from registry.runs.state import FINISHED
from runners.compiled_functions import Updates
from runners.evals import tables
from runners.evals.suite import suite_of
from runners.processes.watchdog import Watchdog
from runners.session import Session
from runners.training import report
from runners.training.announcement import announce, compiled, ended
from runners.training.checkpoints import Checkpoints
from runners.training.evaluate import evaluate, fetch
from runners.training.health import non_finite, replayed_update, slow_processes
from runners.training.history import Start, record_end, record_start
from runners.training.input_state import gathered, own, require_same_data
from runners.training.metrics_log import MetricsLog, NullMetricsLog, evaluations
from runners.training.origins.branch import branch
from runners.training.origins.warm_start import Origin, begin
from runners.training.profile import TraceWindow
from runners.training.progress import TrainingProgress, summary
from runners.training.window import weight_scalars, window_scalars
from tasks.batch import Batch
from tasks.metrics import TokenCount
from tasks.storage.files import Place

# Signals that request a run to save and stop. mpirun forwards SIGUSR1 immediately, and SIGTERM late.
NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

# Updates queued on the devices while one runs: devices do not wait for the host, and a signal waits for few updates.
AHEAD = 2
STACKS = "stacks"  # folder for the stacks of all threads if an update does not end
REPORT_EVERY = 20.0  # seconds between reports, each of which reads all metrics; the last one is always written

# Positions after which the device's token count is read: long before it overflows, and more than one update has.
READ_TOKENS = 2**31


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Options of a training run from the command line."""

    tensorboard: bool = True
    wandb: str | None = None  # W&B project
    until: int | None = None  # the step after which to save and stop; None: NUM_STEPS
    branch: tuple[str, int] | None = None  # the run folder and step of which a new run is a continuation
    profile_at: int | None = None  # traces `profile_steps` updates from this one on
    profile_steps: int = 10
    allow_changes: bool = False  # resumes although the data have changed
    start: Start = Start()  # the command, for experiment.json


def train(session: Session, workdir: Place, options: TrainOptions) -> int:
    """Trains to the last step or until a signal, in a folder locked for this run; returns the exit code.

    Raises:
      VortaroError: the run cannot continue, for example because the disk is full; its last checkpoint is intact.
    """
    try:
        session.processes.stacks = workdir / STACKS
        watchdog = Watchdog(session.processes, session.train.step_timeout)
        with session.placed(), watchdog.watching():
            return _Run(session, workdir, options, watchdog).run()
    except OSError as error:
        where = f" ('{error.filename}')" if error.filename else ""
        raise VortaroError(
            f"The run in '{workdir}' cannot continue ({error.strerror or error}{where}). Run the same command again to "
            f"resume from the last checkpoint."
        ) from error


class _Run:
    """One run of the training loop, with its train state on the devices and its host state in attributes."""

    def __init__(self, session: Session, workdir: Place, options: TrainOptions, watchdog: Watchdog):
        self.began = time.perf_counter()
        self.session, self.complete = session, session  # that of the current phase, and that of the complete run
        self.workdir, self.program = workdir, session.train
        self.processes, self.watchdog = session.processes, watchdog
        self.last = min(options.until or self.program.num_steps, self.program.num_steps)  # step at which to stop
        if options.profile_at is not None and not 1 <= options.profile_at <= self.program.num_steps:
            raise UsageError(f"--profile_at must be 1 to {self.program.num_steps} (got {options.profile_at}).")
        self.checkpoints = Checkpoints(workdir, self.program, processes=self.processes)
        restored = self.checkpoints.restore(session.abstract.state)
        self.origin: Origin | None = None  # of weights or the complete state, taken from another run
        self.extra: dict[str, Any] = {"tokens_seen": 0, "flops": 0, "input": None}
        if restored is not None:
            self.state, self.extra = restored
            if not options.allow_changes:
                require_same_data(self.extra["input"], self.program.input)
        elif options.branch is None:
            self.state, self.origin = begin(session)
        else:
            taken = branch(session, *options.branch, workdir, allow_changes=options.allow_changes)
            self.state, self.extra, self.origin = taken
        self.state = session.settle(self.state)
        is_new = restored is None and options.branch is None
        self.start = 0 if is_new else int(self.state.step)  # reading it waits for `begin`
        self.window_began, self.window_start, self.aside = time.perf_counter(), self.start, 0.0
        self.updating, self.paused = 0.0, None  # seconds of updates; the time at which other work has begun
        self.tokens, self.unread = self._tokens_so_far(), 0  # token count of the window, and positions since its read
        parent = None if self.origin is None else self.origin.parent
        record_start(workdir, session, options.start, step=self.start, parent=parent)
        self.log: MetricsLog | NullMetricsLog = NullMetricsLog()
        if self.processes.primary:
            outputs: Any = {"tensorboard": options.tensorboard, "wandb": options.wandb}
            config = load(workdir)["config"]
            self.log = MetricsLog(workdir, resume_at=self.start, began=options.start.began, config=config, **outputs)
        self.progress = TrainingProgress(self.program.num_steps, self.start)
        self.slow = slow_processes.SlowProcesses(self.processes, self.progress.print, self.log.write_event)
        self.trace = TraceWindow(workdir, options.profile_at if self.processes.primary else None, options.profile_steps)
        self.signal: int | None = None
        self.interrupted = False  # by Ctrl-C; a second one exits this process immediately
        self.shapes = collections.Counter[tuple[int, int]]()  # batch shapes in the current window of metrics
        self.pending: tuple[int, Any, Any] | None = None  # step, shapes and metrics of a window, still on the device
        self.under_way = collections.deque[jax.Array]()  # step numbers of updates that may not have ended
        self.saved = self.start if restored else -1
        self.loss: float | None = None  # validation loss, and the step it was measured at
        self.loss_step = -1
        self.report_written = self.began
        self.suites = [suite_of(phase, self.progress.print) for phase in session.phases]  # none may fail at a border
        self.evaluated = -1  # step at which the tasks of the suite were run last

        self._enter(self.complete.of_update(min(self.start + 1, self.program.num_steps)))

    def _enter(self, session: Session) -> None:
        """Continues with the programs of the session of a phase."""
        self.session, self.program = session, session.train
        self.updates = Updates(session.functions)
        self.suite = self.suites[session.experiment.phase]

    def _tokens_so_far(self) -> TokenCount:
        """Returns the token count of the window of metrics in which training starts."""
        starts = self.start == 0 or self.program.ends_window(self.start)  # the next update resets the device's count
        on_device = 0 if starts else int(self.state.sums.tokens)
        # Checkpoints of earlier versions have only the device's count.
        return TokenCount(self.extra.pop("window_tokens", on_device % 2**32), on_device)

    def run(self) -> int:
        # With several processes JAX handles SIGTERM, because all must stop at the same step (`_asked_to_stop`).
        numbers = NOTICES[1:] if self.processes.several else NOTICES
        handlers = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            with self.progress:
                announce(self.session, self.start, self.workdir, self.origin, self.progress.print)
                self._loop()
            return self._finish()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self.trace.close()
            self.log.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = number == signal.SIGINT
        if self.processes.several:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.signal = number

    def _asked_to_stop(self, step: int) -> bool:
        """Returns whether to save this step and stop; the same in all processes at the same step.

        A process that receives SIGTERM notifies the others, and all continue to the step after the most advanced one.
        """
        # Counted from the first step of this launch, so that the first call has the same number in all processes.
        if self.processes.several and multihost_utils.reached_preemption_sync_point(step - self.start):
            self.signal = signal.SIGINT if self.interrupted else signal.SIGTERM
        return self.signal is not None

    def _loop(self) -> None:
        batches = self.complete.host_batches.iterate(self.complete.train.input, own(self.extra["input"]))
        if self.start >= self.last:
            return
        batch, position = next(batches)
        self._compile(self.start + 1, batch)
        seed = self.session.seed
        jax.block_until_ready(self.state.step)
        self.window_began = time.perf_counter()
        if self.start and self.saved != self.start:
            self._beside(self._save, self.start)  # of a branch: the run can resume without the other one
        for step in range(self.start + 1, self.last + 1):
            if (phase := self.complete.of_update(step)) is not self.session:
                self._report()  # with the programs of the phase that has ended
                self._enter(phase)
            if batch not in self.updates:
                self._beside(self._compile, step, batch)
            self.trace.before(step, self.state)
            self.watchdog.expect("Update", step, updates=AHEAD + 2 if self.program.replays(step) else 1)
            self._keep_up()
            ends_window = self.program.ends_window(step) or step == self.program.num_steps
            self.before = self._weights() if ends_window and self.program.weight_metrics else None
            update, save_all = self.updates.of(batch), self.checkpoints.close
            self.state = replayed_update.updated(self.session, update, self.state, batch, seed, step, save_all)
            self.extra["input"] = position
            self.shapes[batch.inputs.shape] += 1
            self._report()  # of earlier steps, while the device runs this one
            self.unread += batch.inputs.size
            if self.unread >= READ_TOKENS:
                self._read_tokens()
            if ends_window:
                self._ask(step)
                self.slow.measure(step, self.state.step)
            if self.program.evaluates_at(step):
                self._beside(self._evaluate, step)
            if self.checkpoints.is_due(step):
                self._beside(self._save, step)
            if self._asked_to_stop(step):
                self._report()
                self._save(step)
                return
            if step < self.last:
                self.watchdog.expect("The batch of update", step + 1)
                batch, position = self.slow.next(batches)
        self._report()
        self.watchdog.rest()
        self.trace.close()

    def _keep_up(self) -> None:
        """Waits until at most AHEAD updates are queued or running."""
        self.under_way.append(self.session.settle(jnp.copy(self.state.step)))  # the next update overwrites the original
        if len(self.under_way) > AHEAD:
            jax.block_until_ready(self.under_way.popleft())

    def _compile(self, step: int, batch: Batch) -> None:
        """Compiles the update for the batch shape of a step."""
        began = time.perf_counter()
        with recorded() as decisions:
            self.updates.of(batch)
        # Counted now, not in the time of the first report; raises if FLOPs are unknown where MFU is reported.
        self.session.throughput.mfu({batch.inputs.shape: 1}, 1.0)
        self._flops_with(collections.Counter([batch.inputs.shape]))
        seconds = time.perf_counter() - began
        decided = self.session.describe(description(decisions))
        self.progress.print(compiled(self.complete, self.session, step, batch.inputs.shape, seconds, decided))

    def _weights(self) -> Any:
        """Returns a copy of the weights, which the next update overwrites."""
        functions = self.session.functions
        return self.session.settle(functions.copies_of(functions.updated(self.state)))

    def _ask(self, step: int) -> None:
        """Copies the metrics of the window that ends here, because the next update overwrites the originals."""
        # Settled like an update: its collectives must not run concurrently with those of the next one.
        settle, functions, params = self.session.settle, self.session.functions, self.state.variables["params"]
        norm = settle(functions.norm_of(params))
        changes = self.before and settle(functions.changes_of(self.before, functions.updated(self.state)))
        values = (self.state.sums, self.state.bad_step, self.state.skipped, norm, changes)
        self.pending = (step, self.shapes, self.session.settle(jax.tree.map(jnp.copy, values)))
        self.shapes, self.unread = collections.Counter(), 0

    def _read_tokens(self) -> None:
        """Reads the device's token count before it overflows; waits for the device."""
        self.tokens.read(int(self.state.sums.tokens))
        self.unread = 0

    def _report(self) -> None:
        """Waits for the pending metrics, and writes and prints them."""
        if self.pending is None:
            return
        self.watchdog.expect("Update", self.processes.step, updates=AHEAD + 1)  # all queued updates
        self.checkpoints.check()
        step, shapes, (sums, bad_step, skipped, param_norm, changes) = self.pending
        self.pending = None
        totals = fetch(sums)
        self._stop_if_bad(bad_step.item())
        now = time.perf_counter()
        seconds = max(now - self.window_began - self.aside, 1e-9)
        steps = step - self.window_start
        self.window_began, self.window_start, self.aside = now, step, 0.0
        self.updating += seconds
        self.log.spent(step, self.updating)
        self.tokens.read(totals["tokens"])
        self.extra["tokens_seen"] += self.tokens.total
        self.tokens = TokenCount()
        self.extra["flops"] = self._flops_with(shapes)
        counts = {"tokens_seen": self.extra["tokens_seen"], "flops": self.extra["flops"], "skipped": skipped.item()}
        scalars = window_scalars(
            self.session, totals, shapes, step=step, steps=steps, seconds=seconds, norm=param_norm.item(), **counts
        )
        if changes is not None:
            self.log.write(step, WEIGHTS, weight_scalars(self.state.variables["params"], np.asarray(changes)))
        self.log.write(step, "train", scalars)
        self.progress.report(step, scalars)

    def _flops_with(self, shapes: collections.Counter[tuple[int, int]]) -> int | None:
        """Returns the FLOPs until the last report and of these updates; checkpoints of earlier versions lack them."""
        before = self.extra.get("flops")
        added = None if before is None else self.session.throughput.flops(shapes)
        return None if before is None or added is None else before + added

    def _beside(self, work: Any, step: int, *arguments: Any) -> None:
        """Runs `work(step, ...)` and excludes its time from the throughput."""
        self._report()
        jax.block_until_ready(self.state.step)  # the time of queued updates counts as training
        self.watchdog.rest()
        self.paused = began = time.perf_counter()
        work(step, *arguments)
        self.aside, self.paused = self.aside + time.perf_counter() - began, None

    def _evaluate(self, step: int) -> None:
        if VALIDATION in self.session.test.inputs and self.loss_step != step:
            self._evaluate_loss(step)
        if self.suite is not None and self.evaluated != step:
            self._stop_if_bad(self.state.bad_step.item())
            self.evaluated = step
            outcome = self.suite.run(self.session.functions.evaluated(self.state))
            for scalars in outcome.scalars.values():
                self.log.write(step, EVALS, scalars)
            self.progress.print(f"step {step:>6} {EVALS}  {tables.line(outcome.scalars)}")

    def _evaluate_loss(self, step: int) -> None:
        self._stop_if_bad(self.state.bad_step.item())
        scalars = evaluate(self.session, self.session.functions.evaluated(self.state), VALIDATION)
        self.loss, self.loss_step = scalars["loss"], step
        if self.program.input.borders:
            scalars["phase"] = self.session.experiment.phase
        self.log.write(step, VALIDATION, scalars)
        self.progress.print(f"step {step:>6} validation  {summary(scalars)}")
        if time.perf_counter() - self.report_written > REPORT_EVERY:
            self._write_report()

    def _save(self, step: int) -> None:
        if self.saved == step:
            return
        self.watchdog.rest()
        self._stop_if_bad(self.state.bad_step.item())
        self._flush(step)  # a run that resumes here needs all lines up to here
        is_finished = step == self.program.num_steps and self.signal is None
        state, is_reported = self.state, is_finished or self.program.ends_window(step)
        if is_reported:  # a run that resumes with another LOG_EVERY must not count them again
            state = state.replace(sums=jax.tree.map(jnp.zeros_like, state.sums))
        else:
            self._read_tokens()
        # A copy, because the checkpoint is written while training continues.
        extra = self.extra | {"input": gathered(self.extra["input"]), "window_tokens": self.tokens.total}
        extra["flops"] = self._flops_with(self.shapes)
        loss = self.loss if self.loss_step == step else None
        continues = step < self.last and self.signal is None
        self.checkpoints.save(step, state, extra, loss, self.session.experiment.phase, continues=continues)
        self.saved = step

    def _flush(self, step: int) -> None:
        now = self.paused or time.perf_counter()
        self.log.spent(step, self.updating + now - self.window_began - self.aside)
        self.log.flush()

    def _stop_if_bad(self, bad_step: int) -> None:
        if bad_step and self.session.task.non_finite == "stop":
            self.watchdog.rest()
            self.checkpoints.close()
            self.before, self.pending = None, None  # their memory is needed to find the cause
            non_finite.stop(self.complete, self.workdir, bad_step, self.state, self.progress.print)

    def _write_report(self) -> None:
        if self.processes.primary:
            self._flush(int(self.state.step))
            try:
                report.write(self.workdir)
            except VortaroError as error:  # a run does not end because of its page
                self.progress.print(f"The report cannot be written: {error}")
            self.report_written = time.perf_counter()

    def _finish(self) -> int:
        self.watchdog.rest()
        step = int(self.state.step)
        if self.signal is None and step == self.last:
            if self.start == step:  # nothing was left to train, but the last start may have ended before its evaluation
                known = evaluations(self.workdir, step) if self.processes.primary else []
                known = self.processes.broadcast(known)
                self.loss_step = step if VALIDATION in known else self.loss_step
                self.evaluated = step if EVALS in known else self.evaluated
            self._evaluate(step)
        self._save(step)
        self.checkpoints.close()
        name = None if self.signal is None else signal.Signals(self.signal).name
        is_complete = step >= self.program.num_steps
        record_end(self.workdir, self.session, step=step, reason=name or (FINISHED if is_complete else "--until"))
        self._write_report()
        spent = time.perf_counter() - self.began
        print(ended(self.complete, self.start, step, name, spent, self.workdir), flush=True)
        return 130 if self.signal == signal.SIGINT else 0
