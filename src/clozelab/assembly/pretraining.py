"""Stage pretrain: one encoder from a prepared corpus.

Micro-batch sizes and compilation are chosen for the machine when a run begins. A resumed run takes
them from run.json. So it goes on with the same kernels and micro-batches.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import WeightAveraging

from clozelab.assembly import factory
from clozelab.assembly.corpora import prepared_corpus, source_weights
from clozelab.assembly.encoders import (
    build_objectives,
    encoder_tokenizer,
    given_config,
    given_lengths,
)
from clozelab.assembly.passes import (
    passes,
    passes_by_source,
    passes_over_text,
    source_passes,
    too_short,
)
from clozelab.assembly.plateau import tokens_to_plateau
from clozelab.assembly.pretraining_module import build_module
from clozelab.assembly.words import steps_at_words
from clozelab.config import Composed, total_steps
from clozelab.corpus.files import text_marks
from clozelab.corpus.generated import known_loss
from clozelab.corpus.mixing import PhaseReading
from clozelab.corpus.packing import Masking
from clozelab.corpus.shards import PreparedCorpus, further_steps, split_facts, unigram_loss
from clozelab.corpus.tokenizer_files import TOKENIZER_FILE
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.files.digests import digest, file_sha256
from clozelab.files.origin import is_given
from clozelab.launch.sweep import phase_objectives
from clozelab.metrics.metric import PREFIX, metric_of
from clozelab.models import folders
from clozelab.models.adaptation import save_adapter
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.locate import CONFIG_FILE, may_have_head
from clozelab.models.registry import family_for
from clozelab.modules.model import given_vectors, open_tokenizer
from clozelab.modules.pretraining import PretrainingModule, check_lengths, published_metrics
from clozelab.objectives.objective import EncoderWithHeads, Models, Objective, build_models
from clozelab.optim.groups import match_groups
from clozelab.runs.identity import identity_of
from clozelab.runs.inputs import encoder_fingerprint, require_encoder
from clozelab.runs.record import Record, Score
from clozelab.runs.reuse import kept_steps
from clozelab.runs.store import Run, share_equal_run
from clozelab.schema import PretrainConfig
from clozelab.text.plain import PlainDict, PlainMapping
from clozelab.training.callbacks import MONITORED, KeepEncoders, check_position_growth
from clozelab.training.checkpoints import newest_intact
from clozelab.training.host import process_rank
from clozelab.training.runtime import largest_that_fits, try_step
from clozelab.training.tracking import summarise, tracked
from clozelab.training.trainer import Hardware

log = logging.getLogger(__name__)
# Optimizers whose step reads a matrix as a whole.
NEED_WHOLE_MATRICES = {"AdaFactor", "Adafactor", "CAME", "LARS", "Lamb", "Muon", "SOAP", "Shampoo"}
# Of a generator: what objective.token.generator_width and generator_depth say.
GENERATOR_SIZES = (
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "num_hidden_layers",
    "embedding_size",
)
# what begin_with_frequencies does; another beginning makes other results
FRESH_HEAD = "frequencies and the identity"


@dataclass(frozen=True)
class PretrainingJob:
    """What a pre-training works with, once every check has passed."""

    cfg: PretrainConfig
    hardware: Hardware
    corpus: PreparedCorpus
    objective_nodes: list[PlainDict]  # one a phase, and so are the objectives
    objectives: list[Objective]
    data: CorpusDataModule
    steps_to_keep: list[int]  # after which the encoder is kept on its way
    tokenizer: Tokenizer  # that the encoder's folder gets


def prepare(cfg: PretrainConfig) -> PretrainingJob:
    """Check the settings, prepare the corpus, and open it as the phases read it.

    All that can be wrong is found here, before a run folder is taken.
    """
    # From the cheap checks to the slow ones: settings, folders, then the corpus.
    hardware = factory.hardware_of(cfg.trainer)
    objective_nodes = phase_objectives(cfg)
    objectives = build_objectives(objective_nodes)
    check_pretraining(cfg, hardware, objectives)
    for name, folder in read_folders(cfg, objectives).items():
        require_encoder(folder, name)
    check_inputs(cfg, objectives)
    factory.check_trackers(cfg)
    steps_to_keep = kept_steps(cfg.keep_encoders, sum(phase.steps for phase in cfg.phases))
    corpus = prepared_corpus(cfg)
    # One process reads every byte, once a run.
    if not process_rank():
        corpus.require_checksums()
    data = make_data(cfg, corpus, objectives)
    # Finds the instances: a phase that the corpus cannot fill is refused.
    data.setup("fit")
    readings = data.readings()
    log_passes(readings)
    tokens = sum(phase.tokens for phase in readings)
    warn_of_plateau(cfg, objectives[-1], corpus.tokenizer.vocab_size, tokens)
    if cfg.keep_encoders_at_words is not None:
        steps_to_keep += steps_at_words(cfg.keep_encoders_at_words, data.words_by_step())
    if cfg.encoder is not None and not cfg.fresh_weights:
        log_learning_rate(cfg)
        warn_of_repeated_batches(cfg, corpus)
    for name, folder in read_folders(cfg, objectives).items():
        require_same_vocabulary(name, folder, corpus)
    tokenizer = encoder_tokenizer(cfg, corpus, objectives)
    return PretrainingJob(
        cfg, hardware, corpus, objective_nodes, objectives, data, steps_to_keep, tokenizer
    )


def _lacks_lm_head(job: PretrainingJob) -> bool:
    """Whether the objectives predict tokens by a head that the given encoder does not have."""
    given = job.cfg.encoder
    if given is None or job.cfg.fresh_weights:
        return False
    needs_head = any(objective.token.predicts_tokens for objective in job.objectives)
    return needs_head and not may_have_head(Path(given))


def claim_run(job: PretrainingJob, composed: Composed) -> Run:
    """Take the run's folder for this pre-training, or take over an equal run."""
    inputs = {"corpus": job.corpus.fingerprint}
    for name, folder in read_folders(job.cfg, job.objectives).items():
        inputs[name] = encoder_fingerprint(folder)
    inputs |= factory.adapter_inputs(job.cfg.adaptation, inputs.get("encoder", ""))
    # How an LM head begins that the given encoder lacks is a part of the result.
    if _lacks_lm_head(job):
        inputs["fresh_head"] = FRESH_HEAD
    # A configuration has the name alone, whatever the file of that name says by now.
    identities = []
    for phase, node in zip(job.cfg.phases, job.objective_nodes, strict=True):
        if isinstance(phase.objective, str):
            identities.append(identity_of({"objective": node}))
    if identities:
        inputs["phase_objectives"] = digest(identities)
    # Phases may read two files under one name.
    checksums: dict[str, dict[str, None]] = {}
    for objective in job.objectives:
        for name, path in objective.token.files().items():
            checksums.setdefault(name, {})[file_sha256(path)] = None
    inputs |= {name: " ".join(of_name) for name, of_name in checksums.items()}
    # The very same run of another experiment is not trained again.
    share_equal_run(composed, inputs)
    return Run.claim(
        job.cfg.run_dir,
        stage="pretrain",
        config=composed,
        inputs=inputs,
        scores={metric.key: Score.of(metric) for metric in published_metrics(job.objectives)},
        metric=MONITORED,
    )


