"""What takes long is said, on stderr: nobody waits for a minute without a word."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from clozelab import terminal
from clozelab.cli import main
from clozelab.terminal import told_if_slow

SLOW = 0.05


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SLOW_SECONDS", SLOW)


def test_only_a_long_wait_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with told_if_slow("reading"):
        pass
    with pytest.raises(ValueError, match="wrong"), told_if_slow("opening"):
        raise ValueError("wrong")
    time.sleep(4 * SLOW)
    assert capsys.readouterr() == ("", "")
    with told_if_slow("embedding"):
        time.sleep(4 * SLOW)
    assert capsys.readouterr() == ("", "embedding\n"), "never where JSON may stand"


def test_a_verb_whose_import_takes_long_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def import_slowly(_: str) -> SimpleNamespace:
        time.sleep(4 * SLOW)
        return SimpleNamespace(main=lambda _: print("[]"))

    monkeypatch.setattr("clozelab.cli.importlib", SimpleNamespace(import_module=import_slowly))
    assert main(["search", "model", "query=a", "in=b", "--json"]) == 0
    assert capsys.readouterr() == ("[]\n", "search: reading model\nsearch: loading libraries\n")
