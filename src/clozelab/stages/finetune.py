"""Stage finetune: one encoder on one downstream task."""

from __future__ import annotations

import logging
from dataclasses import replace

from clozelab.assembly import factory, finetuning
from clozelab.config import Composed
from clozelab.launch.own_task import warn_of_doubts
from clozelab.schema import FinetuneConfig

log = logging.getLogger(__name__)


def main(cfg: FinetuneConfig, composed: Composed) -> None:
    """Check encoder and data, train, keep the best checkpoint's scores, complete the run."""
    if finetuning.is_complete_without_weights(cfg, composed):
        log.info("%s is complete already", cfg.run_dir)
        return
    warn_of_doubts([composed])
    # Before the claim: a folder claimed for bad data would refuse the mended data.
    job = finetuning.prepare(cfg, with_test_files=cfg.predict_test)
    finetuning.refuse_partial_scores(cfg, job.data.total_steps)
    finetuning.log_recipe(cfg, job.encoder_folder, job.data.total_steps)
    description = finetuning.describe_task(job, composed)
    test_splits = {}
    if cfg.predict_test:
        test_splits = job.data.load_test()
    with finetuning.claim_run(job, composed) as run:
        if run.is_complete:
            finetuning.require_whole(run, composed)
            log.info("%s is complete already", run.dir)
            return
        job = replace(job, hardware=factory.hardware_of_run(run, job.hardware))
        finetuning.train(job, run, description, test_splits)
