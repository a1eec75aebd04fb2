"""Text to token shards, beside `datasets.map` with the same tokenizer.

Every measurement is a whole process from its start to its end, imports included: the command
`clozelab prepare`, and a script that loads the same jsonl file with `datasets` and maps a
transformers tokenizer over its documents, which it neither cleans nor splits into sentences nor
holds anything out of. The peer stores input ids alone and has one process with one thread, as has
clozelab with one worker. All have the same vocabulary of 30,522 WordPiece entries, which is learnt
before, and empty caches. MB are 10^6 bytes of the unpacked file.

The last part makes training sequences: pairs of 256 x 128 with masks, cut from the tokens anew for
every batch, beside the collator of transformers on rows that were cut before. Each side's first
batch is checked for its shape and its masks.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoders import pairs_objective
from interleaved import (
    ROOT,
    default_report,
    parser,
    race,
    rate_rows,
    rate_table,
    ratios,
    repeated,
    report,
    say,
    serve,
    spread,
)

TITLE = "Preparing text beside datasets.map"
MEGABYTES, QUICK_MEGABYTES = 60, 4
VOCABULARY, LEARNT_CHARACTERS = 30_522, 16_000_000
ROWS, LENGTH = 256, 128
ONE_THREAD = {
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
TABLE = [
    "| side | MB/s, median (min-max) | faster than datasets.map by | CPU | memory | disk |",
    "|---|---|---|---|---|---|",
]


@dataclass
class Runs:
    """What the runs of one side took."""

    command: list[str]
    megabytes: float
    rates: list[float] = field(default_factory=list)  # MB/s
    cpu_seconds: list[float] = field(default_factory=list)
    peak_megabytes: float = 0.0
    share_on_disk: float = 0.0  # of the text's bytes

    def run(self, folder: Path) -> None:
        """One run in an empty folder, measured from outside."""
        folder.mkdir()
        environment = os.environ | ONE_THREAD | {"HF_DATASETS_CACHE": str(folder / "datasets")}
        start = time.perf_counter()
        command = [word.replace("FOLDER", str(folder)) for word in self.command]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
        self.rates.append(self.megabytes / (time.perf_counter() - start))
        if status:
            raise SystemExit(f"{(folder / 'log').read_text()}\nfailed: {' '.join(command)}")
        self.cpu_seconds.append(usage.ru_utime + usage.ru_stime)
        self.peak_megabytes = max(self.peak_megabytes, usage.ru_maxrss / 1000)  # of kB
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self.share_on_disk = size / 1e6 / self.megabytes
        shutil.rmtree(folder)


# The text


def read_rows(paths: list[Path], num_bytes: int) -> Iterator[str]:
    """Objects with a text alone, one a line: of each jsonl file, packed or not, its share of
    `num_bytes`. `datasets` takes rows with the same keys only.
    """
    import zstandard

    for path in paths:
        left = num_bytes / len(paths)
        with path.open("rb") as file:
            stream: Any = file
            if path.suffix == ".zst":
                stream = zstandard.ZstdDecompressor().stream_reader(file)
            for line in io.TextIOWrapper(stream, encoding="utf-8"):
                yield json.dumps({"text": json.loads(line)["text"]}, ensure_ascii=False) + "\n"
                left -= len(line.encode())
                if left <= 0:
                    break


def write_text(paths: list[Path], megabytes: float, folder: Path) -> Path:
    """The text that all sides read, and beside it the tokenizer that all have."""
    from clozelab.corpus.tokenizers import WordPieceTokenizer

    text = folder / "text.jsonl"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(read_rows(paths, round(megabytes * 1e6)))
    documents, num_characters = [], 0
    for line in text.open(encoding="utf-8"):
        documents.append(json.loads(line)["text"])
        num_characters += len(documents[-1])
        if num_characters > LEARNT_CHARACTERS:
            break
    tokenizer = WordPieceTokenizer.train(documents, VOCABULARY, lowercase=True)
    (folder / "tokenizer").mkdir()
    for name, content in tokenizer.files().items():
        (folder / "tokenizer" / name).write_bytes(content)
    return text


# The sides


def map_with_datasets(text: str, tokenizer_folder: str) -> None:
    """The peer, in a process of its own."""
    import datasets
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)

    def encode(batch: Mapping[str, list[str]]) -> Mapping[str, list[list[int]]]:
        return tokenizer(
            batch["text"],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )

    rows = datasets.load_dataset("json", data_files=text, split="train")
    rows.map(encode, batched=True, remove_columns=rows.column_names)


def whole_processes(text: Path, rounds: int, folder: Path) -> list[str]:
    megabytes = text.stat().st_size / 1e6
    tokenizer = text.parent / "tokenizer"
    prepare = [
        *(sys.executable, "-m", "clozelab", "prepare", "corpus=text"),
        f"corpus.sources.0.path={text}",
        f"tokenizer.vocab_file={tokenizer / 'vocab.txt'}",
        "cache_dir=FOLDER",
    ]
    peer = [sys.executable, __file__, "--worker", f"datasets {text} {tokenizer}"]
    sides = {
        "datasets.map, one process": Runs(peer, megabytes),
        "clozelab, 1 worker": Runs([*prepare, "corpus.workers=1"], megabytes),
        "clozelab, 2 workers": Runs([*prepare, "corpus.workers=2"], megabytes),
    }
    lines = say(
        f"{megabytes:.1f} MB, {rounds} x every side, in turns. CPU: seconds of all its processes;"
        " memory: of the largest one, at its peak; disk: what is left.",
        "",
        *TABLE,
    )
    for _ in range(rounds):
        for side in sides.values():
            side.run(folder / "run")
    slowest, one, two = sides.values()
    for name, side in sides.items():
        faster = "1" if side is slowest else ratios(side.rates, slowest.rates)
        lines += say(
            f"| {name} | {spread(side.rates, 1)} | {faster} |"
            f" {statistics.median(side.cpu_seconds):.1f} s | {side.peak_megabytes:,.0f} MB |"
            f" {side.share_on_disk:.2f} x the text |"
        )
    lines += say("", f"Two workers are faster than one by {ratios(two.rates, one.rates)}.")
    return lines


def learning(text: Path) -> list[str]:
    """A vocabulary from the whole text, in this process."""
    from clozelab.corpus.tokenizers import ByteBpeTokenizer, WordPieceTokenizer

    documents = [json.loads(line)["text"] for line in text.open(encoding="utf-8")]
    num_characters = sum(map(len, documents))
    kinds: dict[str, Callable[[], object]] = {
        "WordPiece": lambda: WordPieceTokenizer.train(documents, VOCABULARY, lowercase=True),
        "byte-level BPE": lambda: ByteBpeTokenizer.train(
            documents, VOCABULARY, lowercase=False, add_prefix_space=False
        ),
    }
    lines = []
    for name, train in kinds.items():
        start, cpu = time.perf_counter(), time.process_time()
        train()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        lines += say(
            f"- {name}, {VOCABULARY:,} entries from {num_characters / 1e6:.1f} million characters:"
            f" {seconds:.1f} s ({cpu_seconds:.1f} s of CPU)"
        )
    return lines


# Training sequences


def check_masks(input_ids: Any, labels: Any, is_special: Any, mask_id: int) -> None:
    """SystemExit where a batch is not what the collator of transformers promises.

    Args:
        input_ids: [ROWS, LENGTH] as the encoder sees them.
        labels: [ROWS, LENGTH]; -100 where nothing is predicted.
        is_special: [ROWS, LENGTH] [CLS], [SEP] and padding, of which none is predicted.
        mask_id: of [MASK].

    15 % of the other tokens are predicted; of these 80 % are [MASK] and 10 % stay. The last 10 %
    are random tokens, of which a few are the token itself.
    """
    is_predicted = labels != -100
    is_mask = input_ids == mask_id
    shares = {
        "predicted": (is_predicted.sum() / (~is_special).sum(), 0.15),
        "[MASK]": (is_mask.sum() / is_predicted.sum(), 0.8),
        "unchanged": ((input_ids == labels).sum() / is_predicted.sum(), 0.1),
    }
    is_right = input_ids.shape == labels.shape == (ROWS, LENGTH)
    is_right &= not (is_predicted & is_special).any() and not (is_mask & ~is_predicted).any()
    for share, expected in shares.values():
        is_right &= abs(float(share) - expected) < 0.02
    if not is_right:
        raise SystemExit(f"a batch of {tuple(input_ids.shape)} has wrong masks: {shares}")


def serve_instances(corpus: str) -> None:
    """Pairs with masks from a prepared corpus: optimizer steps, as training's loader makes them."""
    import torch

    from clozelab.corpus.shards import PreparedCorpus
    from clozelab.datamodules.corpus import CorpusDataModule, StepStream

    prepared = PreparedCorpus.open(corpus)
    phase = {
        "seq_length": LENGTH,
        "steps": 10**9,
        "global_batch_size": ROWS,
        "micro_batch_size": ROWS,
    }
    data = CorpusDataModule(
        prepared,
        [pairs_objective()],
        phases=[phase],
        seed=0,
        validation_instances=1,
        validation_seq_length=LENGTH,
        num_workers=0,
    )
    stream = StepStream(data.bound_phases(), 0, 0, 1)

    # The first batch, in the collator's shape.
    (batch,) = stream.micro_batches(0)
    labels = torch.full_like(batch["input_ids"], -100)
    labels[batch["prediction_positions"]] = batch["prediction_labels"]
    input_ids = batch["input_ids"].view(-1, LENGTH)
    tokenizer = prepared.tokenizer
    special = torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
    labels = labels.view(-1, LENGTH)
    # Of the tokens before masking: a random one may be any.
    is_special = torch.isin(torch.where(labels == -100, input_ids, labels), special)
    check_masks(input_ids, labels, is_special, tokenizer.mask_id)
    if set(batch["next_sentence_label"].tolist()) != {0, 1}:
        raise SystemExit("a batch lacks random or true next segments")

    steps = itertools.count()
    serve(repeated(lambda: len(stream.micro_batches(next(steps))), ROWS))


