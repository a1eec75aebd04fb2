"""The console script as a user meets it: in processes of its own, from another directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import forked
from tests.screens import Screens, shows

from clozelab import cli
from clozelab.cli import main
from clozelab.schema import SCHEMAS, keys_of
from clozelab.text.paths import CONF_DIR, EXPERIMENTS_DIR
from clozelab.verbs import DEFAULT_KEYS, HYDRA_VERBS, PLAIN_VERBS

SRC = Path(__file__).parents[1] / "src"
TABLE5 = "table5_pretraining_tasks"
TABLE8 = str(EXPERIMENTS_DIR / "table8_masking")
# A sweep of measures.
OF_A_SWEEP = ("evaluate", "-m", "--config-name", "sweep_evaluate", "--config-dir", TABLE8)


@pytest.fixture
def clozelab(tmp_path: Path):  # type: ignore[no-untyped-def]
    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        unwanted = ("CLOZELAB_DEBUG", "HYDRA_FULL_ERROR")
        clean = {key: value for key, value in os.environ.items() if key not in unwanted}
        return forked.run(
            [sys.executable, "-m", "clozelab", *words],
            cwd=tmp_path,
            env=clean | {"PYTHONPATH": str(SRC), "COLUMNS": "200"} | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys; from clozelab.cli import main\nassert main(['--help']) == 0\n"
    code += (
        f"for verb in {[*HYDRA_VERBS, *PLAIN_VERBS]}: print('== of', verb); assert main([verb,"
        " '--help']) == 0, verb\n"
    )
    code += (
        "loaded = {'torch', 'hydra', 'omegaconf', 'rich', 'numpy', 'pydantic'} & {*sys.modules};"
        " assert not loaded"
    )
    told = os.environ | {"PYTHONPATH": str(SRC), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=told, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    whole, *each = done.stdout.split("== of ")
    assert all(verb in whole for verb in (*HYDRA_VERBS, *PLAIN_VERBS))
    said = dict(one.split("\n", 1) for one in each)
    assert [*said] == [*HYDRA_VERBS, *PLAIN_VERBS] and all(
        f"clozelab {verb}" in said[verb] for verb in said
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    # What a key means stays beside it.
    beside = re.search(r"\n  input=FILE     .*\n {17}(\S.*)\n", said["predict"])
    assert beside and beside[1].startswith("beside the given columns.")
    assert list(tmp_path.iterdir()) == []


def test_help_of_the_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, screen: Screens
) -> None:
    """What a stage does, an example, groups and keys: two screens of 80 columns, of files alone and
    of what is true.
    """
    (tmp_path / "task").mkdir()
    (tmp_path / "task/ours.yaml").touch()
    monkeypatch.chdir(tmp_path)
    for verb, text in HYDRA_VERBS.items():
        assert main([verb, "--help", "-cd", str(tmp_path)]) == 0
        abbreviated, _ = capsys.readouterr()
        assert main([verb, "--help", "--config-dir", str(tmp_path)]) == 0
        said, err = capsys.readouterr()
        assert said == abbreviated
        lines, whole = said.splitlines(), " ".join(said.split())
        assert whole.startswith(f"clozelab {verb}: {text}") and not err
        assert f"\n  clozelab {verb} " in said
        assert len(lines) <= 76 and max(map(len, lines)) <= 80, max(lines, key=len)
        if verb == "pretrain":
            screen(said)
        groups, keys = said.partition("Groups (")[2].split("Keys that people set")
        named = re.findall(r"^  ([\w/]+) ", groups, re.MULTILINE)
        assert "scale" in named and all((CONF_DIR / group).is_dir() for group in named)
        # Each key is the schema's, and has its meaning beside it.
        known = {key.replace("*.", "") for key, _ in keys_of(SCHEMAS[verb])}
        for key in DEFAULT_KEYS[verb].split():
            # a free node, of torch's too
            assert key in {*known, "optimizer.learning_rate"}, f"{verb} has no key {key}"
            assert re.search(rf"^  {re.escape(key)} +[\w\[-]", keys, re.MULTILINE), (verb, key)


def test_the_long_help_of_a_stage_is_hydras(clozelab, tmp_path: Path) -> None:
    done = clozelab("pretrain", "--help-all")
    assert done.returncode == 0 and "== Configuration groups ==" in done.stdout
    assert done.stderr == "pretrain: reading the configuration\n", (
        "the first output, and not on stdout"
    )
    assert list(tmp_path.iterdir()) == []


def test_what_begins_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is imported."""

    def verb_of(words: list[str]) -> int:
        before.append(capsys.readouterr())
        print(*words)
        return 0

    before: list[object] = []
    monkeypatch.setattr("clozelab.stages.plan.main", verb_of)
    assert main(["plan", "scale=demo", TABLE5]) == 0
    assert before == [("", f"plan: reading {TABLE5}\n")]
    assert capsys.readouterr() == (f"scale=demo {TABLE5}\n", "")
    # The benchmark of a submission is nothing that is read.
    monkeypatch.setattr("clozelab.stages.submit.main", verb_of)
    assert main(["submit", "glue", "runs/a", "runs/b"]) == 0
    assert before[1] == ("", "submit: reading runs/a\n")
    assert capsys.readouterr().out == "glue runs/a runs/b\n"
    # A process without stderr, as some services start one, has nothing but its output.
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["plan", "mine"]) == 0 and capsys.readouterr().out == "mine\n"


