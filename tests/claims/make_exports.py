"""Makes `exports/`: small folders of results as mteb and transformers themselves write them.

    python tests/claims/make_exports.py FOLDER

Models are tiny and untrained, and MTEB's scores are drawn; files and layouts are real. It takes
half a minute and needs no network. Made with mteb 2.26.24 and transformers 5.23.0.
"""

from __future__ import annotations

import sys
from pathlib import Path

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


if __name__ == "__main__":
    make_mteb(Path(sys.argv[1]) / "mteb")
    make_trainer(Path(sys.argv[1]) / "trainer")
