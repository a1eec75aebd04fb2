"""Stage evaluate: an encoder, or a fine-tuned model, measured without training it."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from clozelab.assembly import evaluation, factory
from clozelab.config import Composed
from clozelab.models import folders
from clozelab.runs.store import Run
from clozelab.schema import EvaluateConfig
from clozelab.tasks.cache import used_folders

log = logging.getLogger(__name__)


def main(cfg: EvaluateConfig, composed: Composed) -> None:
    """Check model and data, score once, keep scores and predictions, complete the run."""
    # Before the claim: a folder claimed for bad data would refuse the mended data.
    job = evaluation.prepare(cfg)
    # Which further scores there are is known when they are computed.
    metric = job.module.metric
    with Run.claim(
        cfg.run_dir,
        stage="evaluate",
        config=composed,
        inputs=job.inputs,
        scores={metric: evaluation.score_of(job.module, metric)},
        metric=metric,
    ) as run:
        if run.is_complete:
            log.info("%s is complete already", run.dir)
            return
        run.record(
            cache=used_folders(), precision=job.hardware.precision, threads=torch.get_num_threads()
        )
        folder = Path(str(cfg.encoder))
        run.record(encoder=factory.encoder_facts(folder, folders.read_config(folder)))
        evaluation.evaluate(job, run)
