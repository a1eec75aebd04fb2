"""Callbacks of the training stages: checkpoints, a graceful stop, progress, kept encoders.

What happens behind an optimizer step happens after its validation, where one is due, so that a
resumed run never misses one. A stop (by a signal, or by the clock) takes effect at the end of an
optimizer step, on all ranks at the same one.
"""

from __future__ import annotations

import logging
import math
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from rich import progress as bars
from rich.console import Console
from rich.text import Text

from clozelab.text.plain import JsonObject
from clozelab.training.checkpoints import Checkpoint, keep_best, validation_is_due
from clozelab.training.guards import exit_unless_first_rank, require_finite_state, watch_of
from clozelab.training.stopping import OUT_OF_TIME, TERMINATED, Watch, interrupt, taken_signals

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

log = logging.getLogger(__name__)
QUIET_SECONDS = 30.0  # between two lines of the log, at most
NOTE_SECONDS = 2.0  # between two notes of the step, at least


class TrainingInterruptedError(SystemExit):
    """Training stopped after saving its checkpoint.

    `code` is 128 + the signal's number, or OUT_OF_TIME. `planned`: stop_after_step asked for it.
    `reuse`: the run's setting; with `never` its own command would remove it.
    """

    def __init__(self, code: int, step: int, planned: bool, reuse: str) -> None:
        super().__init__(code)
        self.step = step
        self.planned = planned
        self.remedy = "start the same command again to go on"
        if reuse == "never":
            self.remedy = "start the same command without reuse=never to go on"
        if code == OUT_OF_TIME:
            self.by = "trainer.max_time"
        else:
            self.by = signal.Signals(code - 128).name

    def __str__(self) -> str:
        if self.planned:
            return f"stopped after step {self.step}, by stop_after_step"
        return f"stopped by {self.by} after step {self.step}; {self.remedy}"


class AfterStep(Callback):
    """Calls `after_step` behind an optimizer step: after its validation, where one is due."""

    after_step: Callable[[Trainer, LightningModule], None]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
    ) -> None:
        if not validation_is_due(trainer, trainer.global_step):
            self.after_step(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.after_step(trainer, pl_module)


class GracefulStop(AfterStep):
    """A stop that saves first, at a signal or after trainer.max_time.

    A second Ctrl-C does not wait; Lightning alone exits 0, unsaved. Under manual optimisation the
    module itself calls `stop_requested` (0 or an exit status) and sets `stop_agreed` once all ranks
    know. Stands behind LastCheckpoint in the list of callbacks. `watch` gets a beat from each part
    of a step and each validation batch. `stop_after_step` is a step after which to stop as for
    SIGTERM.
    """

    def __init__(
        self, watch: Watch, stop_after_step: int | None = None, reuse: str = "any"
    ) -> None:
        self.watch = watch
        self.reuse = reuse
        self.requested = 0  # exit status; 0: no stop
        self._signals = ExitStack()
        self.stop_after_step = stop_after_step or math.inf

    def _request(self, number: int) -> None:
        # A second Ctrl-C does not wait for the step to end.
        if number == signal.SIGINT and self.requested:
            interrupt(number)
        self.requested = 128 + number

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not earlier: Lightning installs a handler of its own between on_fit_start and here.
        self._signals.enter_context(taken_signals(self._request))
        pl_module.stop_requested = lambda: self.requested  # type: ignore[assignment]
        self._beat()
        self.watch.is_training = True
        # A run that goes on from that step, or a later one.
        if trainer.global_step >= self.stop_after_step:
            pl_module.stop_agreed = TERMINATED  # type: ignore[assignment]
            self.after_step(trainer, pl_module)

    def _beat(self, *_: object, **__: object) -> None:
        self.watch.beats += 1

    on_before_backward = on_validation_batch_start = on_validation_batch_end = (
        on_predict_batch_end
    ) = _beat

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
    ) -> None:
        self._beat()
        if self.watch.is_out_of_time and trainer.is_global_zero:
            self.requested = self.requested or OUT_OF_TIME
        if trainer.global_step + 1 >= self.stop_after_step:
            self.requested = self.requested or TERMINATED
        # Under manual optimisation the module reduces the request with its counts.
        if pl_module.automatic_optimization:
            agreed = trainer.strategy.reduce_boolean_decision(self.requested != 0, all=False)
            status = 0
            if agreed:
                status = self.requested or TERMINATED
            pl_module.stop_agreed = status  # type: ignore[assignment]

    def after_step(self, trainer: Trainer, module: LightningModule) -> None:
        status = int(getattr(module, "stop_agreed", 0))
        if not status or trainer.global_step == trainer.max_steps:
            return
        exit_unless_first_rank(trainer)
        step = trainer.global_step
        is_planned = step >= self.stop_after_step
        interruption = TrainingInterruptedError(status, step, is_planned, self.reuse)
        log.warning("%s", interruption)
        trainer.profiler.describe()  # type: ignore[attr-defined]
        raise interruption

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.watch.is_training = False
        self._signals.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.on_train_end(trainer, pl_module)
        # A rank that was killed is a broken connection to the others, whose error does not name it.
        processes = getattr(trainer.strategy.launcher, "procs", [])
        for rank, process in enumerate(processes, 1):
            if isinstance(process, subprocess.Popen) and process.poll():
                status = process.returncode
                log.error("rank %d (process %d) ended with code %d", rank, process.pid, status)


