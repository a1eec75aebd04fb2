"""Runs that adapt a given encoder: what they train, leave as it is, resume and write."""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.composing import composed, run_stage
from tests.runs.records import edit, read_json, record_of
from tests.runs.sentiment import BAD, GOOD, TOKENIZER, write_sentiment
from tests.runs.test_pretrain_run import overrides

from clozelab.assembly import prediction
from clozelab.cli import main
from clozelab.datamodules import labelled
from clozelab.models.folders import load_encoder, read_provenance
from clozelab.models.layout import Layout
from clozelab.modules.model import max_positions, open_tokenizer, read_model, sentence_vectors
from clozelab.modules.sentence_folders import SentenceVectors, sentence_files, similarity_of
from clozelab.stages import pretrain
from clozelab.tasks import sequences
from clozelab.training.callbacks import TrainingInterruptedError

# Of a run -> (the parts of the encoder that are trained, those that are not).
KINDS = {
    "freeze=[embeddings,all but 1]": ("layer.1.", "embeddings. layer.0."),
    "adaptation=lora": ("query.weight value.weight", "key.weight bias embeddings. output."),
    "adaptation=adapters adaptation.size=4": ("adapter LayerNorm", "dense query embeddings.word"),
    "adaptation=adapters adaptation.placement=pfeiffer adaptation.size=4": (
        "layer.0.output.adapter",
        "LayerNorm dense query embeddings.word",
    ),
    "adaptation=bitfit": ("bias", "weight"),
    "adaptation=frozen": ("", "embeddings. layer."),
    "adaptation=top_layers adaptation.num_layers=1": ("layer.1.", "embeddings. layer.0."),
}
LORA = "adaptation=lora"
ADAPTERS = "adaptation=adapters adaptation.size=4"


def kinds_of(*fast: str) -> list[Any]:
    """Every kind, of which all but some are slow: they differ from these in what is frozen."""
    kinds = []
    for kind in KINDS:
        marks = [] if kind in fast else [pytest.mark.slow]
        kinds.append(pytest.param(kind, marks=marks))
    return kinds


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    """An encoder of two layers with a pooler, and a sentiment task in SST-2's place."""
    root = tmp_path_factory.mktemp("world")
    write_sentiment(root / "data", train=48, dev=8)
    shape = {"max_position_embeddings": 32, "initializer_range": 0.1}
    shape |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    save_encoder(root / "encoder", TOKENIZER, [32], **shape)
    save_encoder(root / "causal", TOKENIZER, [32], is_causal=True, **shape)
    return root


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture(scope="module")
def runs() -> dict[str, Path]:
    return {}


@pytest.fixture
def adapted(finetune: Any, runs: dict[str, Path], world: Path) -> Callable[[str], Path]:
    """adapted(kind) -> the folder of an undisturbed run, trained once for all tests here."""

    def run(kind: str) -> Path:
        if kind not in runs:
            folder = finetune("task=sst2", "epochs=1", *split(kind), name="whole")
            runs[kind] = Path(shutil.copytree(folder, world / str(len(runs))))
        return runs[kind]

    return run


def split(kind: str) -> list[str]:
    return [kind] if kind.startswith("freeze") else kind.split()


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def fact(folder: Path, name: str) -> Any:
    return record_of(folder).facts[name]


def logits(folder: Path) -> torch.Tensor:
    """Of one text, by our own model."""
    model = read_model(folder)
    ids = torch.tensor([2, 6, 7, 8, 3])
    layout = Layout.ragged([5])
    with torch.no_grad():
        states = model.encoder(ids, torch.zeros(5).long(), torch.arange(5), layout)
        head = model.heads["classification"]
        return head(model.encoder.pool(states.sequence_output, layout, head))


