"""Low-rank updates are peft's: outputs, gradients, and folders in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.numerics.members import (
    TOLERANCE,
    Pair,
    assert_equal,
    become_gradients,
    build_pair,
    case_of,
    make_batch,
    our_outputs,
    randomise,
    their_outputs,
    tokenizer_of,
)
from torch import Tensor, nn
from torch.nn.utils import parametrize

from clozelab.cli import main
from clozelab.models.adaptation import LoRA, adapt, file_updates, save_adapter
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.models.peft_folders import read_about, read_adapter
from clozelab.modules.exporting import write_merged
from clozelab.modules.model import read_model, sentence_vectors, write_model
from clozelab.modules.model_tasks import MULTI_LABEL
from clozelab.modules.sentence_folders import (
    SentenceVectors,
    longest_text,
    read_sentence_vectors,
)

DENSE = "attention.output.dense"
# peft's names; those of the last column are ours, which say the same.
TARGETS = {
    "bert": ["query", "value", DENSE],
    "albert": ["query", "dense"],
    "distilbert": ["q_lin", "v_lin", "lin2"],
    "deberta-v2": ["query_proj", "key_proj", "value_proj"],
    "modernbert": ["Wqkv", "mlp.Wo"],
}


def train(states: Tensor) -> None:
    """Gradients of a sum in which every number counts otherwise."""
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    (states * weights).mean().backward()


@pytest.mark.parametrize("name", TARGETS)
def test_outputs_gradients_and_folders_are_those_of_peft(name: str, tmp_path: Path) -> None:
    import peft

    pair = build_pair(case_of(name), "Model", tmp_path)
    # peft draws its updates from the global generator.
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=3, lora_alpha=2, target_modules=TARGETS[name])
    theirs = peft.get_peft_model(pair.theirs, settings)
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "peft")
    # Their base has moved as well: ours begins with what it is now.
    theirs.unload().save_pretrained(tmp_path / "base")
    base = type(pair.theirs).from_pretrained(tmp_path / "base").eval()
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "peft", is_trainable=True).eval()
    encoder = load_encoder(tmp_path / "base").eval()
    adapt(encoder, LoRA(adapter=str(tmp_path / "peft")), None, has_fresh_pooler=False)
    # In float32 the rounding of ModernBERT's own layers comes near to the tolerance.
    base.double()
    encoder.double()
    pair = Pair(pair.case, base, encoder, {})
    batch = make_batch(pair.case)
    (ours,), (expected,) = our_outputs(pair, batch), their_outputs(pair, batch)
    assert_equal(ours, expected, "states")
    plain = Pair(pair.case, base, load_encoder(tmp_path / "base").eval(), {})
    assert float((our_outputs(plain, batch)[0] - ours).abs().max()) > 1000 * TOLERANCE
    # What is written here is read there.
    save_adapter(tmp_path / "again", encoder, {}, "base")
    again = type(base).from_pretrained(tmp_path / "base").eval()
    again = peft.PeftModel.from_pretrained(again, tmp_path / "again").double().eval()
    outputs = their_outputs(Pair(pair.case, again.base_model.model, encoder, {}), batch)
    assert_equal(outputs[0], expected, "states of the written folder")
    train(ours)
    train(expected)
    compare_gradients(encoder, base)


def compare_gradients(encoder: Encoder, theirs: nn.Module) -> None:
    trained = {name for name, weight in encoder.named_parameters() if weight.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    become_gradients(encoder)
    updates = file_updates(encoder)
    gradients = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert len(gradients) == 2 * len(updates)
    for name, gradient in gradients.items():
        matrix, _, half = name.partition(".lora_")
        (update,) = [value for own, value in updates.items() if own.endswith(matrix)]
        mine = update.down if half.startswith("A") else update.up
        assert_equal(mine, gradient, f"gradient of {name}")


def beside(encoder: Encoder) -> None:
    """The mistake that this is about: an update around the module, as a wrapper's."""
    for module in list(encoder.modules()):
        if not hasattr(module, "parametrizations"):
            continue
        update: Any = module.parametrizations["weight"][0]  # type: ignore[index]
        weight = module.parametrizations["weight"].original  # type: ignore[index, union-attr]
        difference = (update(weight) - weight).detach()
        torch.nn.utils.parametrize.remove_parametrizations(module, "weight", False)

        def add(_: nn.Module, inputs: Any, output: Tensor, matrix: Tensor = difference) -> Tensor:
            return output + nn.functional.linear(inputs[0], matrix)

        module.register_forward_hook(add)