# What the best checkpoint has the least of. A fine-tuning keeps its best evaluation inside every
# checkpoint.
MONITORED = "validation/loss"


class LastCheckpoint(AfterStep):
    """Keeps `path` current; beside it stay the checkpoint before and the best.

    It saves every `interval_steps`, after the last step, for a new best, and before a graceful
    stop. With `least_seconds` only a stop saves sooner than that after the last save, or after the
    start. What holds numbers that are no numbers is not saved.
    """

    def __init__(self, path: Path, interval_steps: int, least_seconds: float) -> None:
        self.path = path
        self.interval_steps = interval_steps
        self.least_seconds = least_seconds
        self.best = math.inf
        self.best_step = -1
        self._saved_step = -1
        self._saved_at = time.monotonic()

    def state_dict(self) -> dict[str, object]:
        return {"best": self.best, "best_step": self.best_step}

    def load_state_dict(self, state_dict: JsonObject) -> None:
        self.best = state_dict["best"]
        self.best_step = state_dict["best_step"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path and trainer.is_global_zero:
            log.info(
                "going on after step %d of %d, from %s",
                trainer.global_step,
                trainer.max_steps,
                trainer.ckpt_path,
            )
            if trainer.global_step == self.best_step:
                keep_best(Path(str(trainer.ckpt_path)))  # killed between saving it and this

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
    ) -> None:
        if trainer.global_step == trainer.max_steps:
            # Lightning then validates after the last step, wherever the interval falls.
            trainer.should_stop = True
        super().on_train_batch_end(trainer, pl_module)

    def after_step(self, trainer: Trainer, module: LightningModule) -> None:
        step = trainer.global_step
        # A validation that was not just now has been compared already.
        value = getattr(module, "latest_validation", {}).get(MONITORED, math.inf)
        is_best = validation_is_due(trainer, step) and value < self.best
        if not self._is_due(trainer, module, is_best):
            return
        watch_of(module).check(trainer)  # a checkpoint behind a spike would be of no use
        if is_best:
            self.best = value
            self.best_step = step
        self._save(trainer)
        if is_best and trainer.is_global_zero:
            keep_best(self.path)

    def _is_due(self, trainer: Trainer, module: LightningModule, is_best: bool) -> bool:
        """Whether to save after this step."""
        step = trainer.global_step
        is_due = is_best or step % self.interval_steps == 0 or step == trainer.max_steps
        if is_due and self.least_seconds:
            # The same on all ranks: saving is something they do together, and their clocks differ.
            is_late = time.monotonic() - self._saved_at >= self.least_seconds
            is_due = bool(trainer.strategy.reduce_boolean_decision(is_late, all=False))
        is_stopping = bool(getattr(module, "stop_agreed", 0))
        return step != self._saved_step and (is_due or is_stopping)

    def _save(self, trainer: Trainer) -> None:
        require_finite_state(trainer)
        trainer.save_checkpoint(self.path, weights_only=False)
        self._saved_step = trainer.global_step
        self._saved_at = time.monotonic()


