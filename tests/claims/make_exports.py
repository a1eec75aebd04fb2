"""Makes `exports/`: small results as other libraries write them.

    python tests/claims/make_exports.py FOLDER [KIND ...]

A kind is mteb, trainer, mlflow or harness; without one, all are made. Models are tiny and
untrained, and the scores of MTEB and MLflow are drawn; files and layouts are real. It takes two
minutes and needs no network. Made with mteb 2.26.24, transformers 5.23.0, mlflow 3.17.2 and lm-eval
0.4.13, which are no requirements of the project.
"""

from __future__ import annotations

import json
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ARMS = {"narrow": 16, "wide": 32}  # hidden sizes
SEEDS = (1, 2, 3)


def make_mteb(folder: Path) -> None:
    """A result cache with one task of a single subset and one of several."""
    import mteb
    from mteb.cache import ResultCache
    from mteb.models import ModelMeta
    from mteb.results import TaskResult

    cache = ResultCache(folder)
    for index, arm in enumerate(ARMS):
        for seed in SEEDS:
            draw = np.random.default_rng([index, seed])
            meta = ModelMeta.create_empty({"name": f"lab/{arm}-seed-{seed}", "revision": "main"})
            for name in ("STSBenchmark", "STS17"):
                task = mteb.get_task(name)
                subsets = {}
                for subset in list(task.metadata.hf_subsets)[:2]:
                    score = round(float(draw.uniform(0.5, 0.6) + 0.1 * index), 6)
                    subsets[subset] = {"cosine_spearman": score, "main_score": score}
                result = TaskResult.from_task_results(task, {"test": subsets}, evaluation_time=1.0)
                cache.save_to_cache(result, meta)


def make_trainer(folder: Path) -> None:
    """Fine-tunings of two steps; those of one arm save their state alone."""
    import torch
    from torch.utils.data import Dataset
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        EvalPrediction,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    class Examples(Dataset):
        def __init__(self, seed: int) -> None:
            self.ids = torch.randint(5, 50, (16, 8), generator=torch.manual_seed(seed))

        def __len__(self) -> int:
            return len(self.ids)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"input_ids": self.ids[index], "labels": (self.ids[index, 0] > 27).long()}

    def accuracy(predictions: EvalPrediction) -> dict[str, float]:
        answers = np.argmax(predictions.predictions, axis=-1)
        return {"accuracy": float((answers == predictions.label_ids).mean())}

    for arm, hidden_size in ARMS.items():
        for seed in SEEDS:
            set_seed(seed)
            config = BertConfig(
                vocab_size=50,
                hidden_size=hidden_size,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=32,
            )
            arguments = TrainingArguments(
                output_dir=str(folder / arm / "toy" / f"seed-{seed}"),
                max_steps=2,
                per_device_train_batch_size=8,
                learning_rate=0.1,
                eval_strategy="steps",
                eval_steps=1,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                seed=seed,
                use_cpu=True,
            )
            model = BertForSequenceClassification(config)
            trainer = Trainer(
                model=model,
                args=arguments,
                train_dataset=Examples(seed),
                eval_dataset=Examples(0),
                compute_metrics=accuracy,
            )
            trained = trainer.train()
            evaluated = trainer.evaluate()
            if arm == "wide":
                trainer.save_metrics("train", trained.metrics)
                trainer.save_metrics("eval", evaluated)
            trainer.save_state()


def make_mlflow(folder: Path) -> None:
    """Two exports of one store: that of the library, and that of the command line."""
    import mlflow
    from click.testing import CliRunner
    from mlflow.cli import cli

    with TemporaryDirectory() as store:
        mlflow.set_tracking_uri(f"sqlite:///{store}/mlflow.db")
        experiment = mlflow.create_experiment("toy", artifact_location="file:///mlruns")
        for index, arm in enumerate(ARMS):
            for seed in (*SEEDS, 4, 5):
                draw = np.random.default_rng([index, seed])
                with mlflow.start_run(experiment_id=experiment, run_name=f"{arm}-{seed}"):
                    mlflow.log_params({"model": arm, "seed": seed, "lr": 1e-4})
                    for step in (1, 2):
                        score = float(draw.uniform(0.5, 0.6) + 0.1 * index)
                        mlflow.log_metrics({"eval/f1": score, "loss": 1.0 - score}, step=step)
        # One run that has failed, as most stores have.
        mlflow.start_run(experiment_id=experiment)
        mlflow.log_params({"model": "wide", "seed": 6})
        mlflow.end_run("FAILED")
        runs = mlflow.search_runs([experiment])
        folder.mkdir(parents=True, exist_ok=True)
        runs.to_csv(folder / "search_runs.csv")
        command = ["experiments", "csv", "--experiment-id", experiment]
        command += ["--filename", str(folder / "cli.csv")]
        result = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output


TASK = """
task: toy
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
output_type: multiple_choice
test_split: test
doc_to_text: question
doc_to_target: answer
doc_to_choice: ["yes", "no"]
metric_list: [{metric: acc}, {metric: brier_score, higher_is_better: false}]
"""


def make_harness(folder: Path) -> None:
    """Language models of random weights on eight questions."""
    from lm_eval.__main__ import cli_evaluate
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

    vocabulary = {word: i for i, word in enumerate(["<end>", "yes", "no", "is", "it", *"abcdefgh"])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<end>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    with TemporaryDirectory() as work, chdir(work):
        place = Path()
        questions = []
        for number, letter in enumerate("abcdefgh"):
            questions.append({"question": f"is it {letter}", "answer": number % 2})
        lines = "\n".join(map(json.dumps, questions))
        (place / "questions.jsonl").write_text(lines)
        (place / "toy.yaml").write_text(TASK)
        for arm, hidden_size in ARMS.items():
            for seed in SEEDS:
                set_seed(seed)
                model = f"lab/{arm}-seed-{seed}"
                config = GPT2Config(
                    vocab_size=len(vocabulary),
                    n_embd=hidden_size,
                    n_layer=1,
                    n_head=2,
                    n_positions=32,
                    bos_token_id=0,
                    eos_token_id=0,
                    initializer_range=1.0,
                )
                GPT2LMHeadModel(config).save_pretrained(place / model)
                tokenizer.save_pretrained(place / model)
                sys.argv = ["lm_eval", "--model", "hf", "--tasks", "toy"]
                sys.argv += ["--model_args", f"pretrained={place / model}", "--device", "cpu"]
                sys.argv += ["--include_path", ".", "--output_path", str(folder)]
                sys.argv += ["--seed", str(seed)]
                cli_evaluate()
    for path in folder.rglob("results*.json"):
        results = json.loads(path.read_text())
        del results["pretty_env_info"]  # two pages about the machine
        path.write_text(json.dumps(results, indent=2) + "\n")


MAKERS = {
    "mteb": make_mteb,
    "trainer": make_trainer,
    "mlflow": make_mlflow,
    "harness": make_harness,
}

if __name__ == "__main__":
    for kind in sys.argv[2:] or MAKERS:
        MAKERS[kind](Path(sys.argv[1]).resolve() / kind)