def make_data(
    cfg: PretrainConfig, corpus: PreparedCorpus, objectives: Sequence[Objective]
) -> CorpusDataModule:
    """The batches of a pre-training; its instances are not looked for yet."""
    return CorpusDataModule(
        corpus,
        objectives,
        phases=[vars(phase) for phase in cfg.phases],
        seed=cfg.seed,
        num_workers=cfg.trainer.num_workers,
        validation_instances=cfg.validation.instances,
        validation_seq_length=cfg.validation.seq_length,
        source_weights=source_weights(cfg),
    )


def recorded_corpus(cfg: PretrainConfig, record: Record) -> PreparedCorpus:
    """The corpus that a run was trained on; ValueError where another one is here now."""
    corpus = prepared_corpus(cfg)
    if corpus.fingerprint != record.inputs.get("corpus"):
        raise ValueError(
            f"{record.folder} was trained on another corpus than is here now; put its text and"
            " settings back"
        )
    return corpus


def check_pretraining(
    cfg: PretrainConfig, hardware: Hardware, objectives: Sequence[Objective]
) -> None:
    """Refuse what can be wrong with a pre-training before its corpus is looked at."""
    if cfg.trainer.gradient_checkpointing and hardware.strategy == "fsdp":
        raise ValueError(
            "trainer.gradient_checkpointing=true does not work with trainer=fsdp yet: choose one of"
            " them"
        )
    optimizer = cfg.optimizer.get("name")
    if cfg.optimizer.get("matrix_learning_rate") is not None:
        optimizer = "Muon"
    if optimizer in NEED_WHOLE_MATRICES and hardware.strategy == "fsdp":
        raise ValueError(
            f"{optimizer} needs whole matrices, and trainer=fsdp splits them: choose"
            " optimizer=adamw, or trainer=ddp"
        )
    check_averages_and_scores(cfg, hardware, objectives)
    if cfg.adaptation is not None:
        check_adaptation(cfg, hardware, objectives)
    # A given encoder brings its own shape, whatever the configuration says of a model.
    positions = cfg.model.max_position_embeddings
    if cfg.encoder is not None:
        require_encoder(cfg.encoder)
        positions = given_config(cfg).max_position_embeddings
        folders.refuse_untied(cfg.encoder)
    phases = [vars(phase) for phase in cfg.phases]
    check_lengths(phases, vars(cfg.validation), positions, hardware.world_size)
    given = max(given_lengths(cfg, objectives), default=0)
    check_position_growth(cfg.position_growth, phases, hardware.strategy, given)
    source_weights(cfg)  # refuses wrong ones
    # The constructor refuses sizes and parts that do not fit together.
    EncoderConfig(**vars(cfg.model), **vars(cfg.architecture), vocab_size=1)
    factory.check_optimizer(cfg, total_steps(phases))


