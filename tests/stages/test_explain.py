"""Attention maps are those of transformers; shares of tokens are complete; the page needs nothing
beside itself.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.screens import refuses, shows

import clozelab
from clozelab.cli import main
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.registry import family_for
from clozelab.modules.explaining import attribute
from clozelab.modules.model import write_model
from clozelab.stages import explain

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase, "<", ">"], lowercase=True)
LABELS = ("no", "yes", "perhaps")


@pytest.fixture(scope="module")
def model(
    tiny_config: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """model(kind) -> (what load gives, its folder), with weights large enough for answers to depend
    on the text.
    """

    def make(*kinds: str, **changes: Any) -> Any:
        torch.manual_seed(3)
        encoder = Encoder(
            tiny_config(vocab_size=TOKENIZER.vocab_size, initializer_range=0.3, **changes)
        )
        family = family_for(encoder.config)
        heads = {kind: family.head(kind, encoder, num_labels=3) for kind in kinds}
        folder = tmp_path_factory.mktemp("explained") / "m<x>"
        write_model(folder, encoder, heads, TOKENIZER, labels=LABELS)
        return clozelab.load(folder, device="cpu", precision="32-true"), folder

    return make


def test_attention_is_transformers(model: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours, folder = model("classification")
    reference = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [("a b c", "d e"), ("x", "y z q r s t")]
    for text, maps in zip(texts, ours.attention(texts), strict=True):
        with torch.inference_mode():
            inputs = tokenizer(*text, return_tensors="pt")
            found = reference(**inputs, output_attentions=True).attentions
        assert np.abs(maps - torch.cat(found).numpy()).max() <= 1e-5
    assert np.array_equal(ours.attention(texts[0]), ours.attention(texts)[0])
    causal, _ = model("lm", is_causal=True)
    maps = causal.attention("a b c d")
    assert np.triu(maps, 1).max() == 0
    assert np.abs(maps.sum(-1) - 1).max() < 1e-5
    (tmp_path / "in.txt").write_text("a b\nc d e\n")
    words = [f"input={tmp_path / 'in.txt'}", "do=attention", "precision=32-true", "device=cpu"]
    assert main(["predict", str(folder), *words, f"output={tmp_path / 'maps.npz'}"]) == 0
    kept = np.load(tmp_path / "maps.npz")
    low = clozelab.load(folder, device="cpu", precision="bf16-mixed").attention("c d e")
    assert low.dtype == np.float32
    assert np.abs(low - kept["text_2"]).max() < 0.1
    assert [*kept] == ["text_1", "text_2"]
    assert np.array_equal(kept["text_2"], ours.attention(["a b", "c d e"])[1])


ACTS: dict[str, tuple[str, Any]] = {
    "classify": ("classification", "a b c d e"),
    "fill": ("lm", "a b [MASK] d"),
    "answer": ("spans", ("a b", "c d e f g")),
}


@pytest.mark.parametrize("act", ACTS)
def test_the_shares_are_complete(model: Any, act: str) -> None:
    head, text = ACTS[act]
    ours, _ = model(head)
    attribution = attribute(ours, act, text, steps=256)
    gain = attribution.logit - attribution.without
    assert abs(gain) > 0.1
    assert abs(attribution.gap) < 0.01 * abs(gain)
    of_one_point = attribute(ours, act, text, steps=1)
    assert abs(of_one_point.gap) > 10 * abs(attribution.gap), "one point is no integral"
    assert attribution.shares[0] == attribution.shares[-1] == 0.0
    assert attribution.tokens[0] == "[CLS]"
    if act == "classify":
        assert attribution.answer == ours.classify(text).label
        worst = min(LABELS, key=ours.classify(text).probabilities.__getitem__)
        assert attribute(ours, act, text, target=worst).logit < attribution.logit
    if act == "fill":
        assert attribution.answer == ours.fill_mask(text).masks[0][0].token
        assert attribution.shares[3] == 0.0
    if act == "answer":
        with refuses("target=c: this model gives a span: leave it out"):
            attribute(ours, act, text, target="c")
        assert attribution.answer == ours.answer(*text, null_answer=False).text
        rules = {"with_unanswerable": True, "threshold": -1e9, "max_answer_length": 1}
        ours.model.config["clozelab"] = {"answers": rules}
        assert ours.answer(*text).text == ""
        assert attribute(ours, act, text).answer == "no answer"
        rules["threshold"] = 1e9
        assert ours.answer(*text).text == attribute(ours, act, text).answer, "one token at most"


def test_the_shares_are_those_of_an_independent_sum(model: Any) -> None:
    transformers = pytest.importorskip("transformers")
    ours, folder = model("classification")
    attribution = attribute(ours, "classify", "a b c d", target="yes", steps=128)
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("a b c d", return_tensors="pt")["input_ids"]
    words, blank = reference.get_input_embeddings(), ids.clone()
    blank[0, 1:-1] = tokenizer.mask_token_id
    start, end, points = words(blank).detach(), words(ids).detach(), 2000
    total = torch.zeros_like(end)
    for some in ((torch.arange(points) + 0.5) / points).split(200):
        here = (start + some[:, None, None] * (end - start)).requires_grad_()
        reference(inputs_embeds=here).logits[:, 1].sum().backward()
        total += here.grad.sum(0, keepdim=True) / points
    expected = (total * (end - start)).sum(-1)[0]
    assert np.abs(np.array(attribution.shares) - expected.numpy()).max() < 1e-3


def test_attention_is_of_the_text_that_was_classified(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Of a text longer than the fine-tuning's that is its first tokens, as in the answer."""
    ours, _ = model("classification")
    provenance = {"clozelab": {"max_seq_length": 6}}
    folder = tmp_path / "cut"
    write_model(folder, ours.encoder, ours.heads, TOKENIZER, labels=LABELS, extra_config=provenance)
    drawn: list[Any] = []
    monkeypatch.setattr(explain, "draw", lambda *given: drawn.append(given) or b"")
    out = f"out={tmp_path / 'picture.png'}"
    words = ["text=a b c d e f g", out, "steps=1", "device=cpu", "precision=32-true"]
    assert main(["explain", str(folder), *words]) == 0
    ((tokens, _, maps, _),) = drawn
    assert tokens == ("[CLS]", "a", "b", "c", "d", "[SEP]")
    assert np.abs(maps - ours.attention("a b c d")).max() < 1e-6
    shows(capsys.readouterr().err, "the text was cut at the 6 tokens of the fine-tuning")


