"""Pre-training steps of every member of the family beside BERT's, at equal counted FLOPs.

`python benchmarks/families.py` composes each member from its own recipe at L4 H256, trains it on
full rows of 128 of 30,522 random words in the precision that clozelab takes, and prints seconds per
counted FLOP, BERT's being 1. All are in one process of one thread. A turn of BERT stands before
each member's, and a ratio is that of the two. CPU seconds are those of the processor, so programs
beside it change them less than wall seconds.

`python benchmarks/families.py --peers` times RoBERTa, ALBERT and ELECTRA beside transformers' own
classes instead (length 128, 15 % predicted), and prints tokens/s as median (min-max) and the ratio,
pair by pair. The peers are `RobertaForMaskedLM` and `AlbertForPreTraining`. transformers trains no
ELECTRA: its peer is `ElectraForMaskedLM` and `ElectraForPreTraining` with shared embeddings, in a
plain loop that draws the replacements. Each peer runs in the precision that is faster on this
machine, bf16 autocast or fp32, alone and with torch.compile around it. Dropout is each family's
own; RoBERTa's vocabulary is 50,265, the others' 30,522.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from encoders import (
    SHAPES,
    VOCAB_SIZE,
    clozelab_optimizer,
    clozelab_precision,
    peer_step,
    random_shards,
    shape,
    size_name,
    training_step,
)
from interleaved import (
    parser,
    race,
    rate_rows,
    rate_table,
    ratios,
    repeated,
    report,
    say,
    serve,
    start_worker,
)
from pretraining import BATCH, SEQ_LENGTH, is_bf16_faster, make_rows, sides_of

TITLE = "The family beside BERT"
MASKED = "objective=mlm"
FULL_ROWS = "objective/input=full_sentences"
ALWAYS = ("model=mini", FULL_ROWS)
MEMBERS: Mapping[str, tuple[str, ...]] = {
    "BERT": ("recipe=bert", MASKED),
    "RoBERTa": ("recipe=roberta",),
    "ALBERT": ("recipe=albert", MASKED),
    "ELECTRA": ("recipe=electra",),
    "DistilBERT, masked": ("architecture=distilbert", MASKED),
    "DistilBERT with its teacher": ("recipe=distilbert",),
    "DeBERTa v2, masked": ("recipe=deberta_v2", MASKED),
    "DeBERTa v2": ("recipe=deberta_v2",),
    "DeBERTa v3": ("recipe=deberta_v3",),
    "ModernBERT": ("recipe=modernbert",),
    "NeoBERT": ("recipe=neobert",),
    "UltraBERT": ("recipe=ultrabert",),
    "MPNet, masked": ("recipe=mpnet", MASKED),
    "MPNet": ("recipe=mpnet",),
    "ERNIE": ("recipe=ernie",),
    "XLNet, masked": ("recipe=xlnet", MASKED),
    "XLNet": ("recipe=xlnet",),
    "Longformer": ("recipe=longformer",),
    "BigBird": ("recipe=bigbird",),
    "BERT, hybrid": ("recipe=bert", "objective=hybrid"),
}
"""The words that choose each, but for the size and full sentences. `MASKED` also takes a loss on
pairs away, which those rows have no labels for.
"""
PEERS_TITLE = "The family beside transformers"
FAMILIES = ("roberta", "albert", "electra")
SIZES = ("tiny", "mini", "small")
VOCABULARY = {"roberta": 50_265, "albert": VOCAB_SIZE, "electra": VOCAB_SIZE}
EMBEDDING_SIZE = 128
"""Of ALBERT and ELECTRA, at every size."""
RECIPES = {
    "roberta": ("recipe=roberta",),
    "albert": ("recipe=albert", "model.hidden_act=gelu_new"),
    "electra": ("recipe=electra", f"model.embedding_size={EMBEDDING_SIZE}"),
}
DROPOUT = {"roberta": 0.1, "albert": 0.0, "electra": 0.1}
"""As the classes of transformers have it."""
DISCRIMINATOR_WEIGHT = 50.0


def generator_width(size: str) -> str:
    """ELECTRA-Small's is 1/4; two heads can only be halved."""
    return "1/2" if SHAPES[size][1] < 256 else "1/4"


