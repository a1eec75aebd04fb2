"""What is given away of runs: `clozelab submit glue RUNS...` and `clozelab export RUN`.

The first packs the zip that the GLUE server takes, from runs with predict_test=true. Of several runs with predictions
for the same test set, the one that is best on its validation split is taken, as the paper selects.

The second writes the encoder of an unfinished run from its checkpoint, which holds whole weights whatever the strategy:
FSDP gathers its shards to save it. So one process on a CPU is enough, on any machine that has the run's corpus.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

from clozelab.metrics.glue import TEST_SETS, placeholder, write_submission
from clozelab.terminal import Words, verb

HELP = """clozelab submit glue RUNS... [out=FILE] [--placeholders]

Packs the test predictions of fine-tuning runs (predict_test=true) into a GLUE submission. RUNS are run folders, or
folders above them; of several runs on one test set the best on its validation split is taken.

  out=FILE          where the zip goes (glue_submission.zip)
  --placeholders    fill test sets that no run has predicted with one constant answer

What the server would turn away is refused, and nothing is written then."""

EXPORT_HELP = """clozelab export RUN [FOLDER]

Writes the encoder of a pre-training run that was stopped or still trains, as its checkpoint has it, whichever strategy
trained it (trainer=fsdp too): config.json, model.safetensors, tokenizer files. FOLDER is RUN/encoders/step-N."""


class Candidate(NamedTuple):
    """One run's predictions for one test set."""

    path: Path
    run: Path
    metric: str
    score: float
    stand_in_for: str | None
    task: str


@verb("submit", HELP, names=(0, None), keys=("out",), flags=("placeholders",))
def main(said: Words) -> int:
    """Write a submission; returns the exit status."""
    if said.names[:1] != ["glue"]:
        raise ValueError(
            f"submit knows one benchmark: `clozelab submit glue RUNS...`, not {said.names[:1] or 'nothing'}"
        )
    out = Path(said.values.get("out", "glue_submission.zip"))
    best: dict[str, Candidate] = {}
    for name, found in find_predictions([*map(Path, said.names[1:])]).items():
        # A model trained on a stand-in is scored on another validation set: only where there is no other.
        own = [one for one in found if one.stand_in_for is None] or found
        if len({(one.metric, one.task) for one in own}) > 1:
            runs = ", ".join(f"{one.run} ({one.task}, {one.metric})" for one in own)
            raise ValueError(f"{name}: nobody can say which is best of {runs}; give only the run that you mean")
        best[name] = max(own, key=lambda one: one.score)
    missing = [name for name in TEST_SETS if name not in best]
    if missing and "placeholders" not in said.flags:
        raise ValueError(
            f"no predictions for {', '.join(missing)}: fine-tune those tasks with predict_test=true, or add "
            "--placeholders to fill them with one constant answer (their scores then mean nothing)"
        )
    contents = {name: one.path.read_bytes() for name, one in best.items()}
    write_submission(out, contents | {name: placeholder(name).encode() for name in missing})
    for name in TEST_SETS:
        if name in missing:
            print(f"  {name:<8} placeholder: one constant answer")
        else:
            one = best[name]
            note = f"  (trained on a stand-in for {one.stand_in_for})" if one.stand_in_for else ""
            print(f"  {name:<8} {one.metric} {one.score:.4f}  {one.run}{note}")
    print(f"Submission: {out.resolve()}")
    return 0


def find_predictions(runs: Sequence[Path]) -> dict[str, list[Candidate]]:
    """Test set -> the predictions for it in or below the given folders.

    ValueError: a folder does not exist, none holds predictions, or a run has no score beside them.
    """
    found: dict[str, list[Candidate]] = {}
    for folder in runs:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder; give run folders of `clozelab finetune ... predict_test=true`")
        for path in sorted(path for path in folder.rglob("test_predictions/*.tsv") if path.stem in TEST_SETS):
            run = path.parents[1]
            try:
                saved = json.loads((run / "scores.json").read_text(encoding="utf-8"))
                metric, task, stand_in = str(saved["metric"]), str(saved["name"]), saved.get("stand_in_for")
                candidate = Candidate(path, run, metric, float(saved["scores"][metric]), stand_in, task)
            except (OSError, ValueError, KeyError) as error:
                raise ValueError(f"{run}: no readable scores.json beside its predictions ({error})") from error
            found.setdefault(path.stem, []).append(candidate)
    if not found:
        named = ", ".join(map(str, runs)) or "(no folder given)"
        raise ValueError(f"no test predictions in {named}; fine-tune with predict_test=true first")
    return found


@verb("export", EXPORT_HELP, names=(1, 2))
def export(said: Words) -> int:
    """Write the encoder's folder and print where it is; ValueError where the run has no checkpoint of its own."""
    run, *given = (Path(name).resolve() for name in said.names)
    from omegaconf import OmegaConf  # these take seconds, which --help need not wait

    from clozelab import config
    from clozelab.launch.sweep import compose, hydra_config
    from clozelab.runs.record import read_record
    from clozelab.stages import building
    from clozelab.stages.prepare import prepared_corpus
    from clozelab.targets import check_targets
    from clozelab.training.callbacks import SameConfig
    from clozelab.training.checkpoints import load_file, newest_whole
    from clozelab.training.trainer import Hardware

    record, checkpoint = read_record(run), newest_whole(run / "checkpoints", put_aside=False)
    if record is None or record.stage != "pretrain" or checkpoint is None:
        raise ValueError(f"{run} is no pre-training run with a checkpoint; a complete one has its encoder/ already")
    saved = load_file(checkpoint)
    if saved[SameConfig.KEY] != record.fingerprint:
        raise ValueError(f"{checkpoint} is of another run than the run.json above it")
    if not record.config_name:
        raise ValueError(f"{run} was not made by a command line")
    config.register()
    with chdir(record.started_in or "."):  # paths may be relative
        experiment = Path(record.config_dir) if record.config_dir else None
        with hydra_config(compose(record.config_name, record.overrides, folder=experiment)) as cfg:
            check_targets(cfg)
            plain: Any = OmegaConf.to_container(cfg, resolve=True)
            objectives, corpus = building.build_objectives(plain), prepared_corpus(cfg)
            if corpus.fingerprint != record.inputs.get("corpus"):
                raise ValueError(
                    f"{run} was trained on another corpus than is here now; put its text and settings back"
                )
            machine = Hardware("cpu", 1, 1, "auto", "32-true")
            module = building.build_pretraining_module(cfg, machine, corpus, objectives, total_steps=1)
            tokenizer = building.encoder_tokenizer(cfg, corpus, objectives)
    module.load_state_dict(saved["state_dict"])
    step = int(saved["global_step"])
    folder = given[0] if given else run / "encoders" / f"step-{step}"
    module.save_encoder(folder, tokenizer.files(), building.provenance(plain, record, corpus, step=step))
    print(folder)
    return 0
