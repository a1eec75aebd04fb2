"""`clozelab completion`: the function of its script, called as bash calls it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.screens import refuses

from clozelab.schema import SCHEMAS, keys_of
from clozelab.stages import completion
from clozelab.terminal import GRAMMARS
from clozelab.verbs import HYDRA_VERBS, PLAIN_VERBS

WORD_BREAKS = "COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'"
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "clozelab"
    with path.open("w", encoding="utf-8") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        assert completion.main(["bash"]) == 0
    return path


def completed(script: Path, line: str, *, is_parted: bool = True) -> list[str]:
    """What Tab offers at the end of a line; zsh does not part words at "="."""
    breaks = WORD_BREAKS if is_parted else "COMP_WORDBREAKS=' '"
    code = f'{breaks}\nsource "$1"; COMP_LINE="$2"; COMP_POINT=${{#2}}; _clozelab'
    code += '\nprintf "%s\\n" "${COMPREPLY[@]}"'
    command = ["bash", "-c", code, "bash", str(script), line]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not [one for one in result.stderr.splitlines() if "compopt" not in one]
    return result.stdout.split()


@needs_bash
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("clozelab pre", ["prepare", "pretrain", "predict"]),
        ("clozelab  pretr", ["pretrain"]),
        ("clozelab pretrain optimizer.learn", ["optimizer.learning_rate="]),
        ("clozelab pretrain validation.interv", ["validation.interval_steps="]),
        ("clozelab finetune seed=1 task=mr", ["mrpc"]),
        ("clozelab evaluate hydra/launcher=s", ["slurm", "slurm_local"]),
        ("clozelab reproduce table5", ["table5_pretraining_tasks"]),
        ("clozelab status --w", ["--watch"]),
        ("clozelab explain runs/a ou", ["out="]),
        ("clozelab list arch", ["architectures"]),
        ("clozelab completion ", ["bash", "zsh"]),
        ("clozelab plan pre", ["pretrain"]),
        ("clozelab doctor --conf", ["--config-dir", "--config-name"]),
        ("clozelab prepare --d", ["--dry-run"]),
        ("clozelab pretrain tex", ["text="]),
        ("clozelab finetune label_col", ["label_column="]),
        ("clozelab predict minilm pre", ["precision="]),
        ("clozelab list enc", ["encoders"]),
        # Files are bash's own to complete.
        ("clozelab finetune encoder=fold", []),
        ("clozelab predict fold", []),
        ("clozelab no_verb a", []),
    ],
)
def test_what_is_offered(script: Path, line: str, offered: list[str]) -> None:
    assert completed(script, line) == offered


@needs_bash
@pytest.mark.parametrize("is_parted", [True, False])
def test_choices_of_a_folder_of_ones_own_are_offered(
    script: Path, tmp_path: Path, is_parted: bool
) -> None:
    for name in ("objective/focal.yaml", "objective/input/lines.yaml", "objective/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for option in ("--config-dir ", "--config-dir="):
        for word, choice in (("objective=f", "focal"), ("objective/input=l", "lines")):
            line = f"clozelab pretrain {option}{tmp_path} {word}"
            expected = [choice if is_parted else f"{word[:-1]}{choice}"]
            assert completed(script, line, is_parted=is_parted) == expected
    assert completed(script, f"clozelab pretrain --config-dir {tmp_path} objective=no") == []
    assert completed(script, "clozelab pretrain objective=f") == []


@needs_bash
def test_every_verb_and_every_choice_of_a_group(script: Path) -> None:
    assert completed(script, "clozelab ") == [*HYDRA_VERBS, *PLAIN_VERBS]
    objectives = completed(script, "clozelab pretrain objective=")
    assert {"mlm", "ltr", "rtd"} <= set(objectives) and "mlm=" not in objectives
    of_zsh = completed(script, "clozelab pretrain objective=lt", is_parted=False)
    assert of_zsh == ["objective=ltr", "objective=ltr_rtl"]
    for verb in HYDRA_VERBS:
        offered = completed(script, f"clozelab {verb} ")
        wanted = {f"{key}=" for key, _ in keys_of(SCHEMAS[verb]) if "*" not in key}
        assert wanted <= set(offered), verb
        assert len(offered) == len(set(offered)), "a word stands twice"


def test_every_key_that_is_offered_is_one_of_the_verb() -> None:
    """A key in an example of another verb is none."""
    offered = completion.candidates()
    for name, grammar in GRAMMARS.items():
        keys = {f"{key}=" for key in (*grammar.keys, *grammar.choices)}
        assert keys <= set(offered[name]), name
        if not grammar.takes_overrides:
            assert {word for word in offered[name] if word.endswith("=")} == keys, name
        options = {f"--{option}" for option in (*grammar.flags, *grammar.options)}
        assert {word for word in offered[name] if word.startswith("--")} == options, name
    assert "name=" not in offered["plan"]


@needs_bash
def test_a_completion_takes_no_time(script: Path) -> None:
    began = time.monotonic()
    completed(script, "clozelab pretrain obj")
    assert time.monotonic() - began < 0.5, "it must not start Python"


def test_zsh_calls_the_functions_of_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main(["zsh"]) == 0
    text = capsys.readouterr().out
    assert text.index("bashcompinit") < text.index("complete -o default -F _clozelab clozelab")
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n"], input=text, text=True, check=True)


def test_another_shell_is_refused() -> None:
    with refuses("completion=fish: choose one of bash, zsh"):
        completion.main(["fish"])