def check_averages_and_scores(
    cfg: PretrainConfig, hardware: Hardware, objectives: Sequence[Objective]
) -> None:
    """Refuse averaged weights, and losses on attention scores, that cannot be had here."""
    callbacks = factory.configured_callbacks(cfg)
    averages = any(isinstance(callback, WeightAveraging) for callback in callbacks)
    if averages and (hardware.strategy == "fsdp" or hardware.precision == "bf16-true"):
        raise ValueError(
            "callbacks=ema does not work with trainer=fsdp, nor with trainer.precision=bf16-true,"
            " which rounds small updates away"
        )
    tokens = [objective.token for objective in objectives]
    reads_layers = any(getattr(token, "score_layers", None) for token in tokens)
    if reads_layers and hardware.strategy == "fsdp":
        raise ValueError(
            "objective.token.score_layers reads weights that trainer=fsdp splits: choose"
            " trainer=ddp, or leave it empty"
        )


def check_adaptation(
    cfg: PretrainConfig, hardware: Hardware, objectives: Sequence[Objective]
) -> None:
    """Refuse what does not go together with an `adaptation` of the encoder."""
    if cfg.encoder is None or cfg.fresh_weights:
        raise ValueError(
            "adaptation= leaves most of an encoder as it is, so it needs a trained one: say"
            " encoder=FOLDER, without fresh_weights=true"
        )
    if hardware.strategy == "fsdp" or hardware.precision == "bf16-true":
        raise ValueError(
            "adaptation= does not work with trainer=fsdp, nor with trainer.precision=bf16-true,"
            " which rounds small updates away"
        )
    for objective in objectives:
        if objective.token.trains_beside:
            raise ValueError(
                "adaptation= is for an objective that trains the encoder alone;"
                f" {objective.token.name} also trains a {objective.token.trains_beside[0]}"
            )


def read_folders(cfg: PretrainConfig, objectives: Sequence[Objective]) -> dict[str, Path]:
    """The folders of encoders that a run reads, by the names under which it records them.

    ValueError where two phases read another one under one name.
    """
    folders_read = {}
    if cfg.encoder is not None:
        folders_read = _given_folders(Path(cfg.encoder), objectives)
    for objective in objectives:
        for name, folder in objective.token.inputs().items():
            if folders_read.setdefault(name, folder) != folder:
                raise ValueError(
                    f"phases read two folders as {name}, {folders_read[name]} and {folder}: give"
                    " all of them the same"
                )
    return folders_read


