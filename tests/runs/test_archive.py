"""`clozelab pack` and `pool`: what travels is whole, gives the same table, or is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runs.archives import MEANS, NAME, contents, on_machines, rewritten, say
from tests.runs.records import edit, read_json
from tests.screens import refuses, shows

from clozelab.files.digests import digest
from clozelab.report import render
from clozelab.report.registration import read_registration
from clozelab.results.experiment import load_experiment
from clozelab.results.pooling import pooling_lock
from clozelab.runs.archive import MANIFEST, RUNS, unpack, write_archive
from clozelab.runs.find import find
from clozelab.runs.identity import RESULTS_VERSIONS, identity_of
from clozelab.runs.packing import Selection, files_to_pack, make_manifest
from clozelab.runs.progress import write_launch
from clozelab.runs.record import JobName
from clozelab.runs.status import experiment_statuses
from clozelab.text.paths import EXPERIMENTS_DIR

pytestmark = pytest.mark.usefixtures("no_pictures")
PAIR: list[Path] = []


@pytest.fixture
def pair(packed: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Packs of seeds 1 and 2, made once."""
    if not PAIR:
        kept = tmp_path_factory.mktemp("pair")
        PAIR.extend(
            Path(shutil.copy(packed(name, seed), kept)) for seed, name in ((1, "one"), (2, "two"))
        )
    return PAIR


@pytest.fixture
def pool(tmp_path: Path, capsys: Any) -> Callable[..., tuple[int, str]]:
    """pool(*packs, to="pooled") -> the exit status, and what is said."""
    return lambda *packs, to="pooled": say(
        ["pool", *map(str, packs), f"runs_dir={tmp_path / to}"], capsys
    )


class Noon(datetime):
    @classmethod
    def now(cls, _tz: Any = None) -> Any:
        return datetime(2030, 1, 1, 12, tzinfo=UTC)


def report_of(root: Path) -> dict[str, bytes]:
    experiment = load_experiment(EXPERIMENTS_DIR / NAME)
    render.write_report(experiment, root, root / "report", scale="demo")
    return contents(root / "report")


def files_of(pack: Path) -> dict[str, str]:
    """The names and checksums of its manifest."""
    with zipfile.ZipFile(pack) as archive:
        return dict(json.loads(archive.read(MANIFEST))["files"])


