"""Pre-training steps of RoBERTa, ALBERT and ELECTRA beside transformers' own classes, in one
interleaved run.

`python benchmarks/families.py` times optimizer steps on the same sequences (length 128, 15 %
predicted) and prints tokens/s as median (min-max) and the ratio, pair by pair. The peers are
`RobertaForMaskedLM` and `AlbertForPreTraining`. transformers trains no ELECTRA: its peer is
`ElectraForMaskedLM` and `ElectraForPreTraining` with shared embeddings, in a plain loop that draws
the replacements. Each peer runs in bf16 autocast, alone and with torch.compile around it. Dropout
is each family's own; RoBERTa's vocabulary is 50,265, the others' 30,522.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from encoders import (
    SHAPES,
    VOCAB_SIZE,
    clozelab_optimizer,
    clozelab_precision,
    shape,
    size_name,
    training_step,
)
from interleaved import (
    Side,
    rate_rows,
    rate_table,
    repeated,
    report,
    serve,
    start_worker,
    take_turns,
)
from pretraining import BATCH, SEQ_LENGTH, SIDE_NAMES, clozelab_batch, make_rows

TITLE = "The family beside transformers"
FAMILIES = ("roberta", "albert", "electra")
SIZES = ("tiny", "small")
PEERS = ("bf16-compiled", "bf16")
VOCABULARY = {"roberta": 50_265, "albert": VOCAB_SIZE, "electra": VOCAB_SIZE}
EMBEDDING_SIZE = 128
"""Of ALBERT and ELECTRA, at every size."""
DISCRIMINATOR_WEIGHT = 50.0


def generator_width(size: str) -> str:
    """ELECTRA-Small's is 1/4; two heads can only be halved."""
    return "1/2" if SHAPES[size][1] < 256 else "1/4"


def clozelab_step(family: str, size: str) -> Callable[[], float]:
    """One optimizer step of our encoder, objective and optimizer, precision chosen as
    `precision=auto` does.
    """
    import torch

    from clozelab.corpus.instances import FullSentences, SegmentPairs
    from clozelab.models.config import EncoderConfig
    from clozelab.models.encoder import Encoder
    from clozelab.modules.pretraining import PretrainingModel
    from clozelab.objectives.mlm import MaskedLanguageModel
    from clozelab.objectives.objective import Objective
    from clozelab.objectives.rtd import ReplacedTokenDetection
    from clozelab.objectives.sop import SentenceOrderPrediction, SentencePairs

    torch.manual_seed(0)
    narrow = {"embedding_size": EMBEDDING_SIZE}
    own: dict[str, dict[str, Any]] = {
        "roberta": {
            "type_vocab_size": 1,
            "positions": {
                "_target_": "clozelab.models.embeddings.LearnedPositions",
                "after_padding": True,
            },
        },
        "albert": {
            **narrow,
            "projects_embeddings": True,
            "num_hidden_groups": 1,
            "hidden_act": "gelu_new",
        },
        "electra": {**narrow, "pooler": None},
    }
    dropout = 0.0 if family == "albert" else 0.1
    common = {
        "vocab_size": VOCABULARY[family],
        "hidden_act": "gelu",
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "position_embedding_init": "normal",
        "model_type": family,
    }
    encoder = Encoder(EncoderConfig(**common | shape(size) | own[family]))
    masking = {
        "predict_prob": 0.15,
        "mask_fraction": 0.8,
        "random_fraction": 0.1,
        "same_fraction": 0.1,
        "weight": 1.0,
    }
    token: Any = MaskedLanguageModel(**masking)
    pair, instances = None, FullSentences() if family == "roberta" else SegmentPairs(0.0, "corpus")
    if family == "albert":
        pair, instances = SentenceOrderPrediction(weight=1.0), SentencePairs()
    if family == "electra":
        masking |= {"mask_fraction": 0.85, "random_fraction": 0.0, "same_fraction": 0.15}
        masking |= {"weight": DISCRIMINATOR_WEIGHT}
        token = ReplacedTokenDetection(
            generator_width=generator_width(size), generator_weight=1.0, **masking
        )
    objective = Objective(input=instances, token=token, pair=pair)
    model = PretrainingModel(encoder, [objective])
    optimizer, is_bf16 = clozelab_optimizer(model.named_parameters()), clozelab_precision()
    batch = clozelab_batch(make_rows(BATCH[size]))
    batch["sentence_order_label"] = batch["next_sentence_label"]

    def loss() -> Any:
        return sum(
            objective.weights[term.name] * term.loss_sum / term.count for term in model(batch)
        )

    return lambda: training_step(loss, model, optimizer, is_bf16)