def test_the_page_and_the_picture(model: Any, tmp_path: Path, capsys: Any) -> None:
    _, folder = model("classification")
    page, picture = tmp_path / "page.html", tmp_path / "picture.png"
    for out in (page, picture):
        words = ["text=a < b > c", f"out={out}", "layers=1,2", "heads=1", "steps=8", "device=cpu"]
        assert main(["explain", str(folder), *words]) == 0
    html = page.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
    for markup in ("layer 1 head 1, layer 2 head 1", "&lt;<small>", "m&lt;x&gt;"):
        assert markup in html
    assert "m<x>" not in html
    assert not re.search(r'(src|href)="(?!data:)|<script|https?:', html), "nothing is fetched"
    assert len(re.findall('class="token"', html)) == 7
    plain, _ = model()
    assert main(["explain", str(plain.model.folder), "text=a b", f"out={page}", "device=cpu"]) == 0
    (note,) = re.findall("[^<>]*no trained head[^<>]*", page.read_text(encoding="utf-8"))
    shows(note, "No answer of this model is traced to tokens: it has no trained head for")
    assert main(["explain", str(plain.model.folder), "text=a b", f"out={page}", "target=a"]) == 1
    shows(capsys.readouterr().err, "explain: reading")
    for words, said in (
        ([f"out={page}"], "needs text=TEXT"),
        (["text=a"], "needs out=PAGE.html or out=PICTURE.png"),
        (["text=a", "out=x.pdf"], "out=x.pdf: give a .html or .png"),
        (["text=a", f"out={page}", "layers=3"], "layers=3: give numbers from 1 to 2"),
        (["text=a", f"out={page}", "heads=0"], "heads=0"),
        (["text=a", f"out={page}", "steps=x"], "steps=x"),
        (["text=a", f"out={page}", "question=b"], "question= belongs to a model that answers"),
        (["text=a", f"out={page}", "target=maybe"], "target=maybe: this model knows no, yes,"),
    ):
        assert main(["explain", str(folder), *words]) == 1
        assert said in " ".join(capsys.readouterr().err.split())
