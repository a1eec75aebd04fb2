"""What the code computes is what it computed when the reference was frozen: losses, weights,
scores, verdicts.

Everything goes through doors that a refactor keeps: the command line, the files of a run folder,
the experiments. On a machine like the one that froze (processor, vector instructions, torch, numpy)
every number is compared to the last bit, and weights and predictions by checksum. Elsewhere sums
are made in another order: learning rates, token counts, texts and vocabulary are still equal,
losses and gradient norms close, the selecting score within a few examples; weights, single
predictions and what is computed in bf16 are not compared. Verdicts are arithmetic on published
scores, and equal everywhere.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.reference import freeze
from tests.reference.freeze import cases, machine

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in (freeze.FROZEN, freeze.FROZEN_TASKS)
}
"""Each was frozen on a machine of its own."""
CASES: list[tuple[str, str]] = []
for file_name, cases_of_file in FILES.items():
    CASES += [(file_name, case) for case in cases_of_file if case != "machine"]
LONGER = {
    "pretrain mlm": "mlm_nsp and mlm_full_sentences",
    "pretrain ltr_full_sentences": "ltr and mlm_full_sentences",
    "finetune single_random": "single and spans_random",
    "finetune pair_three_labels": "pair",
    "finetune spans_causal": "spans_causal_bilstm",
    "finetune features_of_one_layer": "features",
    "finetune features_random": "features and spans_random",
    "finetune tags_bilstm": "tags and pair_bilstm",
    "finetune tags_alone": "tags and batches",
    "finetune pair_jsonl": "pair and formats",
    "finetune pair_held_out": "pair and batches",
    "finetune choices": "choices_predicted",
    "finetune spans_or_none": "spans_predicted",
    "finetune spans": "spans_predicted and spans_causal_bilstm",
    "finetune siamese_numbers": "siamese and regression",
    "finetune tags_conllu": "tags and formats",
    "finetune contrastive_pairs": "contrastive and contrastive_triples",
    "evaluate similarity_cls": "similarity",
    "evaluate probe_of_texts": "probe",
}
"""Longer evidence (`pytest -m slow`), and the cases that go the same ways in every run of the
suite.
"""
RELATIVE = {"losses": 2e-5, "norms": 2e-5, "scores": 0.1, "verdicts": 1e-9}
"""How far numbers of a part may be away on another machine; those of a part that is not named are
equal, but
`one_machine` is not looked at. Without AVX-512 and without any vectors losses moved by up to 3e-6,
and no score did."""
ABSOLUTE = {"losses": 3e-6, "scores": 0.05, "verdicts": 1e-9}
"""A contrastive loss ends near zero, where small differences of cosines are large shares."""
MEANT = (
    "A refactor changes no number. Where other numbers are meant, raise RESULTS_VERSIONS in"
    " runs/identity.py, write the reason down in tests/reference/README.md and freeze anew:"
    " python -m tests.reference.freeze"
)


def is_compared(name: str, case: str) -> bool:
    """Of a bf16 case only learning rates and texts are equal elsewhere, and those are every other
    case's too. Weights and predictions are never equal elsewhere.
    """
    frozen = FILES[name]
    is_of_one_machine = "bf16" in case or frozen[case].keys() == {"one_machine"}
    return not is_of_one_machine or machine() == frozen["machine"]


def marks(name: str, case: str) -> list[pytest.MarkDecorator]:
    skipped = pytest.mark.skipif(
        not is_compared(name, case), reason="is compared on a machine like the one that froze it"
    )
    return [skipped, pytest.mark.slow] if case in LONGER else [skipped]


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """All cases that are asked for computed again, in a process of its own that no other test has
    set up.
    """
    own = (
        item
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    )
    asked = [(item.callspec.params["name"], item.callspec.params["case"]) for item in own]
    wanted = dict.fromkeys(case for name, case in asked if is_compared(name, case))
    path = tmp_path_factory.mktemp("reference") / "found.json"
    alone = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CLOZELAB_", "PYTEST_"))
    }
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = forked.run(
        [sys.executable, "-m", "tests.reference.freeze", str(path), *wanted],
        cwd=ROOT,
        env=alone | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(path.read_text(encoding="utf-8")))


def differences(
    frozen: Any, now: Any, relative: float, absolute: float, where: str = ""
) -> Iterator[str]:
    """Leaves of `frozen` that `now` has otherwise; what only `now` has is not looked at."""
    if isinstance(frozen, dict) and isinstance(now, dict):
        for key, value in frozen.items():
            yield from differences(value, now.get(key), relative, absolute, f"{where} {key}")
    elif isinstance(frozen, list) and isinstance(now, list) and len(frozen) == len(now):
        for i, pair in enumerate(zip(frozen, now, strict=True)):
            yield from differences(*pair, relative, absolute, f"{where}[{i}]")
    elif isinstance(frozen, float) and isinstance(now, float) and relative:
        if not math.isclose(frozen, now, rel_tol=relative, abs_tol=absolute):
            yield f"{where}: {frozen!r} was frozen, now {now!r}"
    elif frozen != now:
        yield f"{where}: {frozen!r} was frozen, now {now!r}"


@pytest.mark.parametrize(("name", "case"), [pytest.param(*one, marks=marks(*one)) for one in CASES])
def test_the_numbers_are_those_that_were_frozen(
    found: dict[str, Any], name: str, case: str
) -> None:
    assert "error" not in found[case], found[case]["error"]
    is_same_machine = FILES[name]["machine"] == found["machine"]
    wrong: list[str] = []
    for part, frozen in FILES[name][case].items():
        is_exact = is_same_machine and part != "verdicts"
        is_of_one_machine = part == "one_machine" or ("bf16" in case and part != "everywhere")
        if is_exact or not is_of_one_machine:
            limits = (0.0, 0.0) if is_exact else (RELATIVE.get(part, 0.0), ABSOLUTE.get(part, 0.0))
            wrong += differences(frozen, found[case].get(part), *limits, part)
    shown = "\n  ".join(
        [
            f"{len(wrong)} values differ ({'same' if is_same_machine else 'other'} machine):",
            *wrong[:8],
        ]
    )
    assert not wrong, f"{shown}\n{MEANT}"


def test_no_case_was_left_out() -> None:
    first, second = FILES.values()
    assert {"machine", *cases(ROOT)} == first.keys() | second.keys()
    assert freeze.task_cases(ROOT).keys() == second.keys() - first.keys()
    assert LONGER.keys() < first.keys() | second.keys()


def test_the_format_of_a_table_changes_nothing() -> None:
    """What was frozen of each format is the same; so are the weights of a fine-tuning."""
    tasks = FILES["frozen_tasks"]
    formats = [*tasks["formats"]["everywhere"].values()]
    assert len(formats) == 5 and all(one == formats[0] for one in formats)
    models = [tasks[f"finetune {name}"]["one_machine"]["model"] for name in ("pair", "pair_jsonl")]
    assert models[0] == models[1]
