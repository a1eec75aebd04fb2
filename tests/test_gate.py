"""A shared experiment is data: hostile addresses, paths, names, resolvers, pickles and archives run
and write nothing.

Each hostile thing would leave a canary. `test_the_canary_sings` shows that it does where nothing is
looked at.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.utils import instantiate
from tests.screens import refuses, shows

import clozelab
from claims.text.safe_yaml import own_text
from clozelab import addresses
from clozelab.cli import main
from clozelab.launch import experiments, mistakes, plugins, sweep
from clozelab.models.encoder import Encoder
from clozelab.models.folders import read_tensors
from clozelab.readers.lines import text_lines
from clozelab.tasks.cache import cached_arrays
from clozelab.text.paths import CONF_DIR
from clozelab.training.checkpoints import load_file, save_file

PAPER: dict[str, Any] = {
    "arms": {"a": {"objective": "mlm"}},
    "columns": ["mnli"],
    "rows": [{"row": "a", "arm": "a"}],
}
RUN, TAG = "torch.utils.collect_env.run", "!!python/object/apply:os.system [touch CANARY]"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An experiment's folder; commands are given beside it, in a folder of which nothing may come
    into being.
    """
    (tmp_path / "shared").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(str(tmp_path / "work"))
    monkeypatch.setenv("CLOZELAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CANARY_SECRET", "s3cret-s3cret")
    yield tmp_path / "shared"
    GlobalHydra.instance().clear()


def write(place: Path, said: Mapping[str, Any]) -> None:
    """Files of an experiment: name -> its content, as text or as plain values; paper.yaml is laid
    over PAPER.
    """
    for name, content in {"paper.yaml": {}, **said}.items():
        content = PAPER | content if name == "paper.yaml" and isinstance(content, dict) else content
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
        (place / name).write_text(
            text.replace("CANARY", str(place.parent / "canary")).replace("SHARED", str(place))
        )


def files_below(folder: Path) -> list[str]:
    paths = [path for path in folder.rglob("*") if "__pycache__" not in str(path)]
    return sorted(path.relative_to(folder).as_posix() for path in paths)


ROW_JOB = ("row=a", "task=mrpc", "hydra.mode=RUN")


def of_sweep(stage: str, place: Path, *words: str) -> list[str]:
    """The command of an experiment's own sweep, or of one of its jobs."""
    return [stage, "--config-dir", str(place), "--config-name", f"sweep_{stage}", *words]


VERBS: dict[str, Callable[[Path], list[str]]] = {
    "plan": lambda place: ["plan", str(place), "scale=demo", "--no-measure"],
    "doctor": lambda place: ["doctor", str(place), "scale=demo"],
    "reproduce": lambda place: ["reproduce", str(place), "scale=demo"],
    "sweep": lambda place: of_sweep("pretrain", place, "-m"),
    "job": lambda place: of_sweep("pretrain", place, "arm=a", "seed=1", "hydra.mode=RUN"),
    "finetuning job": lambda place: of_sweep("finetune", place, *ROW_JOB),
}


def refused(
    place: Path, capsys: pytest.CaptureFixture[str], *verbs: str, words: tuple[str, ...] = ()
) -> str:
    """What the verbs say, each of which fails in a sentence and leaves nothing behind."""
    before, said = files_below(place.parent), ""
    for verb in verbs:
        GlobalHydra.instance().clear()
        status = main([*VERBS[verb](place), *words])
        said = capsys.readouterr().err
        assert status == 1 and "Traceback" not in said, (verb, said)
        assert files_below(place.parent) == before, verb
    return " ".join(said.split())


def not_composed(place: Path, name: str, word: str, *, message: str) -> None:
    before = files_below(place.parent)
    with pytest.raises((ValueError, *mistakes.CONFIGURATION_ERRORS)) as caught:
        sweep.compose(name, [word], folder=place, sweep=True)
    assert message in str(caught.value) and files_below(place.parent) == before