def _given_folders(encoder: Path, objectives: Sequence[Objective]) -> dict[str, Path]:
    """A given encoder's folder, and those of its run's further models (generator) that are there.

    Any other further model starts from fresh weights.
    """
    given = {"encoder": encoder}
    for objective in objectives:
        for name in objective.token.trains_beside:
            beside = encoder.resolve().with_name(name)
            if (beside / CONFIG_FILE).is_file():
                given[name] = beside
    return given


def check_inputs(cfg: PretrainConfig, objectives: Sequence[Objective]) -> None:
    """Refuse folders that the objectives read and that do not fit the encoder; they are there."""
    if cfg.encoder is None:
        student = EncoderConfig(**vars(cfg.model), **vars(cfg.architecture), vocab_size=1)
    else:
        student = given_config(cfg)
    # Which objectives and parts fit together, the constructors know.
    with torch.device("meta"):
        models = build_models(Encoder(student), list(dict.fromkeys(objectives)))
        factory.adaptation(vars(cfg), models["encoder"].encoder)()
    match_groups(_trained_names(models), cfg.optimizer.get("groups"))
    if cfg.encoder is not None and not cfg.fresh_weights:
        check_generator(Path(cfg.encoder), models, objectives)
        check_decoder(Path(cfg.encoder), models["encoder"])
    lengths = [phase.seq_length for phase in cfg.phases]
    # A teacher reads the held-out instances, too.
    longest = max(*lengths, cfg.validation.seq_length)
    for objective in dict.fromkeys(objectives):
        objective.token.check(student, longest)
    check_start(cfg, student, objectives)


def check_start(
    cfg: PretrainConfig, student: EncoderConfig, objectives: Sequence[Objective]
) -> None:
    """Refuse a student that would start from several weights; its teacher has been checked."""
    starts = set()
    for objective in objectives:
        token: Any = objective.token
        if getattr(token, "teacher_layers", None):
            starts.add(tuple(token.layers_to_start_from(student, token.teacher_config)))
    if starts and cfg.encoder is not None:
        raise ValueError(
            "encoder= and objective.token.teacher_layers both say what the student starts from:"
            " leave one of them out"
        )
    if len(starts) > 1:
        choices = " and ".join(str(list(layers)) for layers in sorted(starts))
        raise ValueError(
            f"phases start the student from the teacher's layers {choices}, and it starts once:"
            " give all of them the same teacher_layers"
        )


def _trained_names(models: Models) -> list[str]:
    """The parameters that are trained, as a PretrainingModule names them."""
    names = []
    for model_name, model in models.items():
        if model.is_trained:
            names += [f"model.models.{model_name}.{name}" for name, _ in model.named_parameters()]
    return names


def check_generator(encoder: Path, models: Models, objectives: Sequence[Objective]) -> None:
    """Refuse a generator beside a given encoder whose size or embeddings do not fit.

    One that shares its embeddings would put its own in the place of the encoder's.
    """
    folder = _given_folders(encoder, objectives).get("generator")
    if folder is None:
        return
    generator = models["generator"].encoder
    given_config = vars(folders.read_config(folder))
    fresh = "copy the encoder alone to another folder, for a fresh generator"
    for name in GENERATOR_SIZES:
        size = getattr(generator.config, name)
        if given_config[name] != size:
            raise ValueError(
                f"{folder}: its {name} is {given_config[name]}, and that of this objective's"
                f" generator {size}: give the objective.token.generator_width and generator_depth"
                f" that it was trained with, or {fresh}"
            )
    if given_config["vocab_size"] != generator.config.vocab_size:
        return  # `require_same_vocabulary` says so
    is_shared = generator.embeddings is models["encoder"].encoder.embeddings
    if is_shared and not _have_equal_embeddings(encoder, folder):
        raise ValueError(
            f"{encoder} and {folder} have embeddings of their own, and this objective shares one"
            f" table: say objective.token.embedding_sharing=gdes, or {fresh}"
        )