class SameConfig(Callback):
    """One configuration, by the run's fingerprint, in the checkpoint that a run goes on from.

    It may have been copied into the run's folder.
    """

    KEY = "clozelab_fingerprint"

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        checkpoint[self.KEY] = self.fingerprint

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        fingerprint = str(checkpoint.get(self.KEY))
        if fingerprint != self.fingerprint:
            exit_unless_first_rank(trainer)
            raise ValueError(
                f"{trainer.ckpt_path} is the checkpoint of another configuration (fingerprint"
                f" {fingerprint[:12]}, this run's is {self.fingerprint[:12]}); delete it to start"
                " this run anew, or put this run's own back"
            )


class Facts(bars.ProgressColumn):
    """The last figures, cut where the terminal ends: bar, steps and time left stay."""

    def render(self, task: bars.Task) -> Text:
        return Text(task.fields["facts"], no_wrap=True, overflow="ellipsis")


class TrainingProgress(Callback):
    """A bar with the time left on a terminal; elsewhere one plain line per log interval.

    Where that takes longer than QUIET_SECONDS, there are lines without figures between. Whoever
    looks from outside finds the step in the file `note`, written every NOTE_SECONDS.
    """

    def __init__(self, enabled: bool, note: Path | None = None) -> None:
        self.enabled = enabled
        self._note = note
        self._note_time = -math.inf
        self._bar: bars.Progress | None = None
        self._printed_step = -1
        self._line_time = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        console = Console(stderr=True)
        if not (self.enabled and trainer.is_global_zero and console.is_terminal):
            return
        columns = (
            "{task.description}",
            # Loss and accuracy of a masked model still fit into 80 columns behind it.
            bars.BarColumn(10),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
        )
        self._bar = bars.Progress(*columns, bars.TimeRemainingColumn(), Facts(), console=console)
        self._bar.add_task(
            "training", total=trainer.max_steps, completed=trainer.global_step, facts=""
        )
        self._bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
    ) -> None:
        self._write_note(trainer)
        step = trainer.global_step
        # Lightning calls a fine-tuning's own hook behind all callbacks, one of which may save and
        # stop: the figures would be missing here, and be part of the next log point's.
        getattr(pl_module, "publish_log_point", lambda: None)()
        # Only log points have new figures; the bar keeps the last ones.
        facts: JsonObject = {}
        if getattr(pl_module, "latest_metrics_step", -1) == step != self._printed_step:
            self._printed_step = step
            facts["facts"] = in_one_line(pl_module.latest_metrics)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step, **facts)
            return
        is_quiet = time.monotonic() - self._line_time > QUIET_SECONDS
        if trainer.is_global_zero and (facts or is_quiet):
            self._line_time = time.monotonic()
            log.info("step %d/%d  %s", step, trainer.max_steps, facts.get("facts", ""))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        latest = getattr(pl_module, "latest_validation", {})
        if latest and trainer.is_global_zero:
            # A fine-tuning adds the class that a score is of.
            score_name: Callable[[str], str] = getattr(pl_module, "score_name", str)
            named = {score_name(key): value for key, value in latest.items()}
            log.info("step %d validation  %s", trainer.global_step, in_one_line(named))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._note is not None and trainer.is_global_zero:
            self._note.unlink(missing_ok=True)

    def _write_note(self, trainer: Trainer, *_: object, **__: object) -> None:
        is_due = time.monotonic() - self._note_time >= NOTE_SECONDS
        if self._note is None or not is_due or not trainer.is_global_zero:
            return
        self._note_time = time.monotonic()
        with suppress(OSError):  # a full disk is for what has to be written
            self._note.write_text(str(trainer.global_step))

    on_validation_batch_end = _write_note

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.on_train_end(trainer, pl_module)


class GradientStatistics(Callback):
    """The norm of the gradient, whole and of each parameter, at log points.

    In pre-training it is cut by then.
    """

    def __init__(self) -> None:
        self._norms: dict[str, float] = {}  # of the coming log point

    def on_before_optimizer_step(
        self, trainer: Any, pl_module: LightningModule, optimizer: object
    ) -> None:
        step = trainer.global_step + 1
        if step % trainer.log_every_n_steps == 0:
            norms = {}
            for name, parameter in pl_module.named_parameters():
                if parameter.grad is None:
                    continue
                norm: Any = parameter.grad.norm()
                if hasattr(norm, "full_tensor"):  # sharded: of all ranks' parts
                    norm = norm.full_tensor()
                norms[f"gradient/grad_2.0_norm/{name}"] = float(norm)
            total = torch.tensor([*norms.values()]).norm()
            self._norms = {**norms, "gradient/grad_2.0_norm_total": float(total)}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, *_: object, **__: object
    ) -> None:
        # Behind the step, whose tokens and seconds are counted by now.
        if self._norms:
            pl_module.send(self._norms, pl_module.throughput.tokens)
            self._norms = {}