def dotted(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose keys have `__` for a dot."""
    return {key.replace("__", "."): value for key, value in delta.items()}


def arm(**delta: Any) -> dict[str, Any]:
    """paper.yaml with an arm of these settings."""
    return {"paper.yaml": {"arms": {"a": {"objective": "mlm", **dotted(delta)}}}}


def row(**delta: Any) -> dict[str, Any]:
    return {"paper.yaml": {"rows": [{"row": "a", "arm": "a", "set": dotted(delta)}]}}


def named(group: str, name: str) -> dict[str, Any]:
    """The file of an arm or a row that calls its runs so; paper.yaml itself may not."""
    return {f"{group}/a.yaml": "# @package _global_\n" + yaml.safe_dump({group: name})}


TOUCH = {"command": "touch canary"}
FOLDERS = "clozelab.models.folders"
SAVE = f"{FOLDERS}.save_encoder_folder"
TARGETS: dict[str, dict[str, Any]] = {
    RUN: TOUCH,
    "os.system": TOUCH,
    "os.mkdir": {"path": "canary"},
    "subprocess.check_output": {"args": ["touch", "canary"]},
    "subprocess.Popen": {"args": "touch canary", "shell": True},
    "builtins.exec": {"_args_": ["open('canary', 'w')"]},
    "builtins.open": {"file": "canary", "mode": "w"},
    "torch.load": {"f": "evil.pkl", "weights_only": False},
    "torch.hub.load": {"repo_or_dir": ".", "model": "evil", "source": "local"},
    "pandas.read_pickle": {"filepath_or_buffer": "evil.pkl"},
    "numpy.load": {"file": "evil.pkl", "allow_pickle": True},
    "cloudpickle.load": {"file": "evil.pkl"},
    "shutil.copy": {"src": "paper.yaml", "dst": "canary"},
    "shutil.unpack_archive": {"filename": "evil.tar", "extract_dir": "."},
    "runpy.run_path": {"path_name": "evil.py"},
    "importlib.import_module": {"name": "evil"},
    "logging.FileHandler": {"filename": "canary"},
    "yaml.unsafe_load": {"stream": TAG.replace("CANARY", "canary")},
    "pathlib.Path.touch": {"_args_": [{"_target_": "pathlib.Path", "_args_": ["canary"]}]},
    "functools.partial": {"_args_": [{"_target_": RUN, "_partial_": True}], **TOUCH},
    "hydra.utils.instantiate": {"config": {"_target_": RUN, **TOUCH}},
    "hydra.utils.call": {"config": {"_target_": RUN, **TOUCH}},
    # Of our own, which an allow-list of packages would let through.
    SAVE: {"folder": "canary", "encoder": None, "heads": {}},
    "clozelab.runs.record.write_json": {"path": "canary", "value": 1},
    "clozelab.modules.finetuning.write_test_predictions": {"folder": "canary", "files": {"x": "y"}},
    "clozelab.training.tracking.MetricsCsv": {"folder": "canary"},
    "clozelab.optim.adamw.torch.load": {"f": "evil.pkl", "weights_only": False},
    "clozelab.cli.main": {"arguments": ["prepare"]},
    "microworld.world.write_world": {"output_dir": "canary"},
    "clozelab.objectives.nsp._evil": {},
}


@pytest.mark.parametrize("target", TARGETS)
def test_no_other_address_is_called(
    place: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """Neither where it is composed nor where it is made; two of them by a whole verb, which takes a
    second.
    """
    node = {"_target_": target, **TARGETS[target]}
    Path("evil.pkl").write_bytes(pickle.dumps(Evil(place.parent / "canary")))
    write_package(Path("evil"))
    before = files_below(place.parent)
    message = f"objective.pair._target_: '{target}' is not allowed"
    for call in (
        lambda: addresses.build("objective", {"pair": node}),
        lambda: addresses.check_targets({"objective": {"pair": node}}),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()
    assert files_below(place.parent) == before
    if target in (RUN, SAVE):
        write(place, arm(objective__pair=node))
        assert message in refused(place, capsys, "plan")


EVIL = {"_target_": RUN, "command": "touch CANARY"}
TEXT = "{_target_: torch.utils.collect_env.run, command: touch CANARY}"
SWEEP = {
    "defaults": ["pretrain", {"arm": "a"}, "_self_"],
    "hydra": {"mode": "MULTIRUN", "sweeper": {"params": {"arm": "a"}}},
}
CLASS = {"handlers": {"x": {"class": "logging.FileHandler", "filename": "CANARY"}}}
HANDLER = {"version": 1, "root": {"handlers": ["x"]}, **CLASS}
FACTORY = HANDLER | {"handlers": {"x": {"()": RUN, "command": "touch CANARY"}}}


def master(**hydra: Any) -> dict[str, Any]:
    return {"sweep_pretrain.yaml": SWEEP | {"hydra": SWEEP["hydra"] | hydra}}


def swept(params: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep of these keys, too."""
    return master(sweeper={"params": {"arm": "a", **params}})


def laid_over(default: Any, **files: Any) -> dict[str, Any]:
    """One entry more in the defaults of the sweep, and files that it may mean."""
    said = SWEEP | {"defaults": ["pretrain", {"arm": "a"}, "_self_", default]}
    named = {name.replace("__", "/") + ".yaml": text for name, text in files.items()}
    return {"sweep_pretrain.yaml": said, **named}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(12)
)
NOT_ALLOWED, OUT, ITS = "is not allowed", "leads out of its folder", "is not its to set"
HYDRAS = "Hydra's own"
PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "a part of the model": (arm(architecture__pooler=EVIL), NOT_ALLOWED),
    "an optimizer": (arm(optimizer___target_=RUN), NOT_ALLOWED),
    "inside an optimizer": (arm(optimizer__weight_decay=EVIL), NOT_ALLOWED),
    "a schedule": (arm(schedule=EVIL), NOT_ALLOWED),
    "a tracker": (arm(logger=EVIL), NOT_ALLOWED),
    "one of several trackers": (arm(logger={"wandb": EVIL}), NOT_ALLOWED),
    "a corpus's generator": (arm(corpus__generator={**EVIL, "_partial_": False}), NOT_ALLOWED),
    "a phase": (arm(scale__pretrain__phases=[{"objective": {"pair": EVIL}}]), NOT_ALLOWED),
    "where nothing is made": (arm(validation={"x": EVIL}), ""),
    "a right address in another's place": (
        arm(optimizer={"_target_": "microworld.world.write_world"}),
        NOT_ALLOWED,
    ),
    "callbacks": (master(callbacks={"x": EVIL}), ITS),
    "a logging factory": (master(job_logging=FACTORY), ITS),
    "Hydra's own logging": (master(hydra_logging=FACTORY), ITS),
    "a logging class": (master(job_logging=HANDLER), ITS),
    "a launcher": (master(launcher=EVIL), ITS),
    "a launcher's shell lines": (master(launcher={"setup": ["touch CANARY"]}), ITS),
    "a sweeper": (master(sweeper={"_target_": RUN}), NOT_ALLOWED),
    "the environment of jobs": (master(job={"env_set": {"PYTHONPATH": "SHARED"}}), ITS),
    "more folders": (master(searchpath=["pkg://evil"]), ITS),
    "where Hydra writes": (master(sweep={"dir": "CANARY"}, run={"dir": "CANARY"}), ITS),
    "Hydra's own files": (master(output_subdir=".hydra"), ITS),
    "a swept key of Hydra's": (swept({"hydra.callbacks.x": TEXT}), ITS),
    "a swept place": (swept({"++run_dir": "CANARY"}), ITS),
    "a permission": (arm(allow_targets=["torch"]), ITS),
    "a swept permission": (swept({"allow_targets": "[torch]"}), ITS),
    "a swept word put together": (swept({"run_dir=CANARY": ""}), ITS),
    "a swept package": (swept({"+rates@hydra.job_logging": "x"}) | {"rates/x.yaml": CLASS}, ITS),
    "swept keys from elsewhere": (master(sweeper={"params": "${optimizer}"}), ITS),
    "a swept path from elsewhere": (
        arm(optimizer__x="x,/etc") | swept({"encoder": "${optimizer.x}"}),
        OUT,
    ),
    "all of Hydra's from elsewhere": (
        {"sweep_pretrain.yaml": SWEEP | {"hydra": "${optimizer}"}},
        ITS,
    ),
    "a swept path": (swept({"encoder": "x,/etc"}), OUT),
    "a swept address": (swept({"+objective.pair": TEXT}), "_target_"),
    "a file of Hydra's group": (
        laid_over({"override /hydra/launcher": "x"}, hydra__launcher__x=EVIL),
        HYDRAS,
    ),
    "a cluster": (laid_over({"override /hydra/launcher": "slurm"}), HYDRAS),
    "other logging": (laid_over({"override /hydra/job_logging": "none"}), HYDRAS),
    "a class of logging": (laid_over({"rates@hydra.hydra_logging": "x"}, rates__x=CLASS), HYDRAS),
    "a package": (
        laid_over({"rates": "x"}, rates__x="# @package hydra\ncallbacks: {x: {}}\n"),
        HYDRAS,
    ),
    "a package in defaults": (
        laid_over({"rates@hydra.callbacks": "x"}, rates__x={"x": EVIL}),
        HYDRAS,
    ),
    "a path to a package": (laid_over("rates/x@hydra.callbacks", rates__x={"x": EVIL}), HYDRAS),
    "a package by its name": (
        laid_over({"rates": "hydra"}, rates__hydra="# @package _name_\nx: 1\n"),
        HYDRAS,
    ),
    "oc.create": (arm(objective__pair="${oc.create:" + TEXT + "}"), "oc.create"),
    "oc.decode": (arm(objective__pair="${oc.decode:'" + TEXT + "'}"), "oc.decode"),
    "a resolver's argument": (arm(objective__pair="${fallback:" + TEXT + "}"), "_target_"),
    "a resolver whose name is made": (arm(objective__pair="${oc.${scale.name}:x}"), "calls 'oc.'"),
    "half an interpolation": (arm(objective__pair="$"), "a lone $"),
    "an escaped interpolation": (arm(objective__pair="\\\\${arm}"), "a lone $"),
    "the environment": (named("arm", "${oc.env:CANARY_SECRET}"), "oc.env"),
    "a place": (arm(runs_dir="elsewhere"), ITS),
    "a run's folder": (
        {"sweep_pretrain.yaml": SWEEP | {"run_dir": "elsewhere"}},
        "is not below runs_dir",
    ),
    "a name": (named("arm", "a/../../../x"), OUT),
    "a name that is put together": (
        named("arm", "${hydra:run.dir}${hydra:run.dir}/x"),
        "it names a folder of ours",
    ),
    "an arm's key": ({"paper.yaml": {"arms": {"../../x": {"objective": "mlm"}, "a": {}}}}, ""),
    "a scale's name": (arm(scale__name="../../x"), OUT),
    "a corpus's name": (arm(corpus__name="/x"), OUT),
    "a file": (arm(corpus__sources=[{"name": "x", "path": "/etc/passwd"}]), OUT),
    "a file above": (arm(tokenizer__vocab_file="a/../../x"), OUT),
    "a file at home": (arm(encoder="~/x"), OUT),
    "a file as an argument": (arm(encoder="${fallback: /etc,x}"), OUT),
    "a file out of pieces": (
        arm(encoder="${optimizer.a}${optimizer.b}", optimizer__a=".", optimizer__b="./x"),
        OUT,
    ),
    "a file behind a piece": (arm(encoder="${optimizer.a}../x", optimizer__a="a/"), OUT),
    "a line end in a name": (named("arm", "a\ntouch CANARY"), "it names a folder of ours"),
    "anchors without measure": ({"paper.yaml": BOMB + "arms: {a: {}}\n"}, "anchors"),
    "anchors in a file": ({"arm/a.yaml": "# @package _global_\n" + BOMB}, "anchors"),
    "an anchor without end": ({"arm/a.yaml": "# @package _global_\nphases: &a [*a]\n"}, "anchors"),
    "a deep hole": ({"paper.yaml": "arms: " + "[" * 100_000 + "]" * 100_000}, ""),
    "a choice": (
        laid_over({"override /model": "../../x"}) | {"../x.yaml": {"seed": 1}},
        "is no choice",
    ),
    "another's YAML": (laid_over("../x") | {"../x.yaml": {"seed": 1}}, "is no choice"),
    "a tag in paper.yaml": ({"paper.yaml": f"arms: {{a: {TAG}}}\n"}, ""),
    "a tag in a file": ({"arm/a.yaml": f"# @package _global_\nseed: {TAG}\n"}, ""),
}