def clozelab_step(family: str, size: str) -> Callable[[], None]:
    """One optimizer step of a member of the peer's sizes, with `precision=auto`."""
    words = [f"model.{key}={value}" for key, value in shape(size).items()]
    words += RECIPES[family]
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        words.append(f"model.{name}={DROPOUT[family]}")
    if family == "electra":
        words.append(f"objective.token.generator_width={generator_width(size)}")
    rows = BATCH[size]
    return Member(words, rows, always=(), shards=random_words(rows, VOCABULARY[family])).step


def transformers_step(family: str, size: str, is_bf16: bool, compiles: bool) -> Callable[[], float]:
    """One step of the peer, as `peer_step` has it."""
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
    return peer_step(loss, model, is_bf16, compiles)


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


class Turn(NamedTuple):
    """Seconds per counted FLOP."""

    cpu: float
    wall: float


class Member:
    """A member with its optimizer, and a batch that it is trained on again and again."""

    def __init__(
        self,
        words: Sequence[str],
        rows: int,
        always: Sequence[str] = ALWAYS,
        shards: Any = None,
        seq_length: int = SEQ_LENGTH,
    ) -> None:
        import numpy as np
        import torch

        from clozelab.assembly.encoders import build_objectives, encoder_config
        from clozelab.corpus.packing import SpecialIds
        from clozelab.launch.sweep import compose, phase_objectives
        from clozelab.models.encoder import Encoder
        from clozelab.modules.pretraining import PretrainingModel
        from clozelab.objectives.objective import to_torch

        torch.manual_seed(0)
        if shards is None:
            shards = random_words(rows)
        ids = SpecialIds(cls=101, sep=102, pad=0, mask=103, vocab_size=shards.vocab_size)
        cfg = compose("pretrain", [*always, *words]).config
        self.objective = build_objectives(phase_objectives(cfg))[0]
        encoder = Encoder(encoder_config(cfg, ids, self.objective))
        encoder.share_projections()
        self.model = PretrainingModel(encoder, [self.objective]).train()
        self.optimizer = clozelab_optimizer(self.model.named_parameters())
        instances = self.objective.input.bind(shards, ids, seq_length)
        self.batch = to_torch(self.objective.arrays(instances, 0, 0, np.arange(rows)))
        token = self.objective.token
        share = token.predicted_share(seq_length)
        flops_per_token = self.objective.flops_per_token(encoder.config, seq_length, share)
        self.flops = rows * seq_length * flops_per_token
        self.is_bf16 = clozelab_precision()

    def loss(self) -> Any:
        weights = self.objective.weights
        return sum(
            weights[term.name] * term.loss_sum / term.count for term in self.model(self.batch)
        )

    def step(self) -> None:
        training_step(self.loss, self.model, self.optimizer, self.is_bf16)

    def turn(self, seconds: float) -> Turn:
        """Steps of at least so many seconds of a clock."""
        flops = 0.0
        cpu = time.process_time()
        wall = time.perf_counter()
        while not flops or time.perf_counter() - wall < seconds:
            self.step()
            flops += self.flops
        return Turn((time.process_time() - cpu) / flops, (time.perf_counter() - wall) / flops)


def random_words(rows: int, vocab_size: int = VOCAB_SIZE) -> Any:
    """Shards of one document of sentences of one word each, so that they fill every row."""
    import numpy as np

    count = (rows + 1) * SEQ_LENGTH
    ones = np.ones(count, dtype=int)
    return random_shards(np.random.default_rng(0), np.array([count]), ones, vocab_size)


def save_teacher(folder: Path, **options: Any) -> None:
    """A BERT of the same size, with fresh weights."""
    from clozelab.models import folders

    model = Member(MEMBERS["BERT"], 1, **options).model.named_models["encoder"]
    heads = dict(model.heads.items())
    folders.save_encoder_folder(
        folder, model.encoder, heads=heads, tokenizer_files={}, extra_config={}
    )


def make_member(words: Sequence[str], rows: int, **options: Any) -> Member:
    """`options` as Member has them; who needs a teacher gets one."""
    if tuple(words) != MEMBERS["DistilBERT with its teacher"]:
        return Member(words, rows, **options)
    with tempfile.TemporaryDirectory() as folder:
        teacher = Path(folder) / "teacher"
        save_teacher(teacher, **options)
        return Member([*words, f"objective.token.teacher={teacher}"], rows, **options)