def check_decoder(encoder: Path, model: EncoderWithHeads) -> None:
    """Refuse a given head of words that lacks the positions which an mlm_emd objective reads."""
    if "lm" not in model.heads or model.heads["lm"].is_stock:
        return
    family = family_for(folders.read_config(encoder))
    stored = folders.read_tensors(encoder)
    has_head = folders.has_head(family, "lm", model.heads["lm"], stored)
    if has_head and not family.has_position_queries(stored):
        raise ValueError(
            f"{encoder} predicts tokens without absolute positions, and mlm_emd needs them: train"
            " it on by objective=mlm, or from fresh weights by fresh_weights=true"
        )


def _have_equal_embeddings(encoder: Path, generator: Path) -> bool:
    """Whether the files of two encoders have the same numbers in their embeddings."""
    states = []
    for folder in (encoder, generator):
        states.append(folders.load_encoder(folder, warns_of_fresh=False).embeddings.state_dict())
    first, second = states
    return all(torch.equal(first[name], second[name]) for name in first)


def require_same_vocabulary(name: str, folder: Path, corpus: PreparedCorpus) -> None:
    """Refuse an encoder, given as `name`, that does not read the corpus's tokens."""
    tokenizer = open_tokenizer(folder)
    of_corpus = corpus.tokenizer.fingerprint
    # A folder of somebody's may follow the same rules in files of its own: `released` names them.
    if of_corpus not in (tokenizer.fingerprint, tokenizer.released):
        file = "vocab.txt"
        if (folder / TOKENIZER_FILE).is_file():
            file = TOKENIZER_FILE
        raise ValueError(
            f"{name}={folder} was trained with another vocabulary than the corpus is prepared with"
            f" (fingerprints {tokenizer.fingerprint[:12]} and {of_corpus[:12]}): its token ids mean"
            f" other words; prepare the corpus with the folder's own,"
            f" tokenizer.vocab_file=FOLDER/{file}"
        )


def log_passes(readings: Sequence[PhaseReading]) -> None:
    """Log how often the plan reads the corpus, and each source; too many passes are a warning."""
    sentences = [passes(*passes_over_text(readings))]
    if any(phase.weights for phase in readings):
        sentences.append(source_passes(passes_by_source(readings)))
    for sentence, is_much in sentences:
        level = logging.INFO
        if is_much:
            level = logging.WARNING
        log.log(level, "%s", sentence)


def warn_of_plateau(
    cfg: PretrainConfig, objective: Objective, vocab_size: int, tokens: float
) -> None:
    """Warn where a masked model reads too few tokens to know more than word frequencies."""
    needed = tokens_to_plateau(cfg, objective, vocab_size, cfg.phases[0].seq_length)
    if tokens < needed:
        log.warning("%s", too_short(tokens, needed))


def log_learning_rate(cfg: PretrainConfig) -> None:
    """Log the learning rate with which a given encoder is trained further."""
    encoder = Path(str(cfg.encoder))
    learning_rate = cfg.optimizer.get("learning_rate")
    of_scale = cfg.scale.pretrain.learning_rate
    reason = ""
    if is_given(encoder, cfg.scale.name) and learning_rate != of_scale:
        reason = (
            f": {encoder} is a given encoder, and {of_scale:g} of scale={cfg.scale.name} is for"
            " fresh weights"
        )
    log.info("learning rate %s%s", learning_rate, reason)


def warn_of_repeated_batches(cfg: PretrainConfig, corpus: PreparedCorpus) -> None:
    """Warn where a given encoder was trained on the batches that this run begins with.

    Seed, number of the phase, length and input format decide which instances a step reads.
    """
    given: Any = folders.read_provenance(str(cfg.encoder))
    of_encoder = (given.get("seed"), given.get("corpus_fingerprint"))
    if of_encoder != (cfg.seed, corpus.fingerprint):
        return
    if given.get("objective", {}).get("input") != cfg.objective.input:
        return
    lengths = [phase["seq_length"] for phase in given.get("phases", ())]
    # A kept encoder of an early step has not seen the lengths of later phases.
    trained = given.get("trained_seq_lengths", ())
    for phase, length in zip(cfg.phases, lengths, strict=False):
        if phase.seq_length == length and length in trained:
            log.warning(
                "%s was trained with seed=%d on this corpus: this run reads the same instances"
                " again, in the same order; give another seed= to read others first",
                cfg.encoder,
                cfg.seed,
            )
            return


