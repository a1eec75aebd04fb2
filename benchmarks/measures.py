"""Minimal pairs by `clozelab evaluate`'s module beside the loop that people write around
`transformers`.

Sentences of 6 to 14 tokens, 10 on average, as BLiMP's; encoders of all-MiniLM-L6's size, 6 layers
of 384 with 30,522 entries. The loop is in fp32 and takes one reading after the other: a masked
sentence is read once for each token, with that token hidden; a causal one once, with
log-probabilities of all of its tokens. `batched` is the same with a sentence's readings (causal: 32
padded sentences) as one batch, which also asks for logits at the hidden places alone. clozelab runs
with fp32, and with bf16, what `trainer.precision=auto` means on this kind of processor. Before the
turns the scores of both are compared: fp32 to 1e-4.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from interleaved import (
    Side,
    parser,
    rate_rows,
    rate_table,
    repeated,
    report,
    serve,
    start_worker,
    take_turns,
)

TITLE = "Minimal pairs beside a loop around transformers"
KINDS = ("masked", "causal")
SIDES = {
    "clozelab, fp32": "fp32",
    "clozelab, bf16": "bf16",
    "transformers, one reading at a time, fp32": "loop",
    "transformers, batched, fp32": "batched",
}
PAIRS = 60
SHAPE = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}


def write_inputs(folder: Path, kind: str) -> None:
    """An encoder of fresh weights with its head and words, and pairs of sentences that differ in a
    word.
    """
    import torch

    from clozelab.corpus.tokenizers import WordPieceTokenizer
    from clozelab.models.config import EncoderConfig
    from clozelab.models.encoder import Encoder
    from clozelab.models.folders import save_encoder_folder
    from clozelab.models.registry import family_for

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"w{i}" for i in range(30_522 - len(special))]
    tokenizer = WordPieceTokenizer([*special, *words], lowercase=True)
    torch.manual_seed(0)
    fixed: Any = {
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    }
    fixed |= {
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.05,
        "layer_norm_eps": 1e-12,
    }
    fixed |= {
        "position_embedding_init": "normal",
        "vocab_size": tokenizer.vocab_size,
        "is_causal": kind == "causal",
    }
    encoder = Encoder(EncoderConfig(**fixed, **SHAPE))
    heads = {"lm": family_for(encoder.config).head("lm", encoder)}
    save_encoder_folder(
        folder, encoder, heads=heads, tokenizer_files=tokenizer.files(), extra_config={}
    )
    draw = random.Random(0)
    with (folder / "pairs.jsonl").open("w") as file:
        for _ in range(PAIRS):
            good = draw.choices(words, k=draw.randint(4, 12))
            bad = [*good[:-1], draw.choice(words)]
            pair = {
                "sentence_good": " ".join(good),
                "sentence_bad": " ".join(bad),
                "UID": "a",
                "field": "b",
            }
            file.write(json.dumps(pair) + "\n")


def clozelab_step(folder: Path, kind: str, precision: str) -> Callable[[], list[float]]:
    from lightning.pytorch import Trainer

    from clozelab.corpus.folder_tokenizers import read_tokenizer
    from clozelab.datamodules.finetuning import TaskInputs
    from clozelab.datamodules.scoring import MinimalPairs
    from clozelab.models.folders import load_encoder, load_head
    from clozelab.models.registry import family_for
    from clozelab.modules.measures import TokenScoring

    inputs = TaskInputs("pairs", folder, folder / "cache", read_tokenizer(folder), 512)
    columns = {"good": "sentence_good", "bad": "sentence_bad", "group": "UID", "field": "field"}
    how: Any = {
        "columns": columns,
        "masking": "word",
        "max_pairs": None,
        "how_to_get": "",
        "max_seq_length": 512,
    }
    data = MinimalPairs(
        inputs=inputs,
        is_causal=kind == "causal",
        files="pairs.jsonl",
        evaluation_tokens=8192,
        **how,
    )
    encoder = load_encoder(folder)
    head = family_for(encoder.config).head("lm", encoder)
    load_head(folder, "lm", head)
    data.setup()
    module = TokenScoring(
        encoder=encoder, heads={"lm": head}, data=data, metric="validation/accuracy"
    )
    quiet: Any = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )
    trainer = Trainer(
        accelerator="cpu", precision="32-true" if precision == "fp32" else "bf16-mixed", **quiet
    )

    def step() -> list[float]:
        trainer.validate(module, verbose=False)
        found = module.require_best().predictions
        return [pair["good"] for pair in found] + [pair["bad"] for pair in found]

    return step


def loop_step(folder: Path, kind: str, is_batched: bool) -> Callable[[], list[float]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    library = AutoModelForCausalLM if kind == "causal" else AutoModelForMaskedLM
    model = library.from_pretrained(folder).eval()
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    texts = [pair["sentence_good"] for pair in pairs] + [pair["sentence_bad"] for pair in pairs]

    def causal(batch: list[str]) -> list[float]:
        encoding = tokenizer(batch, return_tensors="pt", padding=True)
        ids = encoding["input_ids"]
        lengths = encoding["attention_mask"].sum(1)
        # [B, S - 1]: what each token is given by those before it; [SEP] and padding do not count
        log_probs = model(**encoding).logits[:, :-1].log_softmax(-1)
        given = log_probs.gather(2, ids[:, 1:, None])[..., 0]
        inner = torch.arange(given.shape[1]) < lengths[:, None] - 2
        return (given * inner).sum(1).tolist()

    def masked(text: str) -> float:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        # A copy of the text for each of its tokens, that token hidden.
        positions = torch.arange(1, ids.shape[1] - 1)
        rows = torch.arange(len(positions))
        copies = ids.repeat(len(positions), 1)
        copies[rows, positions] = tokenizer.mask_token_id
        if is_batched:
            logits = model.cls(model.base_model(input_ids=copies)[0][rows, positions])
        else:
            pieces = []
            for position, copy in zip(positions, copies, strict=True):
                pieces.append(model(input_ids=copy[None]).logits[0, position : position + 1])
            logits = torch.cat(pieces)
        return float(logits.log_softmax(-1).gather(1, ids[0, positions][:, None]).sum())

    def step() -> list[float]:
        with torch.inference_mode():
            if kind == "masked":
                return [masked(text) for text in texts]
            size = 32 if is_batched else 1
            scores = []
            for start in range(0, len(texts), size):
                scores += causal(texts[start : start + size])
            return scores

    return step


def work(side: str, kind: str, folder: Path, threads: int) -> None:
    is_ours = side in ("fp32", "bf16")
    start_worker(is_ours, threads)
    step = (
        clozelab_step(folder, kind, side) if is_ours else loop_step(folder, kind, side == "batched")
    )
    scores = step()
    serve(repeated(lambda: float(len(step())), warm_up=1), hello=scores)


def compare(threads: int, rounds: int, seconds: float) -> list[str]:
    lines = rate_table("sentences/s", rounds, seconds)
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "encoder"
            write_inputs(folder, kind)
            options = ["--kind", kind, "--folder", str(folder), "--threads", str(threads)]
            sides = {
                name: Side([__file__, "--worker", side, *options], threads)
                for name, side in SIDES.items()
            }
            exact = sides["transformers, one reading at a time, fp32"].hello
            apart = {
                name: max(map(abs, map(float.__sub__, side.hello, exact)))
                for name, side in sides.items()
            }
            assert apart["clozelab, fp32"] < 1e-4, apart
            take_turns(sides, rounds, seconds)
        lines += rate_rows(kind, sides)
        lines += [f"| {kind} | largest difference from the loop's scores | {json.dumps(apart)} | |"]
    return lines


def main() -> None:
    options = parser(__doc__)
    for hidden, kind in (("--kind", str), ("--folder", Path)):
        options.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    said = options.parse_args()
    if said.worker:
        return work(said.worker, said.kind, said.folder, said.threads)
    part = partial(compare, said.threads, said.rounds, said.seconds)
    report("Measures", said.threads, {TITLE: part}, said.output)
    return None


if __name__ == "__main__":
    main()
