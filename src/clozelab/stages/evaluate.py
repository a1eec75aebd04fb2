"""Stage evaluate: an encoder, or a fine-tuned model, measured without training it."""

from __future__ import annotations

import logging

from clozelab.assembly import evaluation
from clozelab.config import Composed
from clozelab.launch.own_task import warn_of_doubts
from clozelab.schema import EvaluateConfig

log = logging.getLogger(__name__)


def main(cfg: EvaluateConfig, composed: Composed) -> None:
    """Check model and data, score once, keep scores and predictions, complete the run."""
    warn_of_doubts([composed])
    # Before the claim: a folder claimed for bad data would refuse the mended data.
    job = evaluation.prepare(cfg)
    with evaluation.claim_run(job, composed) as run:
        if run.is_complete:
            log.info("%s is complete already", run.dir)
            return
        evaluation.evaluate(job, run)