def train(job: PretrainingJob, run: Run) -> None:
    """Train from the newest checkpoint to the end, save the encoder, complete the run."""
    cfg = job.cfg
    module = build_module(job.cfg, job.hardware, job.corpus, job.objectives, job.data.total_steps)
    adapt_to_machine(job, run, module)
    module.words_by_step = job.data.words_by_step().tolist()
    facts = corpus_facts(cfg, job.corpus, job.objectives[-1], job.data) | module.facts()
    if isinstance(cfg.phases[-1].objective, str):
        facts["last_objective"] = job.objective_nodes[-1]
    factory.record_begin(run, job.hardware, **facts)
    if cfg.encoder is not None and not cfg.fresh_weights:
        folder = Path(cfg.encoder)
        begun_with = factory.encoder_facts(folder, module.model.encoder.config)
        run.record(encoder=begun_with, fresh_heads=module.fresh_heads)
    # What is kept on the way is written as the last one is.
    save = partial(save_encoder, job, run, module)
    callbacks = factory.build_callbacks(
        cfg,
        run,
        cfg.checkpoint_interval_steps,
        before_checkpoint=[KeepEncoders(job.steps_to_keep, save)],
    )
    loggers = factory.build_loggers(cfg, run, arm=cfg.arm)
    with tracked(loggers):
        trainer = factory.make_trainer(
            cfg,
            job.hardware,
            job.data.total_steps,
            validation_interval_steps=cfg.validation.interval_steps,
            callbacks=callbacks,
            loggers=loggers,
            folder=run.dir,
        )
        trainer.fit(module, datamodule=job.data, ckpt_path=newest_intact(run.dir / "checkpoints"))
        # What comes of it is written while the trackers are still open.
        if run.is_leader:
            warn_of_early_stop(trainer, job.data.total_steps)
            warn_of_missed(job, run)
            save()
            if cfg.adaptation is not None:
                save_adapter(
                    run.dir / "adapter",
                    module.model.encoder,
                    dict(module.model.named_models["encoder"].heads.items()),
                    str(cfg.encoder),
                    base_fingerprint=run.content.inputs["encoder"],
                )
            facts = module.facts()
            summarise(loggers, facts)
            run.content.scores = published_scores(job.objectives, facts)
            # Also those that an early stop came before: it would train none of them now.
            kept = [f"encoders/step-{step}" for step in job.steps_to_keep]
            at_words = cfg.keep_encoders_at_words
            run.complete({"scores": facts}, kept=kept, kept_at_words=at_words, **facts)


def warn_of_early_stop(trainer: Trainer, total_steps: int) -> None:
    """Warn of a training that a callback has ended before the last step of its phases."""
    if trainer.global_step >= total_steps:
        return
    best = ""
    for stopping in trainer.early_stopping_callbacks:
        best += f"; the best {stopping.monitor} was {float(stopping.best_score):.4g}"
    log.warning(
        "ended early, after step %d of %d: the learning rate has not fallen to its end, and the"
        " encoder is that of this step%s",
        trainer.global_step,
        total_steps,
        best,
    )


def warn_of_missed(job: PretrainingJob, run: Run) -> None:
    """Warn of encoders that are not kept: an early stop came first, or they were asked for late."""
    for step in job.steps_to_keep:
        folder = run.dir / f"encoders/step-{step}"
        if not folder.is_dir():
            log.warning("%s is not there: that step was not trained with keep_encoders", folder)


def published_scores(objectives: Sequence[Objective], facts: PlainMapping) -> dict[str, Score]:
    """The held-out figures that a training has published, also those of single sources."""
    metrics = published_metrics(objectives)
    keys = [MONITORED, *(key for key in facts if key.startswith(PREFIX))]
    return {key: Score.of(metric_of(key, metrics)) for key in keys}


