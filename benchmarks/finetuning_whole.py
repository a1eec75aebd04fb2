"""A whole fine-tuning of a public encoder beside a plain loop of transformers, in turns.

`python benchmarks/finetuning_whole.py` trains all-MiniLM-L6-v2 on MRPC for one epoch of batches of
32. Each turn is a fresh process, from its start to a saved model and its validation accuracy. The
peer shuffles, pads each batch to its longest row, and uses fused AdamW with a linear schedule, in
bf16 where the processor multiplies that faster. CPU seconds are of user and system, all threads.

Writes docs/results/finetuning-whole-DATE-COMMIT.md. `--smoke` only shows that everything runs (its
numbers mean nothing, and nothing is written unless --output says where). Needs the data in
clozelab's layout (`--data-dir`; by default CLOZELAB_SHARED/data or ../shared/data) and the extra
`public`.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from answering import minilm
from interleaved import ROOT, default_report, parser, ratios, report, say, spread
from pretraining import is_bf16_faster

LONGEST, ROWS = 128, 32
LEARNING_RATE = 5e-5
WARMUP_SHARE = 0.1
SMOKE_EXAMPLES = 64
ACCURACY = "validation/accuracy"  # in scores.json
OURS, PEER = "clozelab finetune", "transformers, a loop with dynamic padding"


@dataclass
class Turns:
    """What the processes of one side took, and the accuracy that each reached."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    def run(self, command: Sequence[str], folder: Path, threads: int) -> None:
        """One turn, measured from outside; SystemExit with the process's words if it failed."""
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        environment["TOKENIZERS_PARALLELISM"] = "false"
        folder.mkdir()
        start = time.perf_counter()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{(folder / 'log').read_text()}\nfailed: {' '.join(command)}")
        self.seconds.append(time.perf_counter() - start)
        self.cpu_seconds.append(usage.ru_utime + usage.ru_stime)
        self.accuracies.append(read_accuracy(folder))


def read_accuracy(folder: Path) -> float:
    """Per cent, from the one scores.json below a turn's folder."""
    (path,) = folder.rglob("scores.json")
    scores = json.loads(path.read_text(encoding="utf-8"))
    return 100.0 * float(scores["scores"][ACCURACY])


# The sides


def clozelab_command(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """`clozelab finetune` as a user types it."""
    return [
        *(sys.executable, "-m", "clozelab", "finetune", "encoder=minilm", "task=mrpc", "row=bench"),
        *("epochs=1", f"learning_rate={LEARNING_RATE}", f"global_batch_size={ROWS}", "seed=1"),
        f"task.data.max_seq_length={LONGEST}",
        f"max_train_examples={arguments.examples}",
        f"data_dir={arguments.data_dir}",
        f"runs_dir={folder}",
        "trainer=cpu",
        f"trainer.threads={arguments.threads}",
    ]


def peer_command(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """This script, as the peer."""
    return [
        *(sys.executable, __file__, "--worker", str(folder)),
        *("--examples", str(arguments.examples), "--threads", str(arguments.threads)),
        *("--data-dir", str(arguments.data_dir)),
        *(["--bf16"] if arguments.bf16 else []),
    ]


def read_mrpc(path: Path) -> list[tuple[str, str, int]]:
    """Pairs of sentences with their labels."""
    pairs = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            pairs.append((row["#1 String"], row["#2 String"], int(row["Quality"])))
    return pairs


def train_peer(folder: Path, arguments: argparse.Namespace) -> None:
    """The loop of transformers' text classification example, without accelerate."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        get_linear_schedule_with_warmup,
    )

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(minilm())

    def features(name: str, most: int | None) -> list[dict[str, Any]]:
        rows = []
        for first, second, label in read_mrpc(arguments.data_dir / "glue/MRPC" / name)[:most]:
            row = tokenizer(first, second, truncation=True, max_length=LONGEST)
            rows.append(dict(row) | {"labels": label})
        return rows

    collate = DataCollatorWithPadding(tokenizer)
    training: Any = features("train.tsv", arguments.examples)
    batches: Any = DataLoader(training, ROWS, shuffle=True, collate_fn=collate)
    validation = features("dev.tsv", None)
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=2)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.01, fused=True)
    warmup = round(WARMUP_SHARE * len(batches))
    schedule = get_linear_schedule_with_warmup(optimizer, warmup, len(batches))
    precision = nullcontext
    if arguments.bf16:
        precision = partial(torch.autocast, "cpu", torch.bfloat16)  # type: ignore[assignment]

    model.train()
    for batch in batches:
        with precision():
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    model.eval()
    num_right = 0
    for batch in DataLoader(validation, ROWS, collate_fn=collate):  # type: ignore[arg-type]
        with torch.inference_mode(), precision():
            logits = model(**batch).logits
        num_right += int((logits.argmax(-1) == batch["labels"]).sum())
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    scores = {"scores": {ACCURACY: num_right / len(validation)}}
    (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")


# The report


def compare(arguments: argparse.Namespace) -> list[str]:
    """The table."""
    sides = {OURS: (clozelab_command, Turns()), PEER: (peer_command, Turns())}
    with tempfile.TemporaryDirectory() as temporary:
        for turn in range(arguments.rounds):
            for number, (command_of, turns) in enumerate(sides.values()):
                folder = Path(temporary) / f"{turn}-{number}"
                turns.run(command_of(folder, arguments), folder, arguments.threads)
    ours = sides[OURS][1]
    lines = say(
        f"{arguments.examples:,} pairs of MRPC at most, {arguments.rounds} x each side, in turns."
        " Ratios are those of neighbouring turns.",
        "",
        "| side | seconds | CPU seconds | accuracy | clozelab is faster by | by CPU seconds |",
        "|---|---|---|---|---|---|",
    )
    for name, (_, turns) in sides.items():
        faster, by_cpu = "1", "1"
        if turns is not ours:
            faster = ratios(turns.seconds, ours.seconds)
            by_cpu = ratios(turns.cpu_seconds, ours.cpu_seconds)
        lines += say(
            f"| {name} | {spread(turns.seconds, 1)} | {spread(turns.cpu_seconds, 1)} |"
            f" {spread(turns.accuracies, 1)} | {faster} | {by_cpu} |"
        )
    return lines


def read_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    shared = Path(os.environ.get("CLOZELAB_SHARED", ROOT.parent / "shared"))
    options = parser(__doc__, rounds=3, seconds=None)
    options.add_argument("--examples", type=int, default=3668, help="of the training file, at most")
    options.add_argument("--data-dir", type=Path, default=shared / "data")
    options.add_argument("--bf16", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--smoke", action="store_true")
    arguments = options.parse_args(words)
    if arguments.smoke:
        arguments.rounds, arguments.examples = 1, SMOKE_EXAMPLES
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    arguments = read_arguments(words)
    if arguments.worker:
        train_peer(Path(arguments.worker), arguments)
        return 0
    # Measured once, not in each turn of the peer.
    arguments.bf16 = is_bf16_faster()
    output = arguments.output
    if output is None and not arguments.smoke:
        output = default_report("finetuning-whole")
    title = "A whole fine-tuning of MiniLM on MRPC"
    report(title, arguments.threads, {"In turns": partial(compare, arguments)}, output)
    return 0


if __name__ == "__main__":
    if importlib.util.find_spec("transformers") is None:
        sys.exit("the peer is missing: pip install 'clozelab[hf]'")
    sys.exit(main())