def test_ten_seeds_cut_in_five_make_the_joint_report(
    packed: Any, pool: Any, make_runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, with each machine named. Packs again, in any order, change nothing."""
    packs = [packed(f"part{first}", first, first + 1) for first in range(1, 11, 2)]
    status, said = pool(*packs[::-1])
    assert status == 0
    shows(said, "90 runs added, 0 were there; machines: machine-0 (45 runs), machine-1")
    shows(said, f"next: clozelab report {NAME} scale=demo runs_dir=")
    joint = make_runs(MEANS, pretrain_seeds=tuple(range(1, 11)), finetune_seeds=(1,), below="joint")
    on_machines(joint)
    before = contents(tmp_path / "pooled")
    shows(pool(*packs)[1], "0 runs added, 90 were there; machines: machine-0 (45 runs), machine-1")
    assert contents(tmp_path / "pooled") == before
    monkeypatch.setattr("clozelab.report.provenance.datetime", Noon)
    reports = [report_of(root) for root in (joint, tmp_path / "pooled" / NAME / "demo")]
    assert reports[0].keys() >= {"report.md", "report.html", "results.csv"}
    assert reports[0] == reports[1]
    assert b"machine-0 (45 runs) and machine-1 (45 runs)" in reports[0]["report.md"]
    assert reports[0]["results.csv"].count(b",machine-0,") == 45


def test_a_pack_has_the_same_bytes_again_and_what_it_needs_alone(
    packed: Any, tmp_path: Path, capsys: Any
) -> None:
    """Of equal vocabularies one; weights on request; runs that go on are left out."""

    def change(root: Path) -> None:
        for seed in (1, 2):
            folder = root / "pretrain" / "mlm" / f"seed-{seed}"
            (folder / "encoder").mkdir()
            for name in ("vocab.txt", "model.safetensors", "config.json"):
                (folder / "encoder" / name).write_text("the same")
            for name in ("log.txt", "nbest_predictions.json"):
                (folder / name).write_text("stays at home")
        edit(root / "pretrain" / "ltr" / "seed-1" / "run.json", status="running")

    one = packed("one", 1, 2, change=change)
    words = ["pack", NAME, "scale=demo", f"runs_dir={tmp_path / 'one'}"]
    status, said = say([*words, f"out={tmp_path / 'again.zip'}"], capsys)
    assert (tmp_path / "again.zip").read_bytes() == one.read_bytes()
    assert status == 0
    shows(said, "machines: machine-0 (9 runs), machine-1 (8 runs); left")
    files = files_of(one)
    with zipfile.ZipFile(one) as archive:
        names = archive.namelist()
    assert len([name for name in files if name.endswith("/vocab.txt")]) == 2
    shared = [name for name in names if name.endswith(("/vocab.txt", "encoder/config.json"))]
    assert len(shared) == 1
    left_out = ("log.txt", "nbest_predictions.json", ".copy", ".safetensors")
    assert not [name for name in files if name.endswith(left_out)]
    status, said = say(["verify", str(one)], capsys)
    assert status == 0
    shows(said, f"checked: {len(files)} checksums")
    words += [f"out={tmp_path / 'heavy.zip'}", "encoders=true", "seeds=1", "name=mlm"]
    assert say(words, capsys)[0] == 0
    heavy = files_of(tmp_path / "heavy.zip")
    parts = [name.rpartition("/")[2] for name in heavy if "encoder/" in name]
    assert parts == ["config.json", "model.safetensors", "vocab.txt"]
    assert [name for name in heavy if name.endswith("/run.json")] == [f"{RUN}/run.json"]


def planted(name: str, content: bytes = b"planted", times: int = 1) -> Callable[[Path], None]:
    def plant(entries: dict[str, bytes], manifest: dict[str, Any]) -> None:
        entries[name] = content
        for number in range(times):
            manifest["files"][f"{name}{number or ''}"] = hashlib.sha256(content).hexdigest()

    return lambda path: rewritten(path, plant)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def other_score(entries: dict[str, bytes], manifest: dict[str, Any]) -> None:
    name = next(name for name in entries if name.endswith("/scores.json"))
    entries[name] = entries[name].replace(b"0.", b"0.9", 1)


def going_on(entries: dict[str, bytes], manifest: dict[str, Any]) -> None:
    """A record of a run that has not ended, with the checksum that fits."""
    name = f"{RUN}/run.json".replace("seed-1", "seed-2")
    entries[name] = entries[name].replace(b'"complete"', b'"running"', 1)
    manifest["files"][name] = hashlib.sha256(entries[name]).hexdigest()


def rewriting(change: Callable[..., Any]) -> Callable[[Path], None]:
    return lambda path: rewritten(path, change)


RUN = f"{RUNS}/{NAME}/demo/pretrain/mlm/seed-1"
VOCABULARY = f"{RUN}/encoder/vocab.txt"
NO_NAME = "is no name that a pack has"
NO_PACK = "is no pack, or it was damaged"
TOO_LARGE = "unpacks to over 16,777,216 bytes"
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (flipped, "damaged"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-400]), NO_PACK),
    "text": (lambda path: path.write_text("not a zip"), NO_PACK),
    "another zip": (
        lambda path: zipfile.ZipFile(path, "w").writestr("a", "b"),
        "is no pack: it has no manifest.json",
    ),
    "changed": (rewriting(other_score), "scores.json does not match the manifest"),
    "going on": (rewriting(going_on), "pretrain/mlm/seed-2 does not match the manifest"),
    "upwards": (planted(f"{RUNS}/../../x/run.json"), NO_NAME),
    "absolute": (planted("/tmp/run.json"), NO_NAME),
    "hidden": (planted(f"{RUNS}/a/.lock"), NO_NAME),
    "backslash": (planted(f"{RUNS}/..\\x/run.json"), NO_NAME),
    "link": (planted(VOCABULARY, b"/etc/passwd"), "is a link"),
    "stranger": (planted(f"{RUN}/sitecustomize.py"), NO_NAME),
    "not listed": (rewriting(lambda entries, _: entries.update({"a": b""})), "do not agree"),
    "missing": (rewriting(lambda entries, _: entries.pop("results.csv")), "do not agree"),
    "bomb": (planted(VOCABULARY, bytes(2**25)), TOO_LARGE),
    "many bombs": (planted(VOCABULARY, bytes(2**20), times=20), TOO_LARGE),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_damaged_or_hostile_pack_is_refused_before_anything_is_written(
    kind: str, pair: list[Path], pool: Any, tmp_path: Path, capsys: Any
) -> None:
    harm, message = BAD[kind]
    packs = [Path(shutil.copy(pack, tmp_path)) for pack in pair]
    harm(packs[1])
    before = set(tmp_path.rglob("*"))
    for status, said in (pool(*packs), say(["verify", str(packs[1])], capsys)):
        assert status == 1 and message in said and packs[1].name in said
    assert set(tmp_path.rglob("*")) == before


def of_version(change: int) -> Callable[[Path], None]:
    def edit_all(root: Path) -> None:
        for path in root.rglob("run.json"):
            stage = read_json(path.parent, path.name)["stage"]
            edit(path, results_version=RESULTS_VERSIONS[stage] + change)

    return edit_all


MISFITS: dict[str, tuple[Any, ...]] = {
    "older": (2, of_version(-1), "no column may mix them: give each its own runs_dir"),
    "newer": (
        2,
        of_version(1),
        f"and this code has {RESULTS_VERSIONS['pretrain']}: take the commit that made it",
    ),
    "contents": (
        1,
        lambda root: edit(root / "pretrain/mlm/seed-1/run.json", seconds=1.0),
        "two runs of one cell",
    ),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_packs_that_do_not_match_are_refused_before_anything_is_written(
    kind: str, packed: Any, pool: Any, tmp_path: Path
) -> None:
    seed, change, message = MISFITS[kind]
    packs = [packed("one", 1), packed("two", seed, change=change)]
    status, said = pool(*packs)
    assert status == 1 and message in said and not (tmp_path / "pooled").exists()
    # The same where the first one has been pooled already.
    assert pool(packs[0])[0] == 0
    before = contents(tmp_path / "pooled")
    status, said = pool(packs[1])
    assert status == 1 and message in said and contents(tmp_path / "pooled") == before


def test_a_pack_of_an_older_results_version_opens_by_itself(
    packed: Any, pool: Any, tmp_path: Path, capsys: Any
) -> None:
    """A version forbids mixing, not reading."""
    old = [packed(f"old{seed}", seed, change=of_version(-1)) for seed in (1, 2)]
    assert pool(*old)[0] == 0
    assert len(find(tmp_path / "pooled").records) == 18
    status, said = pool(packed("new", 3))
    assert status == 1
    shows(said, "table5_pretraining_tasks/demo/pretrain/ltr/seed-3 has results version 6")
    assert say(["verify", str(old[0])], capsys)[0] == 0


def test_other_claims_of_one_experiment_are_refused(packed: Any, pool: Any, tmp_path: Path) -> None:
    def change(entries: dict[str, bytes], manifest: dict[str, Any]) -> None:
        name = f"experiment/{NAME}/paper.yaml"
        said = yaml.safe_load(entries[name])
        said["claims"][0]["text"] += ", or so"
        entries[name] = yaml.safe_dump(said).encode()
        manifest["files"][name] = hashlib.sha256(entries[name]).hexdigest()

    packs = [packed("one", 1), packed("two", 2)]
    rewritten(packs[1], change)
    status, said = pool(*packs)
    assert status == 1 and not (tmp_path / "pooled").exists()
    shows(said, "its table5_pretraining_tasks has other claims than that of")


def test_a_pool_that_was_cut_off_is_never_taken_for_whole(
    packed: Any, pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run either counts and is whole, or is named as damaged. The same command mends it."""
    pack = packed("one", 1)
    replace, left = Path.replace, 0

    def cut(path: Path, target: Any) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("the disk is full")
        return replace(path, target)

    seen = set()
    for files in (0, 1, 10, 12, 14, 16):
        target = tmp_path / f"pooled-{files}"
        with monkeypatch.context() as patch:
            left = files
            patch.setattr(Path, "replace", cut)
            assert pool(pack, to=target.name)[0] == 1
        found = find(target)
        whole = {one.place for one in found.runs if one.is_complete}
        assert len(found.records) == 9 and len(found.damaged) == 9 - len(whole) > 0
        seen.add(len(whole))
        for one in whole:
            theirs = contents(tmp_path / "one" / one)
            theirs["run.json"] = theirs["run.json"].replace(b'"/there"', b'"."')
            assert contents(target / one).items() >= theirs.items()
        assert pool(pack, to=target.name)[0] == 0
        assert len([one for one in find(target).runs if one.is_complete]) == 9
    assert len(seen) > 2


def test_a_pack_without_predictions_makes_the_same_report(
    packed: Any, pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks the answers to single examples, and nothing else."""

    def answer(root: Path) -> None:
        for path in root.glob("finetune/**/run.json"):
            for name in ("predictions.jsonl", "null_odds.json"):
                path.with_name(name).write_text("{}")

    monkeypatch.setattr("clozelab.report.provenance.datetime", Noon)
    names: list[set[str]] = []
    reports: list[dict[str, bytes]] = []
    for name, words in (("whole", ()), ("lean", ("predictions=false",))):
        pack = packed(name, 1, 2, change=answer, words=words)
        names.append(set(files_of(pack)))
        assert pool(pack, to=f"pooled/{name}")[0] == 0
        reports.append(report_of(tmp_path / "pooled" / name / NAME / "demo"))
    left_out = {name.rpartition("/")[2] for name in names[0] - names[1]}
    assert left_out == {"predictions.jsonl", "null_odds.json"}
    assert names[1] < names[0]
    assert reports[0]["claims.csv"] == reports[1]["claims.csv"]
    assert reports[0]["results.csv"] == reports[1]["results.csv"]


def test_a_pack_names_no_folder_of_its_maker(packed: Any, pool: Any, tmp_path: Path) -> None:
    """Paths below where a command was started are written from there; others stay."""

    def change(root: Path) -> None:
        for path in root.rglob("run.json"):
            said = {"started_in": "/home/alice", "config_dir": "/home/alice/mine/exp"}
            words = [
                "data_dir=/home/alice/data",
                "cache_dir=/home/alice2/c",
                f"runs_dir={root.parents[1]}",
            ]
            edit(path, **said, overrides=words)
            path.with_name("config.yaml").write_text("data_dir: /home/alice/data\n")

    pack = packed("one", 1, change=change)
    assert pool(pack, to="there")[0] == 0
    for record in find(tmp_path / "there").records:
        assert (record.started_in, record.config_dir) == (".", "mine/exp")
        assert record.overrides == ["data_dir=data", "cache_dir=/home/alice2/c", "runs_dir=runs"]
        assert record.command.startswith(f"clozelab {record.stage} --config-dir mine/exp ")
        assert (record.folder / "config.yaml").read_text() == "data_dir: data\n"
    with zipfile.ZipFile(pack) as archive:
        assert not [name for name in archive.namelist() if b"/home/alice/" in archive.read(name)]
    status, said = pool(pack, to="one")
    assert status == 0
    shows(said, "0 runs added, 9 were there next: clozelab report")


def test_a_pack_changes_nothing_but_where_a_path_begins(
    packed: Any, pool: Any, tmp_path: Path
) -> None:
    """Fingerprints stay; of folders in one another a run's own counts; no path becomes empty."""
    whole = {"mlm": "/home/alice/texts/a.txt", "ltr": "texts/a.txt", "mlm_nsp": "texts/a.txt"}

    def change(root: Path) -> None:
        for path in root.rglob("run.json"):
            state = read_json(path.parent, path.name)
            config, name = state["config"], state["config"].get("arm", "")
            if name:
                config["corpus"] = {"sources": [{"path": whole[name]}]}
            said = {key: state[key] for key in ("inputs", "results_version")}
            said["config"] = identity_of(config)
            words = [
                "data_dir=/home/alice/proj/data",
                "cache_dir=/home/alice/",
                f"corpus={whole.get(name)}",
            ]
            home = "/home/alice/proj" if name == "ltr" else "/home/alice"
            edit(path, config=config, fingerprint=digest(said), started_in=home, overrides=words)
            path.with_name("config.yaml").write_text(
                f"corpus: {{sources: [{{path: {whole.get(name)}}}]}}\n"
            )
            if name == "mlm":
                edit(path, status="failed", error="FileNotFoundError: /home/alice/data/x")

    pack = packed("one", 1, change=change)
    assert pool(pack, to="there")[0] == 0
    for record in find(tmp_path / "there").records:
        said = {"config": identity_of(record.config), "inputs": record.inputs}
        assert digest(said | {"results_version": record.results_version}) == record.fingerprint
        data, cache = (
            ("data", "/home/alice/")
            if record.name == "ltr" and not record.task
            else ("proj/data", "./")
        )
        corpus = whole.get(record.name) if not record.task else None
        assert record.overrides == [f"data_dir={data}", f"cache_dir={cache}", f"corpus={corpus}"]
        assert str(corpus) in (record.folder / "config.yaml").read_text()
    status, said = pool(pack, to="one")
    assert status == 0
    shows(said, "0 runs added, 9 were there next: clozelab report")
    for path in (tmp_path / "one").rglob("run.json"):
        path.with_name("config.yaml").write_text("of: another\n")
        path.unlink()
    status, said = pool(pack, to="one")
    assert status == 1
    shows(said, "table5_pretraining_tasks/demo/finetune/ltr/pretrain-seed-1/mnli/seed-1/c")


def test_a_launch_names_the_text_as_its_runs_do(packed: Any, pool: Any, tmp_path: Path) -> None:
    """So a report finds by whose command they were made."""
    text = "/home/alice/texts/a.txt"
    words = ["pretrain", "-m", f"corpus={text}", "data_dir=/home/alice/data"]

    def change(root: Path) -> None:
        for path in root.rglob("run.json"):
            edit(path, started_in="/home/alice")
            if "pretrain/" in str(path.relative_to(root)):
                config = read_json(path.parent, path.name)["config"]
                edit(path, config={**config, "corpus": {"sources": [{"path": text}]}})
        (root / "launcher").mkdir()
        launch = {"words": words, "started_in": "/home/alice", "root": str(root), "jobs": []}
        (root / "launcher" / "launch.json").write_text(json.dumps({"pretrain": launch}))

    assert pool(packed("one", 1, change=change))[0] == 0
    launches = read_json(tmp_path / "pooled" / NAME / "demo", "launcher/launch.json")
    assert launches["pretrain"]["words"] == [*words[:3], "data_dir=data"]


def test_a_launch_behind_a_link_keeps_its_jobs(packed: Any, pool: Any, tmp_path: Path) -> None:
    """A pack named the folder on the other disk, and the jobs were of no experiment there."""
    disk = tmp_path / "disk"

    def change(root: Path) -> None:
        root.parent.rename(disk)
        root.parent.symlink_to(disk)
        write_launch(root, ["reproduce", NAME], {"pretrain": [JobName("mlm", "", "1")] * 5})

    pack = packed("one", 1, change=change)
    assert pool(pack)[0] == 0
    (status,) = experiment_statuses(find(tmp_path / "pooled").records)
    assert status.sweeps[0].planned == 5
    with zipfile.ZipFile(pack) as archive:
        assert not any(str(disk).encode() in archive.read(name) for name in archive.namelist())


def test_looks_and_launches_of_all_packs_come_along(packed: Any, pool: Any, tmp_path: Path) -> None:
    def noted(day: int) -> Callable[[Path], None]:
        def note(root: Path) -> None:
            look = {"time": f"2030-01-0{day}T00:00:00+00:00", "seeds": {"a": str(day)}}
            look |= {"verdicts": {}, "rule": ""}
            (root / "looks.jsonl").write_text(json.dumps(look) + "\n")
            (root / "launcher").mkdir()
            launch = {"words": ["reproduce"], "started_in": "/there", "root": str(root)}
            launch["jobs"] = [["mlm", "", str(day)]] * 2  # of two learning rates
            (root / "launcher" / "launch.json").write_text(json.dumps({"pretrain": launch}))

        return note

    packs = [packed(f"day{day}", day, change=noted(day)) for day in (2, 1)]
    for _ in range(2):
        assert pool(*packs)[0] == 0
        root = tmp_path / "pooled" / NAME / "demo"
        days = [json.loads(line)["time"][:10] for line in (root / "looks.jsonl").open()]
        assert days == ["2030-01-01", "2030-01-02"]
        launches = read_json(root, "launcher/launch.json")
        assert sorted(job[2] for job in launches["pretrain"]["jobs"]) == ["1", "1", "2", "2"]


def test_what_another_pool_has_put_there_meanwhile_stays(
    packed: Any, pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits compares with it, and adds to its notes."""

    def noted(day: int) -> Callable[[Path], None]:
        look = {"time": f"2030-01-0{day}T00:00:00+00:00", "seeds": {}, "verdicts": {}}
        return lambda root: (root / "looks.jsonl").write_text(json.dumps(look) + "\n")

    packs = [packed(f"meanwhile{day}", day, change=noted(day)) for day in (1, 2)]

    @contextmanager
    def wait(_: Path) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr("clozelab.stages.pool.pooling_lock", pooling_lock)
            assert pool(packs[0])[0] == 0
        yield

    monkeypatch.setattr("clozelab.stages.pool.pooling_lock", wait)
    for pack, number in ((packs[1], 9), (packs[0], 0)):
        status, said = pool(pack)
        shows(said, f"{number} runs added, {18 - number} were there")
    looks = (tmp_path / "pooled" / NAME / "demo" / "looks.jsonl").read_text()
    assert status == 0 and len(looks.splitlines()) == 2


def test_each_machine_may_have_registered(packed: Any, pool: Any, tmp_path: Path) -> None:
    """Equal declarations differ by their dates; none of them is lost."""

    def registered(day: int) -> Callable[[Path], None]:
        def write(root: Path) -> None:
            date = f"2030-01-0{day}T00:00:00+00:00"
            entry = {"date": date, "hash": digest([date, {}]), "content": {}}
            (root / "registration.json").write_text(json.dumps({"registrations": [entry]}))

        return write

    packs = [packed(f"registered{day}", day, change=registered(day)) for day in (2, 1)]
    for _ in range(2):
        assert pool(*packs)[0] == 0
        entries = read_registration(tmp_path / "pooled" / NAME / "demo")
        assert [entry.date[:10] for entry in entries] == ["2030-01-01", "2030-01-02"]


def test_what_a_shared_run_speaks_for_comes_along(packed: Any, pool: Any, tmp_path: Path) -> None:
    def share(root: Path) -> None:
        other = root.parents[1] / "other" / "demo" / "pretrain" / "mlm" / "seed-1"
        shutil.copytree(root / "pretrain/mlm/seed-1", other)
        config = read_json(other, "run.json")["config"] | {"experiment": "other"}
        edit(other / "run.json", config=config)
        place = "../../../../../other/demo/pretrain/mlm/seed-1"
        shared = {"run": place, "fingerprint": "f", "weights": "w"}
        edit(root / "pretrain/mlm/seed-1/run.json", shared=shared)

    assert pool(packed("one", 1, change=share))[0] == 0
    assert (tmp_path / "pooled/other/demo/pretrain/mlm/seed-1/run.json").is_file()


def test_runs_without_an_experiment_keep_their_places_below_runs_dir(
    make_runs: Any, pool: Any, tmp_path: Path, capsys: Any
) -> None:
    root = make_runs(MEANS, pretrain_seeds=(1,), finetune_seeds=(1,), below="one")
    for path in root.rglob("run.json"):
        edit(path, home=path.parent.relative_to(tmp_path / "one").as_posix())
    assert say(["pack", str(root), f"out={tmp_path / 'one.zip'}"], capsys)[0] == 0
    assert pool(tmp_path / "one.zip")[0] == 0
    pooled = {run.place for run in find(tmp_path / "pooled").runs}
    assert pooled == {run.place for run in find(tmp_path / "one").runs}


def test_what_cannot_be_packed_is_one_sentence(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "runs").mkdir()
    for words, message in (
        (["pack", str(tmp_path)], "pack needs out=FILE"),
        (["pack", str(tmp_path / "runs"), "out=x.zip"], "no run to pack below"),
        (["pack", NAME, "scale=demo", f"runs_dir={tmp_path}", "out=x.zip"], "no run to pack below"),
        (["pack", str(tmp_path), "out=x.zip", "seed=1"], "seed=1: pack has no such key"),
        (["pool", str(tmp_path / "none.zip")], "there is no file"),
    ):
        status, said = say(words, capsys)
        assert status == 1 and message in said


@pytest.mark.parametrize(
    "command", ["pack {} out=x.zip", "report {}", "record {} mlm MRPC budget=1x1min"]
)
def test_where_a_scale_has_no_runs_the_others_are_named(
    make_runs: Any, tmp_path: Path, capsys: Any, command: str
) -> None:
    make_runs(MEANS, pretrain_seeds=(1,), finetune_seeds=(1,), below="one")
    words = [*command.format(NAME).split(), "scale=laptop", f"runs_dir={tmp_path / 'one'}"]
    status, said = say(words, capsys)
    assert status == 1 and f"{NAME}/laptop (there are runs of scale=demo); " in said


def test_a_pack_of_a_filter_that_nothing_fits_says_so(
    make_runs: Any, tmp_path: Path, capsys: Any
) -> None:
    root = make_runs(MEANS, pretrain_seeds=(1,), finetune_seeds=(1,))
    status, said = say(["pack", str(root), "out=x.zip", "stage=evaluate"], capsys)
    assert status == 1 and "has stage=evaluate (there are finetune, pretrain)" in said


def test_another_run_of_a_cell_is_refused_wherever_it_lies(
    packed: Any, pool: Any, tmp_path: Path
) -> None:
    """A copy of the same run is none; the report names either by what it is."""

    def moved(root: Path) -> None:
        shutil.move(root / "pretrain/mlm/seed-1", root / "pretrain/mlm/again/seed-1")

    def another(root: Path) -> None:
        moved(root)
        edit(root / "pretrain/mlm/again/seed-1/run.json", fingerprint="e" * 64)

    first, copy = packed("one", 1), packed("copy", 1, change=moved)
    other = packed("other", 1, change=another)
    status, said = pool(first, other)
    assert status == 1
    shows(said, "table5_pretraining_tasks/demo/pretrain/mlm/again/seed-1 is another run")
    assert not (tmp_path / "pooled").exists()
    assert pool(first, copy)[0] == 0
    (said,) = find(tmp_path / "pooled").damaged
    shows(said, "a copy by its place; not counted")
    edit(tmp_path / f"pooled/{NAME}/demo/pretrain/mlm/again/seed-1/run.json", fingerprint="e" * 64)
    (said,) = find(tmp_path / "pooled").damaged
    shows(said, "another run of the cell of")
    assert pool(first)[0] == 1


def test_hidden_files_of_tools_are_not_packed(tmp_path: Path) -> None:
    """No pack with such a name can be opened, so none is written either."""
    experiment = tmp_path / "mine"
    root = tmp_path / "runs/mine/demo"
    plain = ["mine/paper.yaml", "mine/README.md", "mine/arm/mlm.yaml"]
    hidden = ["mine/.pre-commit-config.yaml", "mine/.notes.md", "mine/arm/.copies/mlm.yaml"]
    notes = ["runs/mine/demo/registration.json", "runs/mine/demo/.copies/registration-1.json"]
    for name in [*plain, *hidden, *notes]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    selection = Selection(root, tmp_path / "runs", experiment, "demo", [], Counter())
    files = files_to_pack(selection, ())
    assert files.keys() == {notes[0], *(f"experiment/{name}" for name in plain)}

    manifest = make_manifest(selection)
    write_archive(tmp_path / "one.zip", manifest, files)
    unpacked, changed = unpack(tmp_path / "one.zip", tmp_path / "unpacked")
    assert unpacked.files.keys() == files.keys() and not changed
    for name in hidden:
        with refuses(f"'experiment/{name}' is no name that a pack has"):
            write_archive(tmp_path / "two.zip", manifest, {f"experiment/{name}": tmp_path / name})
    assert not (tmp_path / "two.zip").exists()