@pytest.mark.parametrize("kind", kinds_of(LORA, ADAPTERS))
def test_what_is_trained_and_what_stays(
    kind: str, adapted: Any, world: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = adapted(kind)
    before = tensors(world / "encoder")
    after = tensors(folder / "model")
    trained, kept = (parts.split() for parts in KINDS[kind])
    stays = {name for name in before.keys() & after if torch.equal(before[name], after[name])}
    changed = after.keys() - stays
    for part in trained:
        assert any(part in name for name in changed), part
    for part in kept:
        names = [name for name in before if part in name]
        assert names and not changed.intersection(names), part
    # A pooler of the folder's stays, unless the layer below it is trained.
    is_kept = "freeze" not in kind and "top_layers" not in kind
    assert is_kept == ("bert.pooler.dense.weight" not in changed)
    assert fact(folder, "parameters") < sum(value.numel() for value in after.values())
    assert caplog.text.count("parameters are trained") == 1


@pytest.mark.parametrize("kind", kinds_of(LORA))
def test_a_stopped_run_ends_as_one_that_was_not(
    kind: str, adapted: Any, finetune: Any, tmp_path: Path
) -> None:
    undisturbed = adapted(kind)
    words = ["task=sst2", "epochs=1", *split(kind)]
    with pytest.raises(TrainingInterruptedError):
        finetune(*words, "stop_after_step=3")
    folder = finetune(*words)
    assert "going on after step 3" in (folder / "log.txt").read_text()
    for name in ("predictions.jsonl", "model/model.safetensors"):
        assert (folder / name).read_bytes() == (undisturbed / name).read_bytes()


def test_an_adapter_is_written_and_merged_again(adapted: Any, tmp_path: Path, capsys: Any) -> None:
    folder = adapted(LORA)
    assert main(["export", str(folder), "format=peft", f"to={tmp_path / 'peft'}"]) == 0
    words = ["export", str(tmp_path / "peft")]
    assert main([*words, f"to={tmp_path / 'merged'}"]) == 0
    assert torch.allclose(logits(tmp_path / "merged"), logits(folder / "model"), atol=1e-5)
    # It answers as the run's own model: the same labels, texts and rules.
    ours, merged = (read_model(path) for path in (folder / "model", tmp_path / "merged"))
    assert (merged.task, merged.labels) == (ours.task, ours.labels) != (None, ())
    assert merged.provenance == ours.provenance
    # Another model of its base's name is none; whoever names one may take it.
    base = str(folder / "model")
    edit(tmp_path / "peft/adapter_config.json", base_model_name_or_path=base)
    capsys.readouterr()
    assert main([*words, f"to={tmp_path / 'other'}"]) == 1
    assert "is not the model that" in capsys.readouterr().err
    assert main([*words, f"base={base}", f"to={tmp_path / 'other'}"]) == 0


@pytest.mark.parametrize(
    "word", ["encoder={world}/causal", "adaptation.targets=[query,dense]", "token_types=one"]
)
def test_a_merged_adapter_is_the_model_of_its_run(
    word: str, finetune: Any, world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it reads the last token, adapts the pooler, or reads pairs otherwise."""
    folder = finetune("task=sst2", "epochs=1", LORA, word.format(world=world))
    assert main(["export", str(folder / "adapter"), f"to={tmp_path / 'merged'}"]) == 0
    whole, merged = folder / "model", tmp_path / "merged"
    torch.testing.assert_close(logits(merged), logits(whole), rtol=0, atol=1e-6)
    ours, theirs = (read_json(path, "config.json") for path in (whole, merged))
    for key in ("architectures", "model_type", "clozelab", "id2label"):
        assert theirs[key] == ours[key]
    assert read_model(merged).tokenizer.files() == read_model(whole).tokenizer.files()
    assert ("a causal encoder's last token" in caplog.text) == ("causal" in word)


@pytest.mark.slow  # the libraries take long to import
def test_transformers_and_peft_read_what_a_run_has_written(
    adapted: Any, world: Path, tmp_path: Path, capsys: Any
) -> None:
    import peft
    from transformers import AutoModelForSequenceClassification as Classifier

    folder = adapted(LORA)
    ours = logits(folder / "model")
    ids = torch.tensor([[2, 6, 7, 8, 3]])
    merged = Classifier.from_pretrained(folder / "model").eval()
    assert torch.allclose(merged(ids).logits, ours, atol=1e-5)
    assert main(["export", str(folder), "format=peft", f"to={tmp_path / 'peft'}"]) == 0
    base = Classifier.from_pretrained(world / "encoder").eval()
    assert not torch.allclose(base(ids).logits, ours, atol=1e-3)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "peft").eval()
    assert torch.allclose(theirs(ids).logits, ours, atol=1e-5)
    # And back: peft's folder, merged into its base.
    theirs.save_pretrained(tmp_path / "again")
    words = ["export", str(tmp_path / "again"), f"base={world / 'encoder'}"]
    assert main([*words, f"to={tmp_path / 'merged'}"]) == 0
    assert torch.allclose(logits(tmp_path / "merged"), ours, atol=1e-5)


def test_a_run_goes_on_from_an_adapter(adapted: Any, finetune: Any, tmp_path: Path) -> None:
    """At a rate that moves nothing, the encoder is the merged one; another adapter, another run."""
    first = adapted(LORA)
    adapter = Path(shutil.copytree(first / "adapter", tmp_path / "adapter"))
    words = ["task=sst2", "epochs=1", LORA, f"adaptation.adapter={adapter}", "learning_rate=1e-30"]
    folder = finetune(*words)
    left, right = tensors(first / "model"), tensors(folder / "model")
    for name, value in left.items():
        if ".encoder." in name:
            assert torch.allclose(value, right[name], atol=1e-6), name
    weights = load_file(adapter / "adapter_model.safetensors")
    others = {name: 2 * value for name, value in weights.items()}
    save_file(others, adapter / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="holds a run"):
        finetune(*words)
    assert "adapter" not in record_of(first).inputs and record_of(folder).inputs["adapter"]


@pytest.mark.parametrize("kind", [*kinds_of(ADAPTERS), "a given adapter"])
def test_a_run_predicts_files_by_the_model_that_it_kept(
    kind: str, adapted: Any, finetune: Any, world: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Nothing adapts the encoder again, whose folder has the adapters or merged updates."""
    lines = ["index\tsentence", *(f"{i}\tthe film {'good ' * i}bad" for i in range(8))]
    (world / "data/glue/SST-2/test.tsv").write_text("\n".join(lines) + "\n")
    words = split(kind)
    if kind == "a given adapter":
        words = [LORA, f"adaptation.adapter={adapted(LORA) / 'adapter'}"]
    folder = finetune("task=sst2", "epochs=1", "predict_test=true", *words)
    modules = []

    def load_module(*arguments: Any) -> Any:
        modules.append(load(*arguments))
        return modules[0]

    load = prediction.load_module
    monkeypatch.setattr(prediction, "load_module", load_module)
    (path,) = prediction.predict_task(folder, None, str(tmp_path / "again"), {})
    assert path.read_bytes() == (folder / "test_predictions" / path.name).read_bytes()
    predicting = modules[0].encoder.state_dict()
    trained = load_encoder(folder / "model").state_dict()
    assert predicting.keys() == trained.keys()
    assert all(torch.equal(value, trained[name]) for name, value in predicting.items())


def test_updates_of_random_weights_are_no_adapter_of_the_folder(finetune: Any) -> None:
    folder = finetune("task=sst2", "epochs=1", LORA, "initialisation=random")
    assert (folder / "model/model.safetensors").is_file()
    assert not (folder / "adapter").exists()


def test_a_model_is_scored_on_the_fold_that_it_was_not_trained_on(
    finetune: Any, evaluate: Any
) -> None:
    folds = ["task.data.validation_file=null", "task.data.validation_folds=2"]
    folder = finetune("task=sst2", "epochs=1", "seed=2", *folds)
    words = ["measure=labelled", "task@measure.task=sst2", "row=model"]
    words += [f"encoder={folder / 'model'}", "measure.task.data.train_file=glue/SST-2/train.tsv"]
    scored = evaluate(*words, *(f"measure.{word}" for word in folds))
    held_out = [fact(run, "data")["held_out"] for run in (folder, scored)]
    assert held_out == [{"folds": 2, "seed": 1, "number": 0}] * 2, "the evaluation's seed is 1"
    # Fine-tuned further without folds, a model has no fold of its own.
    further = finetune("task=sst2", "epochs=1", f"encoder={folder / 'model'}", name="further")
    for run, fold in ((folder, 0), (further, None)):
        assert read_json(run, "model/config.json")["clozelab"].get("validation_fold") == fold


def test_a_pre_training_seed_may_draw_the_examples_and_the_fold(
    finetune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each has one fine-tuning, the seed of that would give all of them the same ones."""
    drawn = []

    def balanced(*arguments: Any) -> Any:
        drawn.append(arguments[2])
        return sequences.balanced_subset(*arguments)

    monkeypatch.setattr(labelled, "balanced_subset", balanced)
    words = ["task=sst2", "epochs=1", "pretrain_seed=2", "sample_by_seed=true"]
    words += ["max_train_examples=8", "task.data.validation_file=null"]
    words.append("task.data.validation_folds=2")
    for name, word, seed in (
        ("usual", "sampling_seed=seed", 1),
        ("of_encoder", "sampling_seed=pretrain_seed", 2),
    ):
        drawn.clear()
        folder = finetune(*words, word, name=name)
        assert set(drawn) == {seed}
        assert fact(folder, "data")["held_out"]["number"] == seed % 2


def test_adapters_are_refused_where_nobody_could_read_them(
    adapted: Any, tmp_path: Path, capsys: Any
) -> None:
    folder = adapted(ADAPTERS)
    assert main(["export", str(folder), f"to={tmp_path / 'plain'}"]) != 0
    assert "has adapters (adaptation=adapters), which no class of transf" in capsys.readouterr().err
    assert main(["export", str(folder), "format=peft", f"to={tmp_path / 'peft'}"]) != 0
    message = capsys.readouterr().err
    assert "has no adapter/: format=peft is for" in message and "log.txt says so" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["adaptation=lora", "freeze=0"], "freeze=0 is for adaptation=full"),
        (["adaptation=lora", "adaptation.targets=[nix]"], "no matrix is called 'nix'"),
        (["adaptation=top_layers"], "of 2 layers choose 1 to 1"),
        (["freeze=2"], "the encoder has the layers 0 to 1"),
        (["freeze=lower"], "write embeddings, a layer"),
        (
            ["freeze=0", "optimizer.groups=[{pattern: '*.layer.0.*', learning_rate_factor: 2}]"],
            "fits only weights that freeze= or adaptation= leaves",
        ),
        (
            ["adaptation=frozen", "optimizer.groups=[{pattern: 'classifier.*', frozen: true}]"],
            "no parameter of the model is trained",
        ),
        (["adaptation=lora", "reinitialise_layers=1"], "fresh weights, which adaptation= or"),
        (["adaptation=lora", "adaptation.adapter=nowhere"], "nowhere/adapter_config.json does not"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    finetune: Any, tmp_path: Path, words: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        finetune("task=sst2", *words)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def pretrained(world: Path, tmp_path: Path) -> Callable[..., Path]:
    """pretrained(name, **changes) -> the folder of a run with low-rank updates."""
    triples = itertools.permutations((*GOOD, *BAD), 3)
    text = "\n\n".join(f"the film {a} {b}.\nthe film {c}." for a, b, c in triples)
    (world / "data/text.txt").write_text(text)

    def run(name: str, **changes: Any) -> Path:
        settings = {
            "data_dir": world / "data",
            "cache_dir": world / "cache",
            "encoder": world / "encoder",
            "tokenizer.vocab_file": world / "encoder/vocab.txt",
            "objective": "mlm",
            "adaptation": "lora",
            "phases": "[{seq_length: 16, steps: 4, global_batch_size: 8, micro_batch_size: 4}]",
            "optimizer.learning_rate": 1e-2,
        }
        words = overrides(world, tmp_path / name, **settings | changes)
        # The encoder has its own shape.
        words = [word for word in words if not word.startswith(("model.", "tokenizer.vocab_size"))]
        run_stage(pretrain.main, composed("pretrain", words))
        return tmp_path / name

    return run


def test_an_encoder_trained_further_reads_texts_as_the_given_one(
    world: Path, pretrained: Callable[..., Path], tmp_path: Path
) -> None:
    """As sentence-transformers' files said: pooling, prompts, comparison, where a text is cut."""
    folder = shutil.copytree(world / "encoder", tmp_path / "sentences")
    vectors = SentenceVectors("cls", normalized=True, prompts={"query": "good "})
    files = sentence_files(vectors, load_encoder(folder).config, 24, similarity="dot")
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    (folder / "checksums.json").unlink(missing_ok=True)
    further = pretrained("further", encoder=folder) / "encoder"
    assert sentence_vectors(further) == sentence_vectors(folder) == vectors
    assert sentence_vectors(further, "mean").prompts == vectors.prompts
    assert max_positions(further) == max_positions(folder) == 24
    assert similarity_of(further) == similarity_of(folder) == "dot"
    # One that says nothing of vectors stays so.
    assert "given_vectors" not in read_provenance(pretrained("whole") / "encoder")


def test_fresh_weights_of_a_shape_keep_no_token_type_that_nothing_trained(
    world: Path, pretrained: Callable[..., Path]
) -> None:
    """Both texts of a pair have the one that was trained, as of any encoder from full sentences."""
    words = {"adaptation": "full", "objective/input": "full_sentences"}
    fresh = pretrained("fresh", fresh_weights="true", **words) / "encoder"
    assert open_tokenizer(world / "encoder").has_token_types
    assert not open_tokenizer(fresh).has_token_types
    assert open_tokenizer(pretrained("further", **words) / "encoder").has_token_types


def test_pretraining_goes_on_with_low_rank_updates(
    world: Path, pretrained: Callable[..., Path]
) -> None:
    """The folder is merged and holds the trained head."""
    whole = pretrained("whole")
    before, after = tensors(world / "encoder"), tensors(whole / "encoder")
    assert "cls.predictions.transform.dense.weight" in after
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed and all("query" in name or "value" in name for name in changed)
    assert (whole / "adapter/adapter_model.safetensors").is_file()
    assert fact(whole, "trained_parameters") < fact(whole, "parameters")
    again = pretrained("again", **{"adaptation.adapter": whole / "adapter"})
    assert record_of(again).inputs["adapter"]
    with pytest.raises(ValueError, match="so it needs a trained one: say encoder=FOLDER"):
        pretrained("fresh", encoder="null")
    with pytest.raises(ValueError, match="encoder=FOLDER, without fresh_weights=true"):
        pretrained("fresh", fresh_weights="true")