def training_objects(cfg: PretrainConfig) -> tuple[PretrainingModule, CorpusDataModule, Trainer]:
    """Module, data and Trainer, for a training from Python; no run folder is claimed."""
    job = prepare(cfg)
    module = build_module(job.cfg, job.hardware, job.corpus, job.objectives, job.data.total_steps)
    module.choose_graphs(job.hardware.cuda_graphs, factory.configured_callbacks(cfg))
    if job.hardware.compiles_pretraining:
        module.model.compile_parts(whole=job.hardware.compile == "whole")
    interval_steps = cfg.validation.interval_steps
    trainer = factory.standalone_trainer(cfg, job.hardware, job.data.total_steps, interval_steps)
    return module, job.data, trainer


def save_encoder(
    job: PretrainingJob, run: Run, module: PretrainingModule, step: int | None = None
) -> None:
    """Write the encoder as it is after `step` (None: after the last) into the run's folder."""
    folder = run.dir / "encoder"
    if step is not None:
        folder = run.dir / f"encoders/step-{step}"
    elif module.trainer.global_step < job.data.total_steps:
        step = module.trainer.global_step  # an early stop's
    provenance = encoder_provenance(job.cfg, run.content, job.corpus, step=step)
    num_phases = phases_begun(job.cfg, step)
    module.save_encoder(
        folder, job.tokenizer.files(), provenance, job.cfg.encoder_dtype, num_phases
    )


def text_digest(cfg: PretrainConfig, corpus: PreparedCorpus) -> str:
    """Digest of a corpus's text."""
    settings = corpus.manifest["settings"]
    identity: list[object] = [sorted(text_marks(settings["sources"]))]
    identity.append(cfg.corpus.validation_fraction)
    split = split_facts(settings)
    if split:
        identity += split.values()
        identity += [sorted(text_marks([source])) for source in settings["sources"]]
    return digest(identity + further_steps(settings))


def corpus_facts(
    cfg: PretrainConfig, corpus: PreparedCorpus, objective: Objective, data: CorpusDataModule
) -> PlainDict:
    """Losses on the held-out text that the report compares the trained model's with.

    `unigram_loss` is what the training text's frequencies alone give there. A generated text has
    `known_loss` too, the best that any model can do. `text` is a digest of the files that were
    read, of the steps that they went through and of how much was held out, whatever the files are
    called and whichever tokenizer cuts them. `tokenizer` is that one's fingerprint.
    """
    # Losses that need no model: of frequencies alone and, where it is known, the best possible.
    labels = data.held_out_labels()
    facts: PlainDict = {
        "unigram_loss": unigram_loss(corpus.train, labels),
        "text": text_digest(cfg, corpus),
        "tokenizer": corpus.tokenizer.fingerprint,
    }
    if not cfg.corpus.generator:
        return facts
    # (share of tokens that are predicted, share of these that stay as they are)
    masking_shares = None
    if isinstance(objective.token, Masking) and not objective.is_causal:
        masking = objective.token
        # Of tokens masked in spans, or that see each other, the best loss is not known.
        is_known = len(masking.span_weights) == 1 and not masking.unit_texts
        if not is_known or objective.token.predictions_help:
            return facts
        predicted = min(masking.predict_prob, masking.max_predictions_fraction)
        masking_shares = (predicted, masking.same_fraction)
    elif not objective.is_causal:
        return facts
    best = known_loss(
        cfg.data_dir,
        corpus.tokenizer,
        labels,
        seq_length=data.validation_seq_length,
        masking=masking_shares,
    )
    if best:
        facts["known_loss"] = best
    return facts


def phases_begun(cfg: PretrainConfig, step: int | None) -> int:
    """How many phases have been trained on after an optimizer step (None: the last)."""
    if step is None:
        return len(cfg.phases)
    # Phases of 900, 50 and 50 steps begin after steps 0, 900 and 950.
    first_steps = accumulate((phase.steps for phase in cfg.phases[:-1]), initial=0)
    return sum(first_step < step for first_step in first_steps)


