"""Stage pretrain: one encoder from a prepared corpus."""

from __future__ import annotations

import logging
from dataclasses import replace

from clozelab.assembly import factory, pretraining
from clozelab.assembly.encoders import encoder_tokenizer
from clozelab.config import Composed
from clozelab.files.digests import file_sha256
from clozelab.modules.pretraining import published_metrics
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import Score
from clozelab.runs.reuse import require_kept_encoders
from clozelab.runs.store import Run, share_equal_run
from clozelab.schema import PretrainConfig

log = logging.getLogger(__name__)


def main(cfg: PretrainConfig, composed: Composed) -> None:
    """Prepare the corpus if need be, train or go on, save the encoder folder, complete the run."""
    job = pretraining.prepare_pretraining(cfg)
    inputs = {"corpus": job.corpus.fingerprint}
    for name, folder in pretraining.read_folders(cfg, job.objectives).items():
        pretraining.require_same_vocabulary(name, folder, job.corpus)
        inputs[name] = encoder_fingerprint(folder)
    # Phases may read two files under one name.
    checksums: dict[str, dict[str, None]] = {}
    for objective in job.objectives:
        for name, path in objective.token.files().items():
            checksums.setdefault(name, {})[file_sha256(path)] = None
    inputs |= {name: " ".join(of_name) for name, of_name in checksums.items()}
    tokenizer = encoder_tokenizer(cfg, job.corpus, job.objectives)
    metrics = published_metrics(job.objectives)
    # The very same run of another experiment is not trained again.
    share_equal_run(composed, inputs)
    with Run.claim(
        cfg.run_dir,
        stage="pretrain",
        config=composed,
        inputs=inputs,
        scores={metric.key: Score.of(metric) for metric in metrics},
        metric=pretraining.HEADLINE,
    ) as run:
        if run.is_complete:
            require_kept_encoders(composed)
            log.info("%s is complete already", run.dir)
            return
        job = replace(job, hardware=factory.hardware_of_run(run, job.hardware))
        pretraining.train(job, run, tokenizer)