@pytest.mark.parametrize("name", ["deberta-v2", "xlnet", "longformer", "ultrabert"])
def test_rows_that_are_read_without_their_module_are_adapted(name: str, tmp_path: Path) -> None:
    """The merged folder is the measure; a wrapper around the module misses DeBERTa's distances."""
    pair = build_pair(case_of(name), "Model", tmp_path)
    encoder = pair.encoder
    adapt(encoder, LoRA(targets=["query", "key", "value"]), None, has_fresh_pooler=False)
    for path, weight in encoder.named_parameters():
        if "lora_B" in path:
            nn.init.normal_(weight, std=0.2)
    save_encoder_folder(tmp_path / "merged", encoder, heads={}, tokenizer_files={}, extra_config={})
    merged = load_encoder(tmp_path / "merged").eval()
    batch = make_batch(pair.case)
    states = encoder(**batch.ours).sequence_output[batch.rows]
    assert_equal(states, merged(**batch.ours).sequence_output[batch.rows], "merged states")
    # A query of a second stream reads a third of the matrix.
    queries = torch.randn(5, encoder.config.hidden_size)
    width = slice(encoder.config.hidden_size)
    attention: Any = encoder.layer[0].attention
    merged_attention: Any = merged.layer[0].attention
    ours = attention.project(queries, width)
    expected = merged_attention.project(queries, width)
    assert_equal(ours, expected, "queries")
    beside(encoder)
    wrapped = attention.project(queries, width)
    assert float((wrapped - expected).detach().abs().max()) > 1000 * TOLERANCE
    if name == "deberta-v2":
        wrapped = encoder(**batch.ours).sequence_output[batch.rows]
        assert float((wrapped - states).detach().abs().max()) > 1000 * TOLERANCE


@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
@pytest.mark.parametrize("is_fresh", [False, True])
def test_an_adapted_or_fresh_pooler_is_one_to_peft_and_to_us(
    name: str, is_fresh: bool, tmp_path: Path
) -> None:
    """DeBERTa's stands beside the encoder, under a name without its prefix."""
    import peft

    pair = build_pair(case_of(name), "ForSequenceClassification", tmp_path)
    ids = torch.tensor([[2, 6, 7, 8, 3]])
    encoder = pair.encoder
    base = {} if is_fresh else {"classification": pair.heads["classification"]}
    tokenizer = tokenizer_of(pair.case)
    write_model(tmp_path / "base", encoder, base, tokenizer, with_pooler=not is_fresh)
    head = pair.heads["classification"]
    adapt(encoder, LoRA(targets=["query", "dense"]), None, has_fresh_pooler=is_fresh)
    for path, weight in encoder.named_parameters():
        if "lora_B" in path:
            nn.init.normal_(weight, std=0.2)
    save_adapter(tmp_path / "adapter", encoder, {"classification": head}, "base")
    layout = Layout.ragged([5])
    with torch.no_grad():
        states = encoder(ids[0], torch.zeros(5).long(), torch.arange(5), layout).sequence_output
        expected = head(encoder.pool(states, layout, head))
        (tmp_path / "merged").mkdir()
        write_merged(tmp_path / "adapter", tmp_path / "base", tmp_path / "merged")
        model = read_model(tmp_path / "merged")
        states = model.encoder(ids[0], torch.zeros(5).long(), torch.arange(5), layout)
        merged = model.heads["classification"]
        ours = merged(model.encoder.pool(states.sequence_output, layout, merged))
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
        given = type(pair.theirs).from_pretrained(tmp_path / "base", num_labels=3)
        theirs = peft.PeftModel.from_pretrained(given, tmp_path / "adapter").eval()
        torch.testing.assert_close(theirs(ids).logits, expected, rtol=0, atol=1e-5)


def test_another_adaptation_is_no_folder_of_pefts(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, weight: Tensor) -> Tensor:
            return self.scale * weight

    encoder = build_pair(case_of("bert"), "Model", tmp_path).encoder
    attention: Any = encoder.layer[0].attention
    parametrize.register_parametrization(attention.qkv, "weight", Scaled())
    parametrize.register_parametrization(attention.output.dense, "bias", Scaled())
    save_adapter(tmp_path / "adapter", encoder, {}, "base")
    assert not (tmp_path / "adapter").exists()


OF_BASE = {
    "answers": {"ranks": ["poor", "fair", "good"]},
    "task": "grades",
    "texts_per_example": 2,
    "max_seq_length": 8,
    "untrained": ["pooler"],
}
OF_RUN = {"answers": {"threshold": 0.4}, "task": "moods", "texts_per_example": 1}


