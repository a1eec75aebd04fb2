"""Stage pretrain: one encoder from a prepared corpus."""

from __future__ import annotations

import logging
from dataclasses import replace

from clozelab.assembly import factory, pretraining
from clozelab.config import Composed
from clozelab.report.curves import sentences
from clozelab.runs.loss_bands import match_of
from clozelab.runs.reuse import require_kept
from clozelab.schema import PretrainConfig

log = logging.getLogger(__name__)


def main(cfg: PretrainConfig, composed: Composed) -> None:
    """Prepare the corpus if need be, train or go on, save the encoder folder, complete the run."""
    job = pretraining.prepare(cfg)
    with pretraining.claim_run(job, composed) as run:
        if run.is_complete:
            require_kept(composed, run.content)
            log.info("%s is complete already", run.dir)
            return
        job = replace(job, hardware=factory.hardware_of_run(run, job.hardware))
        pretraining.train(job, run)
        if match_of(run.content):
            log.info("%s", sentences(run.content)[0])