def sequences_of(batch: Any) -> int:
    """How many sequences a batch holds, for Lightning's ThroughputMonitor."""
    micro_batches = batch if isinstance(batch, list) else [batch]
    return sum(micro_batch["layout"].batch_size for micro_batch in micro_batches)


def in_one_line(metrics: Any) -> str:
    """Figures as tables have them, for example "loss 6.123  accuracy 9.6%".

    Accuracies are in percent. A part that is the whole loss does not stand there twice.
    """
    values = {key.partition("/")[2]: value for key, value in metrics.items()}
    loss = values.get("loss")
    figures = []
    for name, value in values.items():
        # Of a single objective this is the whole loss, which is said already.
        if name.endswith("_loss") and value == loss:
            continue
        if "accuracy" in name and value <= 1.0:
            figures.append(f"{name} {value:.1%}")
        else:
            figures.append(f"{name} {value:.4g}")
    return "  ".join(figures)


def growth_steps(phases: Sequence[Mapping[str, int]], given: int = 0) -> dict[int, tuple[int, int]]:
    """The steps at which a phase begins that is longer than what was trained before it.

    First step of the phase -> (positions trained so far, positions that it needs). `given`: how
    many the weights that training begins with have trained.
    """
    growth = {}
    first_step = 0
    longest = given
    for phase in phases:
        length = phase["seq_length"]
        # Fresh weights have trained nothing that could be copied.
        if longest and length > longest:
            growth[first_step] = (longest, length)
        longest = max(longest, length)
        first_step += phase["steps"]
    return growth


def check_position_growth(
    position_growth: str, phases: Sequence[Mapping[str, int]], strategy: str, given: int = 0
) -> None:
    """ValueError for a growth that the strategy cannot do; `given` as for `growth_steps`."""
    if position_growth == "tile" and strategy == "fsdp" and growth_steps(phases, given):
        raise ValueError(
            "position_growth=tile copies lines of a whole matrix, and trainer=fsdp splits it:"
            " choose none"
        )


def averaging(trainer: Any) -> list[Any]:
    """The trainer's callbacks that hold averaged weights by now."""
    callbacks = []
    for callback in trainer.callbacks:
        if isinstance(callback, WeightAveraging) and callback._average_model is not None:
            callbacks.append(callback)
    return callbacks


class PositionGrowth(Callback):
    """Tiles the position embeddings of all that is trained when a phase needs more of them.

    `growth` is what `growth_steps` gives.
    """

    def __init__(self, growth: Mapping[int, tuple[int, int]]) -> None:
        self.growth = growth

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: object, **__: object) -> None:
        if trainer.global_step not in self.growth:
            return
        trained, needed = self.growth[trainer.global_step]
        encoders = list(pl_module.model.encoders)
        for callback in averaging(trainer):
            encoders += callback._average_model.module.model.encoders
        # A generator has positions of its own, or shares the encoder's: copied twice, the same.
        for encoder in encoders:
            encoder.embeddings.tile_positions(trained, needed)


class KeepEncoders(Callback):
    """Calls `save(step)` on rank zero after each of `steps`.

    The module's weights are gathered by then, or averaged (EMA). Stands before LastCheckpoint: a
    run that goes on from a checkpoint behind such a step then has its encoder.
    """

    def __init__(self, steps: Collection[int], save: Callable[[int], None]) -> None:
        self.steps = set(steps)
        self.save = save

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, *_: object, **__: object
    ) -> None:
        step = trainer.global_step
        if step not in self.steps:
            return
        require_finite_state(trainer)
        # Averaged weights change places with the trained ones while an encoder is saved.
        for callback in averaging(trainer):
            callback._swap_models(pl_module)
        # Gathering is something that all ranks do together.
        pl_module.gather_weights()
        if trainer.is_global_zero:
            self.save(step)
        pl_module.release_weights()
        for callback in averaging(trainer):
            callback._swap_models(pl_module)