EVERYWHERE = {"an optimizer", "callbacks", "oc.create"}
"""By every verb; the others where all verbs compose, since a verb takes a second."""


@pytest.mark.parametrize("where", PLACES)
def test_nothing_in_a_file_is_more_than_data(
    place: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    said, message = PLACES[where]
    write(place, said)
    write_package(place.parent / "work" / "evil")
    if where in EVERYWHERE:
        assert message in refused(place, capsys, "plan", "doctor", "reproduce", "sweep", "job")
    not_composed(place, "sweep_pretrain", "arm=a", message=message)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["plan", "doctor", "reproduce", "sweep", "job"])
@pytest.mark.parametrize("where", sorted(PLACES.keys() - EVERYWHERE))
def test_no_verb_takes_more_than_data(
    place: Path, capsys: pytest.CaptureFixture[str], where: str, verb: str
) -> None:
    write(place, PLACES[where][0])
    refused(place, capsys, verb)


ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "a task's reader": (row(task__data___target_=RUN), NOT_ALLOWED),
    "a task's module": (row(task__module={"_target_": SAVE}), NOT_ALLOWED),
    "a training file": (row(task__data__train_file="/etc/passwd"), OUT),
    "a test file": (row(**{"task.data.test_files": {"x": "../../x"}}), OUT),
    "a prediction's name": (row(**{"task.data.test_files": {"../../x": "a.tsv"}}), ITS),
    "a task's name": (row(task__name="../x"), OUT),
    "a row's name": (named("row", "/x"), OUT),
    "an encoder": (row(encoder="../x"), OUT),
    "a download": (row(hub=True), ITS),
}


