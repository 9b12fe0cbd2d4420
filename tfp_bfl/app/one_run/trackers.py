"""Trackers of experiments: a run's options, the metrics of its rounds and its scores in TensorBoard, MLflow or
Weights & Biases.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from tfp_bfl.app.one_run.records import place
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import tf
from tfp_bfl.files.packages import check_installed
from tfp_bfl.files.writing import space
from tfp_bfl.options import choices

logger = logging.getLogger(__name__)

# The run at the tracker, which a resumed run continues.
_IDENTITY = "tracker.json"
_PROJECT = "tfp_bfl"
_MOST_PARAMETERS = 100  # Of one request to MLflow.
_MOST_LETTERS = 6000  # Of the value of a parameter.


class _Tracker(Protocol):
    """A run at a tracker; `identity` names it there."""

    @property
    def identity(self) -> str | None: ...

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def end(self, failed: bool) -> None: ...


class _TensorBoard:
    """Event files in FOLDER/tensorboard."""

    identity = None

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder / "tensorboard"
        with space(self._folder, writes=True):
            self._writer = tf.summary.create_file_writer(str(self._folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with space(self._folder, writes=True), self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def end(self, failed: bool) -> None:
        with space(self._folder, writes=True):
            self._writer.close()


class _MLflow:
    """A run of MLflow in the experiment of MLFLOW_EXPERIMENT_NAME, at the place of MLFLOW_TRACKING_URI."""

    identity: str

    def __init__(self, folder: pathlib.Path, options: Mapping[str, Any], identity: str | None) -> None:
        from mlflow import MlflowClient, set_experiment
        from mlflow.entities import Param, RunTag

        self._client = MlflowClient()
        if identity is not None:
            self.identity = identity
            self._client.update_run(identity, "RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        experiment = set_experiment(name).experiment_id  # Of several processes at once, too.
        self.identity = self._client.create_run(experiment, run_name=folder.name).info.run_id
        given = [Param(key, str(value)[:_MOST_LETTERS]) for key, value in options.items() if value is not None]
        tags = [RunTag("folder", str(folder)), RunTag("group", folder.parent.name)]
        for start in range(0, len(given), _MOST_PARAMETERS):
            self._client.log_batch(self.identity, params=given[start : start + _MOST_PARAMETERS], tags=tags)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self.identity, metrics=[Metric(key, x, now, step) for key, x in values.items()])

    def end(self, failed: bool) -> None:
        self._client.set_terminated(self.identity, "FAILED" if failed else "FINISHED")


class _WandB:
    """A run of Weights & Biases in the project of WANDB_PROJECT, in the group of the folder above; its files are where
    WANDB_DIR says.
    """

    def __init__(self, folder: pathlib.Path, options: Mapping[str, Any], identity: str | None) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=folder.name,
            group=folder.parent.name or None,
            config=dict(options),
            id=identity,
            resume="must" if identity else None,
            # Standard output and error stay the program's.
            settings=wandb.Settings(silent=True, console="off"),
            reinit="create_new",
        )
        self.identity = self._run.id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


# Package -> what makes its tracker.
TRACKERS: dict[str, Callable[[pathlib.Path, Mapping[str, Any], str | None], _Tracker]] = {
    "tensorboard": lambda folder, options, identity: _TensorBoard(folder),
    "mlflow": _MLflow,
    "wandb": _WandB,
}


class TrackerError(InvalidArgument):
    """A tracker that does not begin a run."""


def check(name: str | None) -> None:
    """Raise MissingDependency if the package of a tracker is not installed; None is no tracker."""
    if name is not None:
        choices.TRACKERS.check(name)
        check_installed(name, f"--tracker {name}")


class Tracking:
    """Log of one run at a tracker. Made by `tracking`."""

    def __init__(self, config: RunConfig, tracker: _Tracker | None) -> None:
        self._config, self._tracker = config, tracker

    def round(self, row: Mapping[str, Any]) -> None:
        """Log the metrics of a round."""
        self._log(place(self._config, row), row)

    def scores(self, found: Mapping[str, Any]) -> None:
        """Log the scores of the final model, as final/NAME."""
        last = self._config.rounds * (self._config.ensemble or 1)
        self._log(last, {f"final/{name}": value for name, value in found.items()})

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        is_number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)
        numbers = {name: float(x) for name, x in values.items() if is_number(x)}
        if self._tracker is not None and numbers:
            try:
                self._tracker.log(step, numbers)
            except Exception as error:
                self._fail(error)

    def end(self, failed: bool) -> None:
        """Close the run at the tracker."""
        if self._tracker is not None:
            try:
                self._tracker.end(failed)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Continue without a tracker that fails; files of this machine are the run's own, and their errors too."""
        if isinstance(self._tracker, _TensorBoard):
            raise error
        self._tracker = None
        name, words = self._config.tracker, str(error).strip().partition("\n")[0]
        logger.warning(f"{name} takes no more metrics ({words}): the run continues without it.")


@contextlib.contextmanager
def tracking(config: RunConfig, folder: pathlib.Path) -> Iterator[Tracking]:
    """Begin a run at the tracker of a configuration, or continue that of a resumed run, and end it with the block.

    Raises:
      TrackerError: the tracker does not begin a run, such as a server that does not answer.
    """
    tracker, path = None, folder / _IDENTITY
    if config.tracker is not None:
        there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        try:
            tracker = TRACKERS[config.tracker](folder, config.recorded(), there.get(config.tracker))
        except Exception as error:
            if config.tracker == "tensorboard":
                raise
            words = str(error).strip().partition("\n")[0]
            raise TrackerError(f"The tracker {config.tracker} does not begin a run: {words}") from None
        if tracker.identity is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({config.tracker: tracker.identity}) + "\n", encoding="utf-8")
    log, failed = Tracking(config, tracker), True
    try:
        yield log
        failed = False
    finally:
        log.end(failed)