def members(names: Sequence[str], rows: int) -> dict[str, Member]:
    made = {}
    for name in names:
        made[name] = make_member(MEMBERS[name], rows)
        # The second step is the first one with the optimizer's memory.
        for _ in range(2):
            made[name].step()
    return made


def beside_bert(names: Sequence[str], rows: int, rounds: int, seconds: float) -> list[str]:
    """The table, a line a member."""
    from clozelab.processor import multiplies_bf16

    start_worker(is_clozelab=True, threads=1)
    kind = "bf16, by its own instructions" if multiplies_bf16("cpu") else "fp32, having no bf16"
    lines = say(
        f"{size_name('mini')}, {rows} rows of {SEQ_LENGTH} a step; this machine trains in {kind}."
        f" One thread; {rounds} turns of {seconds:g} s or more, each behind one of BERT's."
        " Ratios of seconds per counted FLOP, median (min-max); the machine's load at the start"
        f" was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
        "",
        "| member | GFLOPs a step | CPU seconds, BERT's being 1 | wall seconds |",
        "|---|--:|---|---|",
    )
    made = members(["BERT", *names], rows)
    bert = made.pop("BERT")
    turns: dict[str, list[tuple[Turn, Turn]]] = {name: [] for name in made}
    of_bert = []
    for _ in range(rounds):
        for name, member in made.items():
            of_bert.append(bert.turn(seconds))
            turns[name].append((of_bert[-1], member.turn(seconds)))
    rate = statistics.median(1e-9 / before.cpu for before in of_bert)
    lines += say(f"| BERT, {rate:.0f} GFLOPs a CPU second | {bert.flops / 1e9:.0f} | 1 | 1 |")
    for name, pairs in turns.items():
        before, own = zip(*pairs, strict=True)
        cpu = ratios([turn.cpu for turn in own], [turn.cpu for turn in before])
        wall = ratios([turn.wall for turn in own], [turn.wall for turn in before])
        lines += say(f"| {name} | {made[name].flops / 1e9:.0f} | {cpu} | {wall} |")
    return lines


def work(side: str, family: str, size: str, threads: int) -> None:
    """The process of one side."""
    start_worker(side == "clozelab", threads)
    if side == "clozelab":
        step: Callable[[], object] = clozelab_step(family, size)
    else:
        step = transformers_step(
            family, size, is_bf16=side.startswith("bf16"), compiles=side.endswith("-compiled")
        )
    serve(repeated(step, BATCH[size] * SEQ_LENGTH))


def usual_peers() -> tuple[str, str]:
    """transformers in the precision that is faster on this machine, compiled and as it is."""
    precision = "bf16" if is_bf16_faster() else "fp32"
    return f"{precision}-compiled", precision


def compare(
    sizes: Sequence[str],
    families: Sequence[str],
    peers: Sequence[str],
    threads: int,
    rounds: int,
    seconds: float,
) -> list[str]:
    """The table of these sizes, each with these families beside these peers."""
    lines = rate_table("tokens/s", rounds, seconds)
    for size in sizes:
        for family in families:
            options = ["--sizes", size, "--families", family]
            sides = race(__file__, sides_of(peers), options, threads, rounds, seconds)
            lines += rate_rows(f"{family} {size_name(size)}, {BATCH[size]} sequences", sides)
    return lines


def main() -> None:
    options = parser(__doc__, seconds=None)
    options.add_argument("--members", nargs="+", default=list(MEMBERS)[1:], choices=list(MEMBERS))
    options.add_argument("--rows", type=int, default=BATCH["mini"] // 2, help="of a member's step")
    options.add_argument("--peers", action="store_true", help="beside transformers instead")
    options.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SHAPES))
    options.add_argument(
        "--families", nargs="+", default=list(FAMILIES), choices=FAMILIES, help="beside their peers"
    )
    arguments = options.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.families[0], arguments.sizes[0], arguments.threads)
    if not arguments.peers:
        seconds = arguments.seconds or 1.0
        part = partial(beside_bert, arguments.members, arguments.rows, arguments.rounds, seconds)
        report("Benchmarks", 1, {TITLE: part}, arguments.output)
        return None
    seconds = arguments.seconds or 4.0
    part = partial(
        compare,
        arguments.sizes,
        arguments.families,
        usual_peers(),
        arguments.threads,
        arguments.rounds,
        seconds,
    )
    report("Benchmarks", arguments.threads, {PEERS_TITLE: part}, arguments.output)
    return None


if __name__ == "__main__":
    main()