@pytest.mark.parametrize("where", ROWS)
def test_nothing_in_a_row_is_more_than_data(
    place: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    said, message = ROWS[where]
    write(place, said)
    if where == "a task's reader":
        assert message in refused(place, capsys, "plan", "finetuning job")
    not_composed(place, "sweep_finetune", "row=a", message=message)


def test_a_swept_address_is_none_of_the_plain_values(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs that differ in plain values are composed once; an address is no plain value."""
    write(place, swept({"optimizer._target_": RUN}))
    assert NOT_ALLOWED in refused(place, capsys, "plan")


def write_package(folder: Path) -> None:
    """A module beside the command, that writes the canary when it is imported."""
    folder.mkdir()
    (folder / "__init__.py").write_text(
        f"open({str(folder.resolve().parents[1] / 'canary')!r}, 'w')\n"
    )


class Evil:
    """Writes the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("plan", arm(objective__pair=EVIL)),
        ("plan", arm(objective__pair="${oc.create:" + TEXT + "}")),
        ("doctor", arm(objective__pair=EVIL)),
        ("sweep", master(callbacks={"x": EVIL})),
        ("sweep", master(hydra_logging=FACTORY)),
        ("sweep", PLACES["a class of logging"][0]),
    ],
)
def test_the_canary_sings(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    said: dict[str, Any],
) -> None:
    """The control: without the gate, each of these is run by the verb."""
    write(place, said)
    monkeypatch.setattr(experiments, "check_file", lambda *_: None)
    monkeypatch.setattr(experiments, "check_values", lambda *_: None)
    monkeypatch.setattr(sweep, "validate_config_security", lambda *_: None)
    monkeypatch.setattr(addresses, "check_targets", lambda *_, **__: None)
    monkeypatch.setattr("clozelab.checks.gathering.check_targets", lambda *_, **__: None)
    monkeypatch.setenv("CLOZELAB_SKIP_DOCTOR", "1")
    main([*VERBS[verb](place), *(["hydra.mode=RUN", "seed=-1"] if verb == "sweep" else [])])
    assert (place.parent / "canary").exists(), capsys.readouterr().err