@pytest.mark.parametrize("has_config", [True, False])
def test_a_merged_head_answers_by_its_own_rules(has_config: bool, tmp_path: Path) -> None:
    """Its base tells three ordered classes apart, by two outputs."""
    base = build_pair(case_of("bert"), "Model", tmp_path).encoder
    tokenizer = tokenizer_of(case_of("bert"))
    ordinal = {"classification": nn.Linear(base.config.hidden_size, 2)}
    labels: dict[str, Any] = {
        "labels": ["more than poor", "more than fair"],
        "problem_type": MULTI_LABEL,
    }
    about = {"clozelab": OF_BASE}
    write_model(tmp_path / "base", base, ordinal, tokenizer, extra_config=about, **labels)
    encoder = load_encoder(tmp_path / "base")
    adapt(encoder, LoRA(targets=["query"]), None, has_fresh_pooler=True)
    head = nn.Linear(base.config.hidden_size, 2)
    config: dict[str, Any] = {}
    if has_config:
        config = {"id2label": {"0": "calm", "1": "glad"}, "clozelab": OF_RUN}
        config["problem_type"] = MULTI_LABEL
    heads = {"classification": head}
    save_adapter(tmp_path / "adapter", encoder, heads, "base", config=config)
    (tmp_path / "merged").mkdir()
    write_merged(tmp_path / "adapter", tmp_path / "base", tmp_path / "merged")
    model = read_model(tmp_path / "merged")
    assert torch.equal(model.heads["classification"].state_dict()["weight"], head.weight)
    if has_config:
        assert (model.task, model.class_names) == ("multi_label", ("calm", "glad"))
        assert model.provenance == OF_RUN
    else:
        assert (model.task, model.class_names) == ("classification", ("LABEL_0", "LABEL_1"))
        assert model.provenance == {}


def test_a_head_that_peft_has_not_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = build_pair(case_of("bert"), "Model", tmp_path).encoder
    adapt(encoder, LoRA(targets=["query"]), None, has_fresh_pooler=False)
    heads = {"choices": nn.Linear(encoder.config.hidden_size, 1)}
    config: dict[str, Any] = {"clozelab": OF_RUN}
    save_adapter(tmp_path / "adapter", encoder, heads, "base", config=config)
    assert "peft has no place for this head (choices)" in caplog.text
    assert not read_adapter(tmp_path / "adapter").whole
    assert read_about(tmp_path / "adapter") == {"config": {}}
    save_adapter(tmp_path / "vectors", encoder, {}, "base", config=config)
    assert caplog.text.count("peft has no place") == 1
    assert read_about(tmp_path / "vectors") == {"config": config}


def test_a_merged_encoder_of_siamese_training_makes_its_vectors(tmp_path: Path) -> None:
    """The head tells classes that no answer reads: of its rules those of a vector stay."""
    encoder = build_pair(case_of("bert"), "Model", tmp_path).encoder
    write_model(tmp_path / "base", encoder, {}, tokenizer_of(case_of("bert")))
    adapt(encoder, LoRA(targets=["query"]), None, has_fresh_pooler=False)
    heads = {"siamese": nn.Linear(3 * encoder.config.hidden_size, 3)}
    of_vectors = {"pooling": "cls", "max_seq_length": 8, "prompts": {"query": "ask "}}
    config: dict[str, Any] = {"id2label": {"0": "a"}, "clozelab": of_vectors}
    save_adapter(tmp_path / "adapter", encoder, heads, str(tmp_path / "base"), config=config)
    assert main(["export", str(tmp_path / "adapter"), f"to={tmp_path / 'merged'}"]) == 0
    model = read_model(tmp_path / "merged")
    assert (model.task, model.embedded_length, model.labels) == ("embedding", 8, ())
    # sentence-transformers makes the same.
    vectors = SentenceVectors("cls", prompts={"query": "ask "})
    assert read_sentence_vectors(model.folder) == sentence_vectors(model.folder) == vectors
    assert longest_text(model.folder) == 8


def test_parts_that_peft_has_trained_whole_are_merged_or_refused(tmp_path: Path) -> None:
    """Such a folder names the embeddings without the prefix that the base's file has."""
    import peft
    from transformers import AutoModel

    ids = torch.tensor([[2, 6, 7, 8, 3]])
    pair = build_pair(case_of("bert"), "Model", tmp_path)
    base = tmp_path / "base"
    files = tokenizer_of(pair.case).files()
    save_encoder_folder(base, pair.encoder, heads={}, tokenizer_files=files, extra_config={})

    def save(name: str, targets: list[str], **settings: Any) -> torch.Tensor:
        config = peft.LoraConfig(r=2, target_modules=targets, **settings)
        model = peft.get_peft_model(AutoModel.from_pretrained(base), config).eval()
        for weight in model.parameters():
            if weight.requires_grad:
                torch.nn.init.normal_(weight, std=0.3)
        model.save_pretrained(tmp_path / name)
        with torch.no_grad():
            return model(ids).last_hidden_state

    theirs = save("embeddings", ["query"], modules_to_save=["word_embeddings"])
    with pytest.raises(ValueError, match="was trained whole, and is no update"):
        LoRA(adapter=str(tmp_path / "embeddings")).apply(load_encoder(base))
    (tmp_path / "merged").mkdir()
    merged = load_encoder(write_merged(tmp_path / "embeddings", base, tmp_path / "merged")).eval()
    with torch.no_grad():
        ours = merged(ids[0], torch.zeros(5).long(), torch.arange(5), Layout.ragged([5]))
    torch.testing.assert_close(ours.sequence_output, theirs[0], rtol=0, atol=1e-5)
    # An update of embeddings is of another kind, which we do not have.
    save("words", ["query", "word_embeddings"])
    with pytest.raises(ValueError, match="lora_embedding_A is no update of a matrix"):
        read_adapter(tmp_path / "words")