def transformers_step(family: str, size: str, compiles: bool) -> Callable[[], float]:
    """One step of the peer in the shortest loop, in bf16 autocast; compiled ones have had two
    steps.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = shape(size) | {"vocab_size": VOCABULARY[family]}
    rows = {name: torch.from_numpy(value) for name, value in make_rows(BATCH[size]).items()}
    labels = rows["ids"].masked_fill(~rows["predicted"], -100)
    inputs = {
        "input_ids": rows["masked"],
        "attention_mask": torch.ones_like(rows["ids"]),
        "labels": labels,
    }
    wrap: Any = torch.compile if compiles else lambda module: module
    if family == "electra":
        model, loss = electra(sizes, size, inputs, rows, wrap)
    elif family == "albert":
        config = transformers.AlbertConfig(embedding_size=EMBEDDING_SIZE, **sizes)
        model = transformers.AlbertForPreTraining(config).train()
        inputs |= {"token_type_ids": rows["types"], "sentence_order_label": rows["next"]}
        run = wrap(model)
        loss = lambda: run(**inputs).loss  # noqa: E731
    else:
        config = transformers.RobertaConfig(max_position_embeddings=514, type_vocab_size=1, **sizes)
        model = transformers.RobertaForMaskedLM(config).train()
        run = wrap(model)
        loss = lambda: run(**inputs).loss  # noqa: E731
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    step = partial(training_step, loss, model, optimizer, True)
    for _ in range(2 if compiles else 0):
        step()
    return step


def electra(
    sizes: dict[str, int], size: str, inputs: Any, rows: Any, wrap: Any
) -> tuple[Any, Callable[[], Any]]:
    """Both halves, and their loss: the generator's, and 50 times the discriminator's on what the
    generator drew.
    """
    import torch
    import transformers
    from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

    width = int(generator_width(size)[-1])
    narrow = {
        name: value // width
        for name, value in sizes.items()
        if name not in ("num_hidden_layers", "vocab_size")
    }
    generator = transformers.ElectraForMaskedLM(
        transformers.ElectraConfig(embedding_size=EMBEDDING_SIZE, **sizes | narrow)
    )
    discriminator = transformers.ElectraForPreTraining(
        transformers.ElectraConfig(embedding_size=EMBEDDING_SIZE, **sizes)
    )
    discriminator.electra.embeddings = generator.electra.embeddings
    both = torch.nn.ModuleList([generator, discriminator]).train()
    generate, discriminate = wrap(generator), wrap(discriminator)
    places, types = rows["predicted"], rows["types"]

    def loss() -> Any:
        logits = generate(rows["masked"], inputs["attention_mask"], types).logits[places].float()
        text = rows["ids"].clone()
        text[places] = torch.multinomial(logits.detach().softmax(-1), 1)[:, 0]
        found = discriminate(text, inputs["attention_mask"], types).logits.float()
        replaced = binary_cross_entropy_with_logits(found, (text != rows["ids"]).float())
        return cross_entropy(logits, rows["ids"][places]) + DISCRIMINATOR_WEIGHT * replaced

    return both, loss


def work(side: str, family: str, size: str, threads: int) -> None:
    """The process of one side."""
    start_worker(side == "clozelab", threads)
    if side == "clozelab":
        step = clozelab_step(family, size)
    else:
        step = transformers_step(family, size, compiles=side == "bf16-compiled")
    serve(repeated(step, BATCH[size] * SEQ_LENGTH))


def compare(
    sizes: Sequence[str], peers: Sequence[str], threads: int, rounds: int, seconds: float
) -> list[str]:
    """The table of these sizes, each with all three families."""
    lines = rate_table("tokens/s", rounds, seconds)
    for size in sizes:
        for family in FAMILIES:
            options = ["--sizes", size, "--families", family, "--threads", str(threads)]
            names = {"clozelab": "clozelab"} | {
                SIDE_NAMES.get(peer, f"transformers {peer}"): peer for peer in peers
            }
            sides = {
                name: Side([__file__, "--worker", side, *options], threads)
                for name, side in names.items()
            }
            take_turns(sides, rounds, seconds)
            lines += rate_rows(f"{family} {size_name(size)}, {BATCH[size]} sequences", sides)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SHAPES))
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.families[0], arguments.sizes[0], arguments.threads)
    part = partial(
        compare, arguments.sizes, PEERS, arguments.threads, arguments.rounds, arguments.seconds
    )
    report("Benchmarks", arguments.threads, {TITLE: part}, arguments.output)
    return None


if __name__ == "__main__":
    main()