def test_what_is_made_is_looked_at_once_more(tmp_path: Path) -> None:
    """By then every interpolation means something, wherever the configuration came from."""
    node = sweep.compose("pretrain").get("optimizer")
    node["_target_"] = "${oc.decode:os.system}"
    with refuses("optimizer._target_: '${oc.decode:os.system}' is not allowed"):
        addresses.build("optimizer", node)
    node["_target_"] = "clozelab.optim.adamw.build_adamw"
    node["learning_rate"] = "${oc.decode:1}"
    with refuses("optimizer: {'_target_': 'clozelab.optim.adamw.build_adamw'"):
        addresses.build("optimizer", node)


def test_nothing_is_resolved_twice(tmp_path: Path) -> None:
    """Hydra resolves what it is given: a text that still holds an interpolation would become a node
    unseen.
    """
    text = "${oc.create:" + TEXT.replace("CANARY", str(tmp_path / "canary")) + "}"
    node = {"_target_": "clozelab.objectives.nsp.NextSentencePrediction", "weight": text}
    with refuses("objective: {'pair': {'_target_'"):
        addresses.build("objective", {"pair": node})
    assert not (tmp_path / "canary").exists()
    with suppress(HydraException):  # the control
        instantiate(node)
    assert (tmp_path / "canary").exists()


