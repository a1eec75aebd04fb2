"""`clozelab verify` of a pack: what is honest passes, and what was flipped, taken out or put in is
named.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runs.archives import NAME, edit, rewritten, say
from tests.screens import Screens

from clozelab.files.digests import digest
from clozelab.report import render
from clozelab.results.experiment import load_experiment
from clozelab.runs.archive import RUNS
from clozelab.runs.identity import identity_of
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.text.paths import EXPERIMENTS_DIR

pytestmark = pytest.mark.usefixtures("no_pictures")
EXAMPLES = 1000


def honest(root: Path) -> None:
    """Made-up runs with what real ones have: predictions of their scores, configurations of their
    fingerprints.
    """
    for path in root.rglob("run.json"):
        state, folder = json.loads(path.read_text()), path.parent
        said = {
            "config": identity_of(state["config"]),
            "inputs": {},
            "results_version": state["results_version"],
        }
        edit(path, fingerprint=digest(said), overrides=[f"seed={state['config']['seed']}"])
        (folder / "config.yaml").write_text(
            yaml.safe_dump(state["config"] | {"scale": {"name": "demo"}})
        )
        if state["stage"] == "pretrain":
            (folder / "metrics.csv").open("a").write("100,1000000,9.0,validation/loss,4.4\n")
            continue
        right = round(
            EXAMPLES
            * json.loads((folder / "scores.json").read_text())["scores"]["validation/accuracy"]
        )
        rows = [
            {"id": str(i), "prediction": "1", "label": "1" if i < right else "0"}
            for i in range(EXAMPLES)
        ]
        (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        saved = json.loads((folder / "scores.json").read_text())
        saved["scores"] = {"validation/accuracy": right / EXAMPLES}
        (folder / "scores.json").write_text(json.dumps(saved))
        value = 100.0 * (right / EXAMPLES)
        scores = state["scores"]["validation/accuracy"] | {"value": value}
        edit(
            path,
            scores={"validation/accuracy": scores},
            facts=state["facts"] | {"validation/accuracy": value / 100},
        )
    render.write_report(
        load_experiment(EXPERIMENTS_DIR / NAME), root, root / "report", scale="demo"
    )


def forged(path: Path, file: str, change: Callable[[str], str], is_clever: bool = True) -> None:
    """One file of a pack changed; a clever forger writes its new checksum, and a record's new
    fingerprint, too.
    """

    def forge(entries: dict[str, bytes], manifest: dict[str, Any]) -> None:
        name = file if file in manifest["files"] else f"{RUNS}/{NAME}/demo/{file}"
        first: dict[str, str] = {}
        whole = {one: entries[first.setdefault(sha, one)] for one, sha in manifest["files"].items()}
        before, whole[name] = whole[name], change(whole[name].decode()).encode()
        assert whole[name] != before
        if is_clever and name.endswith("run.json"):
            state = json.loads(whole[name])
            said = {
                "config": identity_of(state["config"]),
                "inputs": {},
                "results_version": state["results_version"],
            }
            state["fingerprint"] = digest(said)
            whole[name] = json.dumps(state).encode()
        if is_clever:
            manifest["files"] = {
                one: hashlib.sha256(content).hexdigest() for one, content in whole.items()
            }
        entries.clear()
        # Equal files lie in the pack once.
        by_sha = {sha: one for one, sha in reversed(manifest["files"].items())}
        entries |= {one: whole[one] for one in by_sha.values()}

    rewritten(path, forge)


TUNED = "finetune/mlm/pretrain-seed-1/mnli/seed-1"
BOMB = "a0: &a0 [1, 2]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
LOSS = ('"validation/loss": 4.4', '"validation/loss": 3.4')
INVENTED = '"scores": {"validation/invented": {"unit": "percent", "factor": 1.0, "value": 99.0}, '
FORGERIES: dict[str, tuple[str, Callable[[str], str], str]] = {
    "a score of the record": (
        f"{TUNED}/run.json",
        lambda text: text.replace('"value": 6', '"value": 8'),
        f"{TUNED}: validation/accuracy is 8",
    ),
    "a score of the scorer": (
        f"{TUNED}/scores.json",
        lambda text: text.replace("0.6", "0.8"),
        "scores.json gives 8",
    ),
    "a prediction": (
        f"{TUNED}/predictions.jsonl",
        lambda text: text.replace('n": "1"', 'n": "0"', 1),
        "its predictions gives 6",
    ),
    "a configuration": (
        "pretrain/mlm/seed-1/run.json",
        lambda text: text.replace('"hidden_size": 128', '"hidden_size": 256'),
        "pretrain/mlm/seed-1: model.hidden_size is 256, and config.yaml says 128",
    ),
    "a seed": (
        "pretrain/mlm/seed-1/run.json",
        lambda text: text.replace('"seed": 1', '"seed": 3'),
        "seed is 3, and its command says '1'",
    ),
    "a loss": (
        "pretrain/mlm/seed-1/run.json",
        lambda text: text.replace(*LOSS).replace('"value": 4.4', '"value": 3.4'),
        "validation/loss is 3.4, and metrics.csv gives 4.4",
    ),
    "other tokens": (
        "pretrain/mlm/seed-1/run.json",
        lambda text: text.replace('"tokens": 1', '"tokens": 2'),
        "metrics.csv ends with 1000000",
    ),
    "a score of nothing": (
        f"{TUNED}/run.json",
        lambda text: text.replace('"scores": {', INVENTED, 1),
        "validation/invented is 99, and scores.json gives nan",
    ),
    "a loss without a curve": (
        "pretrain/mlm/seed-1/metrics.csv",
        lambda text: text.replace("validation/loss", "other"),
        "validation/loss is 4.4, and metrics.csv gives nan",
    ),
    "a bomb of anchors": (
        "pretrain/mlm/seed-1/config.yaml",
        lambda _: BOMB,
        "holds more than 100000 values",
    ),
    "a floor": (
        f"{TUNED}/run.json",
        lambda text: text.replace('"majority": null', '"majority": 30.0', 1),
        "'majority': 30.0, 'baselines': {}, 'positive_label': None}, and scores.json gives",
    ),
    "a collapsed run": (
        f"{TUNED}/scores.json",
        lambda text: text.replace('"collapsed": false', '"collapsed": true'),
        "collapsed is False, and scores.json gives True",
    ),
    "another unit": (
        f"{TUNED}/run.json",
        lambda text: text.replace('"factor": 100.0', '"factor": 99.0'),
        "validation/accuracy is in {'unit': 'percent', 'factor': 99.0",
    ),
    "the table": (
        "results.csv",
        lambda text: text.replace(",True,", ",False,", 1),
        "results.csv says",
    ),
}


def test_an_honest_pack_is_what_it_says_and_what_is_flipped_is_named(
    packed: Any, tmp_path: Path, capsys: Any, screen: Screens
) -> None:
    """Also where the forger has written the manifest's checksum and the record's fingerprint
    anew.
    """
    pack = packed("one", 1, 2, change=honest)
    words = ["verify", "retrain=false"]
    status, said = say([*words, str(pack)], capsys)
    assert status == 0
    screen(said)
    for name, (file, change, message) in FORGERIES.items():
        other = Path(shutil.copy(pack, tmp_path / "forged.zip"))
        forged(other, file, change)
        status, said = say([*words, str(other)], capsys)
        assert status == 1 and message in said, name
    file, change, _ = FORGERIES["a configuration"]
    other = Path(shutil.copy(pack, tmp_path / "forged.zip"))
    forged(other, file, change, is_clever=False)
    status, said = say([*words, str(other)], capsys)
    screen(said)


def column_taken_out(text: str, name: str) -> str:
    header, *lines = csv.reader(text.splitlines())
    index = header.index(name)
    rows = [[*line[:index], *line[index + 1 :]] for line in (header, *lines)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text, ""),
        (lambda text: text.replace(",True,", ",False,", 1), "results.csv says 'table5"),
        (lambda text: text.replace(",unit,", ",unt,", 1), "results.csv says 'experiment"),
        (lambda text: column_taken_out(text, "score"), "results.csv says 'experiment"),
        (lambda text: text.rstrip("\n").rpartition("\n")[0] + "\n", "results.csv says ''"),
        (lambda _: "", "results.csv says ''"),
    ],
    ids=["as it was", "a value", "an unknown column", "a missing column", "a line less", "empty"],
)
def test_a_pack_of_before_a_column_was_added_is_what_it_says(
    packed: Any, capsys: Any, change: Callable[[str], str], message: str
) -> None:
    """Its other columns are compared as ever."""
    pack = packed("one", 1, 2, change=honest)
    forged(pack, "results.csv", lambda text: change(column_taken_out(text, "positive_label")))
    status, said = say(["verify", "retrain=false", str(pack)], capsys)
    assert status == int(bool(message)) and message in said, said


def test_what_was_taken_out_of_a_pack_or_put_into_it_is_named(
    packed: Any, tmp_path: Path, capsys: Any
) -> None:
    """No check is turned off by a file that is not there; and no run in a pack is going on."""
    bare = packed(
        "bare",
        1,
        change=lambda root: [honest(root), (root / "pretrain/mlm/seed-1/config.yaml").unlink()],
    )

    def no_checksums(root: Path) -> None:
        honest(root)
        (root / "pretrain/mlm/seed-1/encoder").mkdir()
        (root / "pretrain/mlm/seed-1/encoder/config.json").write_text("{}")

    def no_word_of_it(root: Path) -> None:
        honest(root)
        scores, record = root / TUNED / "scores.json", root / TUNED / "run.json"
        scores.write_text(scores.read_text().replace('"collapsed": false', '"collapsed": true'))
        facts = json.loads(record.read_text())["facts"]
        edit(record, facts={key: one for key, one in facts.items() if key != "collapsed"})

    for pack, message in (
        (packed("mute", 1, change=no_word_of_it), "collapsed is False, and scores.json gives True"),
        (bare, "pretrain/mlm/seed-1 has no config.yaml, as every run has"),
        (
            packed("open", 1, change=no_checksums),
            "seed-1/encoder has no checksums.json, as every encoder has",
        ),
    ):
        status, said = say(["verify", "retrain=false", str(pack)], capsys)
        assert status == 1 and message in said
    stranger = packed("one", 1, change=honest)
    forged(stranger, f"{TUNED}/run.json", lambda text: text.replace('"complete"', '"running"', 1))
    for verb in (["verify", "retrain=false"], ["pool", f"runs_dir={tmp_path / 'pooled'}"]):
        status, said = say([*verb, str(stranger)], capsys)
        assert status == 1 and f"{NAME}/demo/{TUNED} is not what its manifest says" in said


def test_evaluations_are_verified(
    packed: Any, writers: Any, tmp_path: Path, capsys: Any, screen: Screens
) -> None:
    """Their encoder, and minimal pairs by who won; of a task by its own labels."""
    won = {"one": [1.0, 0.0, 0.5, 1.0], "two": [1.0]}
    shares = {
        "validation/accuracy": 0.8125,
        "validation/accuracy/one": 0.625,
        "validation/accuracy/two": 1.0,
    }
    about = {"clozelab": {"run_fingerprint": "", "corpus_fingerprint": ""}}

    def change(root: Path, encoder: str = "", words: Sequence[str] = ()) -> None:
        folder = root / "evaluate/mlm/pretrain-seed-1/pairs/seed-1"
        writers.evaluation(root, "mlm", "pairs", 1, shares, encoder_arm="mlm")
        honest(root)
        rows = []
        for name, wins in won.items():
            rows += [{"id": f"{name}/{i}", "won": one} for i, one in enumerate(wins)]
        (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        saved = json.loads((folder / "scores.json").read_text()) | {"scores": shares}
        (folder / "scores.json").write_text(json.dumps(saved))
        made = root / "pretrain/mlm/seed-1"
        (made / "encoder").mkdir()
        mine = json.loads((made / "run.json").read_text())["fingerprint"]
        (made / "encoder/config.json").write_text(
            json.dumps(about | {"clozelab": {"run_fingerprint": mine}})
        )
        checksum = hashlib.sha256((made / "encoder/config.json").read_bytes()).hexdigest()
        (made / "encoder/checksums.json").write_text(json.dumps({"config.json": checksum}))
        for path in (folder / "run.json", *root.glob("finetune/mlm/*/*/*/run.json")):
            state = json.loads(path.read_text())
            inputs = {"encoder": encoder or encoder_fingerprint(made / "encoder")}
            said = {
                "config": identity_of(state["config"]),
                "inputs": inputs,
                "results_version": state["results_version"],
            }
            scores = {
                key: state["scores"][next(iter(state["scores"]))] | {"value": 100 * one}
                for key, one in shares.items()
            }
            edit(
                path,
                inputs=inputs,
                fingerprint=digest(said),
                **({"scores": scores} if path.parent == folder else {}),
            )
        edit(
            folder / "run.json",
            overrides=[*json.loads((folder / "run.json").read_text())["overrides"], *words],
        )
        render.write_report(
            load_experiment(EXPERIMENTS_DIR / NAME), root, root / "report", scale="demo"
        )

    pack = packed("one", 1, change=change)
    status, said = say(["verify", "retrain=false", str(pack)], capsys)
    assert status == 0
    screen(said)
    place = "evaluate/mlm/pretrain-seed-1/pairs/seed-1"
    forged(
        pack, f"{place}/predictions.jsonl", lambda text: text.replace('"won": 0.0', '"won": 1.0')
    )
    status, said = say(["verify", "retrain=false", str(pack)], capsys)
    assert status == 1
    screen(said)
    # what a cloze keeps: no examples, so nothing to score again
    words = packed("words", 1, change=change)
    forged(words, f"{place}/predictions.jsonl", lambda _: '{"word": "cat", "left": 1.5}\n')
    status, said = say(["verify", "retrain=false", str(words)], capsys)
    assert status == 0
    screen(said)
    other = packed("other", 1, change=lambda root: change(root, encoder="e" * 64))
    status, said = say(["verify", "retrain=false", str(other)], capsys)
    assert status == 1 and f"{place} began with another encoder than mlm's in the pack" in said
    named = packed(
        "named",
        1,
        change=lambda root: change(root, encoder="e" * 64, words=["encoder=made/elsewhere"]),
    )
    status, said = say(["verify", "retrain=false", str(named)], capsys)
    screen(said)


def test_what_verify_cannot_do_with_a_pack_it_says(
    packed: Any, tmp_path: Path, capsys: Any, screen: Screens
) -> None:
    """A command line may name any place and plugin: what a stranger's record says is not run as
    one.
    """
    for word in (
        "hydra.searchpath=[/tmp]",
        "+x=${oc.env:HOME}",
        "corpus.sources.0.path=/etc/passwd",
        "hub=true",
    ):
        pack = packed(
            f"one{abs(hash(word))}",
            1,
            change=lambda root, word=word: [  # type: ignore[misc]
                edit(path, overrides=[word]) for path in root.rglob("run.json")
            ],
        )
        said = say(["verify", str(pack)], capsys)[1]
        assert f"training {NAME}/demo/pretrain/" in said
        _, marker, unchecked = said.partition("not checked: training")
        assert marker and word.partition("=")[0] in unchecked
    status, said = say(["verify", str(pack), "retrain=maybe"], capsys)
    assert status == 1
    screen(said, hide={r"one\d+": "one"})