def serve_collator(tokenizer_folder: str) -> None:
    """Masks alone: transformers' collator has no pairs."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    collate = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15)
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, VOCABULARY // 2, (ROWS, LENGTH))
    special = np.zeros((ROWS, LENGTH), dtype=int)
    special[:, [0, -1]] = 1
    rows = []
    for row, mask in zip(ids.tolist(), special.tolist(), strict=True):
        rows.append({"input_ids": row, "special_tokens_mask": mask})
    batch = collate(rows)
    is_special = torch.from_numpy(special) == 1
    check_masks(batch["input_ids"], batch["labels"], is_special, tokenizer.mask_token_id)
    serve(repeated(lambda: len(collate(rows)["input_ids"]), ROWS))


def sequences(text: Path, folder: Path, rounds: int, seconds: float) -> list[str]:
    from clozelab.corpus.files import CorpusSource
    from clozelab.corpus.prepare import plan_corpus, prepare_corpus
    from clozelab.corpus.tokenizer_settings import TokenizerSettings

    vocabulary = str(text.parent / "tokenizer" / "vocab.txt")
    settings = TokenizerSettings("wordpiece", VOCABULARY, lowercase=True, vocab_file=vocabulary)
    plan = plan_corpus("text", [CorpusSource("text", str(text))], ".", folder, settings, 0.01)
    corpus = prepare_corpus(plan, max_unknown_share=0.5).folder
    tokenizer = text.parent / "tokenizer"
    lines = rate_table("sequences/s", rounds, seconds)
    sides = {
        "clozelab, pairs and masks": f"instances {corpus}",
        "transformers, masks": f"collator {tokenizer}",
    }
    processes = race(__file__, sides, [], 1, rounds, seconds, ONE_THREAD)
    return lines + rate_rows(f"{ROWS} x {LENGTH}", processes)


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--text", type=Path, nargs="+", help="jsonl files, may be packed (.zst)")
    options.add_argument("--megabytes", type=float, default=MEGABYTES, help="of them")
    options.add_argument("--quick", action="store_true", help="some MB, to see that it works")
    args = options.parse_args()
    if args.worker:
        kind, *paths = args.worker.split()
        workers: dict[str, Callable[..., None]] = {
            "datasets": map_with_datasets,
            "instances": serve_instances,
            "collator": serve_collator,
        }
        workers[kind](*paths)
        return
    texts = args.text
    if not texts:
        shared = Path(os.environ.get("CLOZELAB_SHARED", ROOT.parent / "shared"))
        texts = sorted((shared / "data" / "corpus").glob("*.jsonl.zst"))
    if not texts:
        raise SystemExit("name some jsonl files that have a field text: --text FILE ...")
    megabytes, rounds, seconds = args.megabytes, args.rounds, args.seconds
    if args.quick:
        megabytes, rounds, seconds = QUICK_MEGABYTES, 1, 1.0
    output = args.output
    if output is None and not args.quick:
        output = default_report("prepare")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = write_text(texts, megabytes, folder)
        parts: dict[str, Callable[[], list[str]]] = {
            "From text to shards": lambda: whole_processes(text, rounds, folder),
            "Learning a vocabulary": lambda: learning(text),
            "Training sequences": lambda: sequences(text, folder, rounds, seconds),
        }
        report(TITLE, 1, parts, output)


if __name__ == "__main__":
    main()