def test_links_do_not_lead_out_of_an_experiment(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = "# @package _global_\nseed: 1\n"
    write(place, {"../README.md": "**Question.** Whose is this?", "../a.yaml": settings})
    (place / "sweep_pretrain.yaml").symlink_to(place.parent / "a.yaml")
    not_composed(place, "sweep_pretrain", "arm=a", message="is a link")
    shows(refused(place, capsys, "plan"), "is a link that leads out of")
    (place / "README.md").symlink_to(place.parent / "README.md")
    with refuses("is a link that leads out of"):
        own_text(place / "README.md", place)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("experiment=../../x", "it names a folder of ours"),
        ("encoder_arm=/x", "it names a folder of ours"),
        ("scale.name=a/../../b", "it names a folder of ours"),
        ("+hydra.callbacks.x._target_=os.system", NOT_ALLOWED),
        ("hydra.launcher._target_=os.system", NOT_ALLOWED),
        ("hydra/launcher=basic", "leave hydra/launcher= out, or choose processes, ray, slurm"),
        ("hydra/sweeper=basic", "leave hydra/sweeper= out, or choose grid"),
        ("hydra.output_subdir=.hydra", "holds no secret"),
        ("model=../../x", "is no choice"),
    ],
)
def test_words_that_nobody_may_say(
    place: Path, capsys: pytest.CaptureFixture[str], word: str, message: str
) -> None:
    write(place, {"../x.yaml": {"hidden_size": 1}})
    if word.startswith("experiment"):
        assert message in refused(place, capsys, "reproduce", words=(word,))
    name = "sweep_finetune" if word.startswith("encoder_arm") else "sweep_pretrain"
    not_composed(place, name, word, message=message)


def test_a_pickled_job_is_not_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "job.pkl").write_bytes(pickle.dumps(Evil(place.parent / "canary")))
    write(place, {})
    shows(
        refused(place, capsys, "job", words=(f"--experimental-rerun={place / 'job.pkl'}",)),
        "error: a pickled job is not run again, because reading it may run any",
    )


def test_the_users_own_words_may_name_anything(place: Path) -> None:
    write(place, {})
    words = ["run_dir=/r", "encoder=/e", "corpus=text", "corpus.sources.0.path=/x/../t"]
    words += ["runs_dir=../runs", "data_dir='~/d'", "hydra/launcher=slurm"]
    words += ["hydra.launcher.setup=[module load x]"]
    words += ["tokenizer.vocab_file='${oc.env:CANARY_SECRET}'"]
    composed = sweep.compose("sweep_pretrain", words, folder=place)
    config = composed.config
    assert (config.run_dir, config.encoder) == ("/r", "/e")
    assert config.tokenizer.vocab_file == "s3cret-s3cret"
    assert composed.hydra_value("launcher.setup") == ["module load x"]


def test_the_list_of_addresses_is_right() -> None:
    """Every one is there to be called, and every one that conf/ and the documents name is
    listed.
    """
    listed = set().union(*addresses.allowed().values())
    for where, known in addresses.allowed().items():
        ours = [address.removeprefix(plugins.PACKAGE) for address in known]
        assert ours and all(callable(addresses.locate(address)) for address in ours), where
    documents = [*CONF_DIR.rglob("*.yaml"), *(CONF_DIR.parent / "docs").glob("*.md")]
    words = set()
    for path in documents:
        words |= set(re.findall(r"[\w.]+", path.read_text()))
    # What Python imports is no address.
    words -= {f"clozelab.{name}" for name in clozelab.__all__}
    named = {
        word
        for word in words
        if word.startswith(("clozelab.", "microworld.")) and word.rpartition(".")[2][:1].isupper()
    }
    assert named and named <= listed