def encoder_provenance(
    cfg: PretrainConfig, record: Record, corpus: PreparedCorpus, *, step: int | None
) -> PlainDict:
    """What an encoder's config.json keeps about its training, without secrets: models are shared.

    `step`: the optimizer step after which it was kept (None: the last). Only sequence lengths that
    were trained on until then are listed.
    """
    seq_lengths = given_lengths(cfg)
    for phase in cfg.phases[: phases_begun(cfg, step)]:
        seq_lengths.add(phase.seq_length)
    provenance: PlainDict = {}
    if step is not None:
        provenance["step"] = step
    for key in ("experiment", "arm", "seed", "objective", "phases"):
        provenance[key] = record.config[key]
    if cfg.encoder is not None and not cfg.fresh_weights:
        vectors = given_vectors(Path(cfg.encoder))
        if vectors is not None:
            provenance["given_vectors"] = vectors
    return provenance | {
        "run_fingerprint": record.fingerprint,
        "corpus_fingerprint": corpus.fingerprint,
        "tokenizer_fingerprint": corpus.tokenizer.fingerprint,
        "trained_seq_lengths": sorted(seq_lengths),
    }


def adapt_to_machine(job: PretrainingJob, run: Run, module: PretrainingModule) -> None:
    """Choose micro-batch sizes, and whether to compile and to replay steps as CUDA graphs.

    A run that goes on reads what it chose when it began. All are applied, and recorded.
    """
    data = job.data
    has_chosen = "compiled" in run.facts  # perhaps before there were graphs
    if has_chosen:
        module.cuda_graphs = bool(run.facts.get("cuda_graphs"))
    else:
        callbacks = factory.configured_callbacks(job.cfg)
        module.choose_graphs(job.hardware.cuda_graphs, callbacks)
    # Another layout (devices, micro-batches) has dropped these facts: then they are chosen anew.
    sizes = run.facts.get("micro_batch_sizes") or _micro_batch_sizes(job, module)
    phases = zip(data.phases, sizes, strict=True)
    data.phases = [replace(phase, micro_batch_size=size) for phase, size in phases]
    compiled: bool | str = job.hardware.compiles_pretraining
    if job.hardware.compile == "whole":
        compiled = "whole"
    compiled = run.facts.get("compiled", compiled)
    if compiled:
        module.model.compile_parts(whole=compiled == "whole")
    run.record(compiled=compiled, cuda_graphs=module.cuda_graphs, micro_batch_sizes=sizes)


def _micro_batch_sizes(job: PretrainingJob, module: PretrainingModule) -> list[int]:
    """Each phase's size: as configured or, with `auto`, what fits in the device's memory.

    Several devices would have to agree, and do not.
    """
    configured = [phase.micro_batch_size for phase in job.data.phases]
    if job.cfg.trainer.micro_batch != "auto" or job.hardware.accelerator != "gpu":
        return configured
    if job.hardware.world_size > 1:
        log.warning("trainer.micro_batch=auto is for one device: micro-batches stay as configured")
        return configured
    fitting = []
    for index in range(len(configured)):
        fitting.append(_largest_micro_batch(job, module, index))
    if fitting != configured:
        log.info("micro-batches of %s instances fit, of the configured %s", fitting, configured)
    return fitting


def _largest_micro_batch(job: PretrainingJob, module: PretrainingModule, index: int) -> int:
    """The largest of a phase's configured size and its halves of which a step fits in memory."""
    data = job.data
    phase = data.phases[index]
    first_step = data.first_steps[index]

    # The first batch of a phase stands for all of them.
    def attempt(size: int) -> None:
        data.phases[index] = replace(phase, micro_batch_size=size)
        micro_batch = data.train_stream(first_step, 0, 1).micro_batches(first_step)[0]
        try_step(module.model, micro_batch, job.hardware.device, job.hardware.precision)

    fitting = largest_that_fits(attempt, min(phase.micro_batch_size, phase.global_batch_size))
    # The trials changed the plan; the caller changes it once, for all phases.
    data.phases[index] = phase
    return fitting
