"""A class of transformers that splits text otherwise than its folder's tokenizer.json is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.corpus.test_folder_tokenizers import roberta

from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.tokenizer_classes import QWEN2_PATTERN

transformers = pytest.importorskip("transformers")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
TEXT = "the cat's 2026 mats"


def sequence(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return {"type": "Sequence", "pretokenizers": [split | {"invert": False}, BYTES]}


@pytest.mark.parametrize(
    ("name", "splitter", "is_rebuilt"),
    [
        ("RobertaTokenizer", None, False),
        ("RobertaTokenizer", sequence(r"\p{L}|\p{N}"), True),
        ("GPT2Tokenizer", sequence(r"\p{L}|\p{N}"), True),
        ("Qwen2Tokenizer", sequence(r"\p{L}|\p{N}"), True),
        ("Qwen2Tokenizer", sequence(QWEN2_PATTERN), False),
        ("PreTrainedTokenizerFast", sequence(r"\p{L}|\p{N}"), False),
    ],
)
def test_a_rebuilt_pre_tokeniser_is_said(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    splitter: dict[str, Any] | None,
    is_rebuilt: bool,
) -> None:
    roberta(tmp_path)
    for file, key, value in (
        ("tokenizer.json", "pre_tokenizer", splitter),
        ("tokenizer_config.json", "tokenizer_class", name),
    ):
        content = json.loads((tmp_path / file).read_text())
        if value is not None:
            content[key] = value
        (tmp_path / file).write_text(json.dumps(content))
    ours = read_tokenizer(tmp_path)
    (ids,) = ours.encode_batch([TEXT])
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    equal = theirs(TEXT, add_special_tokens=False)["input_ids"] == ids.tolist()
    assert equal != is_rebuilt
    said = [record.message for record in caplog.records if "splits text" in record.message]
    assert len(said) == is_rebuilt
    assert all(f"{name} of transformers 5" in sentence for sentence in said)