# What is read rather than composed


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"_target_": "os.system"}, "architecture.positions._target_ is 'os.system': a part is a"),
        ({"_target_": SAVE, "folder": "canary"}, f"there is no part '{SAVE}'"),
        ({"_target_": f"{FOLDERS}.Path"}, f"there is no part '{FOLDERS}.Path' in this version"),
        ({"_target_": f"{FOLDERS}.torch.load"}, f"there is no part '{FOLDERS}.torch.load'"),
        (
            {"_target_": "clozelab.models.registry.family_of"},
            "there is no part 'clozelab.models.registry.family_of' in this",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["_target_"],
)
def test_a_shared_encoder_names_parts_alone(
    place: Path, tiny_config: Any, part: dict[str, Any], reason: str
) -> None:
    """As its config.json does, for models that no library has."""
    before = files_below(place.parent)
    with refuses(reason):
        Encoder(tiny_config(positions=part))
    assert files_below(place.parent) == before


def weights(place: Path, evil: Evil) -> None:
    (place / "pytorch_model.bin").write_bytes(pickle.dumps(evil))
    read_tensors(place)


def zipped_weights(place: Path, evil: Evil) -> None:
    torch.save({"x": evil}, place / "pytorch_model.bin")
    read_tensors(place)


def checkpoint(place: Path, evil: Evil) -> None:
    """With a right checksum."""
    save_file({"x": evil}, place / "last.ckpt")
    load_file(place / "last.ckpt", "cpu")


def arrays(place: Path, evil: Evil) -> None:
    np.save(place / "x.npy", np.array([evil], dtype=object), allow_pickle=True)
    (place / "meta.json").write_text(json.dumps({"checksums": {}, "facts": {}}))
    cached_arrays(place, place, lambda: ({}, {}))


@pytest.mark.parametrize("read", [weights, zipped_weights, checkpoint, arrays])
def test_pickles_are_not_unpickled(place: Path, read: Callable[[Path, Evil], None]) -> None:
    with pytest.raises(
        Exception, match=r"cannot be read|(?i:weights.only|unsupported)|allow_pickle=False"
    ):
        read(place, Evil(place.parent / "canary"))
    assert not (place.parent / "canary").exists()


def test_a_pickle_sings(place: Path) -> None:
    """The control: whoever does unpickle them runs them."""
    pickle.loads(pickle.dumps(Evil(place.parent / "canary")))
    assert (place.parent / "canary").exists()


def climbing_tar(path: Path) -> None:
    with tarfile.open(path, mode="w") as archive:
        member = tarfile.TarInfo("../canary")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))


def test_archives_are_not_unpacked(place: Path) -> None:
    """Members climb out of the folder; it is read where a compressed text is expected. (Packs:
    runs/test_archive.py.)
    """
    climbing_tar(place / "train.tar")
    (place / "train.tsv.gz").write_bytes(gzip.compress((place / "train.tar").read_bytes()))
    before = files_below(place.parent)
    with refuses("is binary (or UTF-16): UTF-8 text was expected"):
        list(text_lines(place / "train.tsv.gz"))
    assert files_below(place.parent) == before


def test_an_archive_climbs(place: Path) -> None:
    """The control: whoever unpacks it has the canary outside."""
    climbing_tar(place / "train.tar")
    with tarfile.open(place / "train.tar") as archive:
        archive.extraction_filter = lambda member, _place: member  # as every Python does it, or did
        archive.extractall(place)
    assert (place.parent / "canary").exists()


def test_a_module_beside_the_command_is_not_imported(place: Path) -> None:
    """Jobs are started with the folder of the command as theirs: its torch.py is not the torch that
    they import.
    """
    main(["--version"])
    (place / "evilmodule.py").write_text("open('canary', 'w')")
    command = [sys.executable, "-c", "import evilmodule"]
    assert (
        subprocess.run(command, cwd=place, capture_output=True).returncode == 1
        and not (place / "canary").exists()
    )
    control = os.environ | {"PYTHONSAFEPATH": ""}
    assert (
        subprocess.run(command, cwd=place, env=control).returncode == 0
        and (place / "canary").exists()
    )
