"""`clozelab completion`: a script with which a shell completes verbs, groups and keys."""

from __future__ import annotations

import importlib
import re

from clozelab.launch.own_task import SHORT_KEYS
from clozelab.results.experiment import list_experiments
from clozelab.schema import SCHEMAS, keys_of
from clozelab.terminal import GRAMMARS, ParsedArgs, verb
from clozelab.text.did_you_mean import check_choice
from clozelab.verbs import (
    DEFAULT_KEYS,
    HYDRA_VERBS,
    PLAIN_VERBS,
    VERBS_OF_EXPERIMENTS,
    groups_of,
    help_of,
)

HELP = """clozelab completion bash|zsh

Prints a script with which the Tab key completes verbs, groups and their
choices, keys, options and experiments, and otherwise files. The script holds
all of these, so a completion starts no Python. Print it again after an update.

  mkdir -p ~/.clozelab
  clozelab completion bash > ~/.clozelab/completion
  echo 'source ~/.clozelab/completion' >> ~/.bashrc   # zsh: ~/.zshrc"""
OPTIONS = ("--help", "--cfg", "--config-dir", "--config-name", "-m")
NAMES = re.compile(r"^clozelab \S+ ([a-z|]+)(?!\S)", re.MULTILINE)
"""In a usage, such as `clozelab list corpora`: what stands behind the verb as it is."""
WORD = re.compile(r"(?<![\w.-])(?:--[a-z][a-z-]+|[a-z_]+=(?!value))")
"""An option or a key, as a help has them: `scale=NAME`, `--watch`."""
ZSH = """\
# zsh can call completion functions of bash.
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""
SCRIPT = """\
_clozelab_candidates() {
  case "$1" in
TABLE
  esac
}
_clozelab() {
  local line="${COMP_LINE:0:$COMP_POINT}" word given own=""
  # The whole word: bash parts it at "=".
  word="${line##*[[:space:]]}"
  given="${line#*[[:space:]]}"
  case "$given,$word" in
    *[[:space:]]*,*=*) given="${word%%=*}=" ;;
    *[[:space:]]*) given="${given%%[[:space:]]*}" ;;
    *) given="" ;;
  esac
  # Choices of the user's own, in the folder behind --config-dir.
  case "$line" in
    *--config-dir[[:space:]=]*[[:space:]]*)
      own="${line#*--config-dir[[:space:]=]}"
      own="${own%%[[:space:]]*}/${given%=}"
      own="$(cd "$own" 2>/dev/null && ls | sed -n "s|[.]yaml$||p" | sed "s|^|$given|")" ;;
  esac
  COMPREPLY=($(compgen -W "$(_clozelab_candidates "$given") $own" -- "$word"))
  # A value follows the "=" of a key at once.
  case "${COMPREPLY[*]}" in
    *" "*) ;;
    *=) compopt -o nospace 2>/dev/null ;;
  esac
  # Where "=" parts words, only what is behind it is completed.
  case "$COMP_WORDBREAKS,$word" in
    *=*,*=*) COMPREPLY=("${COMPREPLY[@]#*=}") ;;
  esac
}
complete -o default -F _clozelab clozelab"""


@verb("completion", HELP, names=(1, 1))
def main(args: ParsedArgs) -> int:
    """Print the script; returns the exit status."""
    shell = args.names[0]
    check_choice("completion", shell, ("bash", "zsh"))
    if shell == "zsh":
        print(ZSH)
    lines = []
    for given, words in candidates().items():
        lines.append(f"    '{given}') echo '{' '.join(dict.fromkeys(words))}' ;;")
    print(SCRIPT.replace("TABLE", "\n".join(lines)))
    return 0


def candidates() -> dict[str, list[str]]:
    """Return the words that may follow: nothing (""), a verb, and `GROUP=`."""
    table = {"": [*HYDRA_VERBS, *PLAIN_VERBS]}
    for name in HYDRA_VERBS:
        groups = groups_of(name)
        keys = [key for key, _ in keys_of(SCHEMAS[name]) if "*" not in key]
        keys += [*groups, *DEFAULT_KEYS[name].split()]
        keys += SHORT_KEYS[name]
        table[name] = [*OPTIONS, *(f"{key}=" for key in sorted(keys))]
        for group, choices in groups.items():
            table[f"{group}="] = [f"{group}={choice}" for choice in choices]
    for name in PLAIN_VERBS:
        table[name] = _words_after(name)
        if name in VERBS_OF_EXPERIMENTS:
            table[name] += list_experiments()
    table["prepare"].append("--dry-run")
    return table


def _words_after(name: str) -> list[str]:
    """What may follow a plain verb: what its usage names, and the keys that it knows."""
    importlib.import_module(f"clozelab.stages.{name}")
    text = help_of(name, [])
    usage, _, _ = text.partition("\n\n")
    following = []
    for names in NAMES.findall(usage):
        following += names.split("|")
    following += WORD.findall(usage)
    grammar = GRAMMARS.get(name)
    if grammar is None:
        return following
    following += [f"--{option}" for option in (*grammar.flags, *grammar.options)]
    following += [f"{key}=" for key in (*grammar.keys, *grammar.choices)]
    if grammar.takes_overrides:  # of an experiment's keys those that the help names
        following += [word for word in WORD.findall(text) if word.endswith("=")]
    return following
