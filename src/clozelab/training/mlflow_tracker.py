"""MLflow as a logger of Lightning's: one run folder is one MLflow run, also where it is resumed.

Lightning's own asks the server when it is made, makes a new MLflow run at each resumption, and
sends each number by a request of its own. This one begins at the first call, finds its run by a
tag, and sends many numbers at once.
"""

from __future__ import annotations

import getpass
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from clozelab.text.plain import Json
from clozelab.training.catching_up import MetricCall
from clozelab.training.jobs import TrackedJob

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RUN_TAG = "clozelab.run"  # of an MLflow run: the id of the run folder that it shows
METRICS_A_REQUEST = 1000  # at most, says MLflow
PARAMETERS_A_REQUEST = 100
MAX_PARAMETER_CHARACTERS = 500
REFUSED_CHARACTERS = re.compile(r"[^\w\-. :/]")  # in the name of a metric or a parameter
LOCK_SECONDS = 60.0
# Usually MLflow waits for two minutes and tries seven times more: a quarter of an hour for one
# call.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # BackgroundLogger tries again, and says so once
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it asks a server of its own
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def accepted_name(key: str) -> str:
    """A name that MLflow takes, and another one for each key: "a, b" is a_2c_ b."""
    return REFUSED_CHARACTERS.sub(lambda match: f"_{ord(match[0]):x}_", key)


class MlflowTracker(Logger):
    """One MLflow run for a run folder.

    Args:
        experiment_name: MLflow's experiment. run_name: what its run is called. tracking_uri: a
        server (http://...) or a store on this machine (sqlite:///...). job: whose run it is, and
        the configuration to show. lock: a file; of the processes that use it one at a time makes a
        store, or an experiment in it.
    """

    name = "mlflow"
    version = ""

    def __init__(
        self,
        *,
        experiment_name: str,
        run_name: str,
        tracking_uri: str,
        job: TrackedJob,
        lock: Path,
    ) -> None:
        super().__init__()
        self.experiment_name = experiment_name
        self.run_name = run_name
        self.tracking_uri = tracking_uri
        self.job = job
        self.lock = lock
        self.run_id = ""  # of MLflow's run, once it has begun

    def load_package(self) -> None:
        """Import what a thread will need. What the user says of MLflow's patience holds."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import mlflow.tracking  # an extra, and seconds of start-up that only tracked runs pay

        if not self._is_server:
            import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

    @property
    def _is_server(self) -> bool:
        return self.tracking_uri.startswith(("http://", "https://"))

    @cached_property
    def _client(self) -> MlflowClient:
        from mlflow.tracking import MlflowClient

        return MlflowClient(self.tracking_uri)

    def client(self) -> MlflowClient:
        """MLflow's client, with our run begun."""
        if not self.run_id:
            self._begin()
        return self._client

    def is_outage(self, error: Exception) -> bool:
        """Whether the server is away, or in trouble of its own.

        What it refuses it refuses again.
        """
        from mlflow.exceptions import MlflowException, RestException

        if isinstance(error, RestException):
            return error.get_http_status_code() >= 500
        # A store on this machine refuses a value by the base class.
        if isinstance(error, MlflowException) and error.error_code == "INVALID_PARAMETER_VALUE":
            return False
        # Where the server cannot be reached, MLflow raises its base class, too.
        return isinstance(error, OSError) or type(error) is MlflowException

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.log_many([MetricCall(dict(metrics), step, time.time())])

    @rank_zero_only
    def log_many(self, calls: Sequence[MetricCall]) -> None:
        """Sends several calls at once. Sent twice they are kept once.

        A value with the same key, step and time is the same to MLflow.
        """
        from mlflow.entities import Metric

        client = self.client()
        metrics = []
        for call in calls:
            # MLflow counts milliseconds.
            timestamp = int(1000 * call.time)
            step = call.step or 0
            for key, value in call.metrics.items():
                name = accepted_name(key)
                metrics.append(Metric(name, value, timestamp=timestamp, step=step))
        for begin in range(0, len(metrics), METRICS_A_REQUEST):
            client.log_batch(self.run_id, metrics=metrics[begin : begin + METRICS_A_REQUEST])

    @rank_zero_only
    def log_hyperparams(self, params: Json, *_: object, **__: object) -> None:
        """Sends the parameters that the run does not have yet.

        A run that goes on has them, with the same values or with those of its new machine; and
        MLflow refuses another value for a key that it has.
        """
        from mlflow.entities import Param

        client = self.client()
        recorded = client.get_run(self.run_id).data.params
        fresh = []
        for key, value in params.items():
            name = accepted_name(key)
            if name not in recorded:
                fresh.append(Param(name, str(value)[:MAX_PARAMETER_CHARACTERS]))
        for begin in range(0, len(fresh), PARAMETERS_A_REQUEST):
            client.log_batch(self.run_id, params=fresh[begin : begin + PARAMETERS_A_REQUEST])

    @rank_zero_only
    def close(self, exit_code: int = 0) -> None:
        if self.run_id:
            self._client.set_terminated(self.run_id, "FAILED" if exit_code else "FINISHED")

    def _begin(self) -> None:
        """Finds this folder's run, or makes it and the experiment.

        Raises MlflowException; the next call tries again.
        """
        self.load_package()
        from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME, MLFLOW_USER

        with self._exclusive():
            experiment_id = self._experiment_id()
            is_ours = f"tags.`{RUN_TAG}` = '{self.job.run_id}'"
            runs = self._client.search_runs([experiment_id], filter_string=is_ours, max_results=1)
            if runs:
                self._client.update_run(runs[0].info.run_id, status="RUNNING")
            else:
                user = "unknown"
                with suppress(OSError, KeyError):  # a container's number without a name
                    user = getpass.getuser()
                tags = {RUN_TAG: self.job.run_id, MLFLOW_RUN_NAME: self.run_name, MLFLOW_USER: user}
                tags |= {"group": self.job.group, "stage": self.job.stage}
                # scale:demo becomes the tag scale with the value demo
                tags |= dict(tag.split(":", 1) for tag in self.job.tags)
                runs = [self._client.create_run(experiment_id, tags=tags)]
            self.run_id = runs[0].info.run_id

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        if self._client.get_experiment_by_name(self.experiment_name) is None:
            try:
                self._client.create_experiment(self.experiment_name)
            except MlflowException as error:
                # Another job of a sweep has made it in this moment.
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
        return str(self._client.get_experiment_by_name(self.experiment_name).experiment_id)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One process at a time on this machine, for a store that is a file.

        Two that make a store of SQLite, or an experiment in it, at once break each other.
        """
        if self._is_server:
            yield
            return
        self.lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.lock, timeout=LOCK_SECONDS):
            yield