def test_the_configuration_of_a_verb(clozelab: Any, tmp_path: Path) -> None:
    done = clozelab("pretrain", "--cfg", "job", "scale=laptop")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["scale"]["name"] == "laptop"
    assert list(tmp_path.iterdir()) == []


def test_options_may_stand_behind_overrides(clozelab: Any) -> None:
    """Also Hydra's --info, whose subject may be left out."""
    for words in (["seed=1", "--info", "defaults"], ["-i", "seed=1"]):
        done = clozelab("pretrain", *words)
        assert done.returncode == 0, done.stderr
        shows(done.stdout, "Defaults List")


OF_PROGRAMMERS = ("Traceback", "To append to your config", "Config search path", "CLOZELAB_DEBUG")
"""What Hydra and Python say of a mistake, and ours does not."""


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["pretrian"], 2, "did you mean 'pretrain'"),
        (["pretrain", "sed=3"], 1, "pretrain has no key 'sed'; did you mean 'seed'?"),
        (["predict", "model=x", "text=a"], 1, "stands without a key: clozelab predict x"),
        (["pretrain", "-m", "sed=3,4"], 1, "did you mean 'seed'?"),
        (["reproduce", TABLE5, "scale=demo", "sed=3"], 1, "did you mean 'seed'?"),
        (["reproduce", TABLE5, "another"], 1, f"reproduce takes 1 name, not {TABLE5} another"),
        (["evaluate", "measure=blimp", "encoder=F"], 1, "say row=NAME too"),
        ([*OF_A_SWEEP, "row=random"], 1, "row: this sweep takes rows as measured=NAME"),
        (["finetune", "task=intent"], 1, "FOLDER/task/intent.yaml and --config-dir FOLDER)"),
        (["reproduce", TABLE5, "scale=labtop"], 1, "there is no scale 'labtop'; did you mean"),
        (["finetune", "encoder=nowhere", "row=x", "task=mrpc"], 1, "nowhere"),
        (["reproduce", "table5"], 1, "no experiment 'table5'"),
        (["reproduce", TABLE5, "--dri-run"], 1, "--dri-run"),
        (["report", TABLE5, "scale=demo"], 1, f"`clozelab reproduce {TABLE5} scale=demo`"),
        (["runs"], 1, "give runs_dir=FOLDER"),
        (["judge", "none.csv", "none.yaml"], 1, "none.csv: no such file or directory"),
        (["plan", TABLE5, "budget=soon"], 1, "budget=soon: give a time above zero, such as 2h"),
        (["plan", TABLE5, "budget=2h", "matched_by=foo"], 1, "choose one of steps, tokens"),
        (["plan", TABLE5, "matched_by=steps"], 1, "say budget=TIME too"),
        (["pretrain", "-m", "seed=glob(none*)"], 1, "no job at all"),
        (["pretrain", "-m", "run_dir=x", "trainer.num_workers=0,1"], 1, "would share the folder"),
        (["pretrain", "-m", "hydra.launcher.jobs_at_once=0"], 1, "jobs_at_once is 0"),
        (["pretrain", "-m", "hydra.job.chdir=true"], 1, "for one run: leave it out with -m"),
        (["pretrain", "seed=1", "--config-path", "x"], 1, "--config-dir FOLDER adds one of yours"),
    ],
)
def test_mistakes_are_one_message(  # type: ignore[no-untyped-def]
    clozelab, words: list[str], status: int, message: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Of a stage in a process of its own, since Hydra makes it another program."""
    if words[0] in PLAIN_VERBS:
        monkeypatch.chdir(tmp_path)
        found, said = main(words), " ".join(capsys.readouterr().err.split())
    else:
        done = clozelab(*words)
        found, said = done.returncode, done.stderr
    assert found == status and message in said, said
    assert [text for text in OF_PROGRAMMERS if text in said] == []


def test_debug_shows_the_traceback(clozelab) -> None:  # type: ignore[no-untyped-def]
    done = clozelab("report", "nothing", CLOZELAB_DEBUG="1")
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_an_error_beside_code_of_the_users_says_how_to_find_it(clozelab: Any) -> None:
    """Python's own "not enough values to unpack" would else be all that one sees."""
    done = clozelab("report", "nothing", CLOZELAB_ALLOW_TARGETS="mine")
    assert done.returncode == 1 and "CLOZELAB_DEBUG=1 shows where" in done.stderr


def test_version(clozelab) -> None:  # type: ignore[no-untyped-def]
    assert clozelab("--version").stdout.startswith("clozelab 0.")


def test_list_and_dry_run(clozelab: Any, tmp_path: Path) -> None:
    done = clozelab("list", COLUMNS="60")
    assert done.returncode == 0
    shows(done.stdout, "table2_squad_v1", "SQuAD 1.1", "table3_squad_v2")
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []
    words = ("scale=demo", "finetune.task=mrpc", "finetune.row=mlm")
    done = clozelab("reproduce", TABLE5, *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    for run in ("mlm_nsp/seed-1", "mlm_nsp/seed-2", "mlm/seed-1"):
        shows(done.stdout, f"new runs/{TABLE5}/demo/pretrain/{run}")
    assert list(tmp_path.iterdir()) == []


def test_list_of_architectures(monkeypatch: Any, capsys: Any) -> None:
    """Every file that one can choose, and a command that exists."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", "architectures"]) == 0
    text = capsys.readouterr().out
    names = [line for line in text.splitlines() if not line.startswith(" ")]
    assert names == sorted(path.stem for path in (CONF_DIR / "architecture").glob("*.yaml"))
    chosen = re.findall(r"(recipe|architecture)=(\w+)", text)
    assert {name for group, name in chosen if group == "recipe"} == {
        path.stem for path in (CONF_DIR / "recipe").glob("*.yaml")
    }
    for group, name in chosen:
        assert (CONF_DIR / group / f"{name}.yaml").is_file()
    assert main(["list", "architecture"]) == 1
    assert "choose one of architectures" in capsys.readouterr().err


def test_a_failing_sweep_job_fails_the_sweep_and_names_its_log(clozelab, tmp_path: Path) -> None:
    # -m anywhere
    words = ["task=mrpc", "seed=1,2", "-m", "encoder=nowhere", "row=x", "hydra.launcher.fork=false"]
    done = clozelab("finetune", *words)
    assert done.returncode == 1
    shows(
        done.stderr[done.stderr.index("2 failed\n") :],
        "2 failed",
        "failed: finetune/x/pretrain-seed-1/mrpc/seed-1 and 1 more: exit status",
    )
    logs = list((tmp_path / "runs" / "adhoc" / "demo" / "launcher" / "logs").glob("*.log"))
    assert len(logs) == 2


def test_a_long_sweep_is_looked_at_before_its_first_job(clozelab, tmp_path: Path) -> None:
    words = ["-m", "objective=mlm", "seed=1,2,3,4", "schedule.warmup_fraction=1.0"]
    done = clozelab("pretrain", *words, "hydra.launcher.fork=false", CLOZELAB_SKIP_DOCTOR="0")
    assert done.returncode == 1 and "warmup_fraction is 1.0" in done.stdout, done.stderr
    shows(done.stderr, "pretrain: reading the configuration", "doctor: reading pretrain")
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize("words", [["pretrain", "--help"], ["--help"], ["list"]])
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "clozelab", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) in (0, 1, 141)  # rich has a status of its own for it


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "nope", "text=hi"], "nope: no model here"),
        (["export", "nope", "to=new"], "nope: no model here"),
        (["report", "nosuch"], "no experiment 'nosuch'"),
        (["prepare", "corpus=text", "corpus.sources.0.path=nope"], "source text: no text files at"),
    ],
)
def test_a_wrong_name_is_told_before_the_slow_imports(
    tmp_path: Path, words: list[str], message: str
) -> None:
    slow = {"torch", "lightning", "matplotlib"}
    if words[0] in HYDRA_VERBS:  # one job needs no launcher, and nothing of verdicts
        slow |= {"clozelab.launch.launcher", "claims.analysis.schema"}
    code = (
        "import sys; from clozelab.cli import main;"
        f" status = main({words!r});"
        f" print(status, sorted({slow} & {{*sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    assert message in done.stderr
    assert done.stdout.splitlines()[-1] == "1 []"


def test_a_small_plan_and_an_answer_wait_for_no_lightning(tmp_path: Path) -> None:
    """It brings torch's compiler: a quarter of the time of a plan that measures nothing, and half
    of that of a single prediction.
    """
    (tmp_path / "rates.yaml").write_text(
        "columns: [sst2]\narms: {slow: {optimizer.learning_rate: 0.001}}\n"
    )
    code = (
        "import sys; from clozelab.cli import main\n"
        "def slow(): return sorted({'lightning', 'torch._dynamo', 'torchmetrics'} & {*sys.modules})"
        "\nstatus = main(['plan', 'rates.yaml', 'scale=demo', '--no-measure', 'data_dir=none'])\n"
        "print(status, slow())\n"
        "import clozelab.modules.predictor, clozelab.modules.explaining\n"
        "import clozelab.modules.exporting, clozelab.assembly.searching\n"
        "print(slow())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    assert done.stdout.splitlines()[-2:] == ["0 []", "[]"], done.stderr


def test_ctrl_c_during_the_imports_says_nothing() -> None:
    """The console script's first line is the handler; what follows it is slow here."""
    code = (
        "import os, signal, sys, clozelab.__main__ as start\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'clozelab.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "start.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(("verb", "goes_on"), [("finetune", True), ("predict", False)])
def test_ctrl_c_promises_only_what_is_so(
    capsys: pytest.CaptureFixture[str], verb: str, goes_on: bool
) -> None:
    """Nothing is left of a prediction: the same command begins anew."""

    def stop() -> int:
        raise KeyboardInterrupt

    assert cli._with_error_report(stop, verb) == 130
    message = capsys.readouterr().err
    assert message.startswith("\ninterrupted") and ("goes on where it was" in message) == goes_on
