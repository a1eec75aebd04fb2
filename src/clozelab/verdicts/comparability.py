"""Whether runs may be compared: were they made in the same way, apart from what they are about?

Two arms or rows are about what their own lines say differently, as the runs recorded it, with the
settings that the configuration derives from those, and about what `differ_in` lists. How a row is
fine-tuned (PROTOCOL) is no row's subject unless `differ_in` says so. Arms must have seen as much as
`matched_by` asks for. Two seeds that began with one encoder are copies, and decide nothing.

Last: the table of any sweep's runs without an experiment, whose rows are what differs between the
runs.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter, mul
from statistics import fmean
from typing import TYPE_CHECKING, Any

from clozelab.runs.identity import CONDITIONAL_KEYS, flatten, identity_of
from clozelab.runs.record import grouped
from clozelab.schema import LAYOUT, NEUTRAL, meaning_of
from clozelab.text.formatting import listed, rough
from clozelab.text.paths import CONF_DIR
from clozelab.verdicts.experiment import RATE_KEYS, STEP_KEYS, Column, Experiment, Row, read_yaml
from clozelab.verdicts.table import Seeds, Table, build_table, seeds_of
from clozelab.verdicts.versions import why_no_score

if TYPE_CHECKING:
    from clozelab.runs.find import Runs
    from clozelab.runs.record import Record

NAMES = ("experiment", "arm", "row", "encoder_arm", "pretrain_seed", "seed", "encoder_fraction")
MAY_DIFFER = (
    *NAMES[:-1],
    "predict_test",
    *(key for key, of in CONDITIONAL_KEYS.items() if of == "predict_test"),
)
PROTOCOL = (
    *(
        "epochs",
        "evaluations_per_epoch",
        "global_batch_size",
        "gradient_clip_norm",
        "learning_rate",
    ),
    *("max_train_examples", "optimizer", "schedule"),
)
TOLERANCE = 0.02
SHOWN = 3
CODE = "code"  # what `differ_in` says where rows may be of other versions of the code
BySeeds = Mapping[Seeds, Mapping[str, str]]
Apart = dict[str, list[tuple[str, str]]]
NO_DIFFERENCE = (  # what overrides say that makes no other row: seeds, columns, places and machines
    *(
        "seed",
        "pretrain_seed",
        "task",
        "measure",
        "hydra",
        "trainer",
        "logger",
        "hub",
        "share_runs",
    ),
    *(
        "reuse",
        "runs_dir",
        "run_dir",
        "data_dir",
        "cache_dir",
        "encoder",
        "keep_model",
        "predict_test",
    ),
)
FIGURES = (
    *("validation/loss", "validation/perplexity", "validation/accuracy"),
    *("validation/nsp_accuracy", "validation/nsp_accuracy_one_source"),
)
REFERENCE = re.compile(r"\$\{([A-Za-z_.][\w.]*)\}")


def why_not(table: Table, first: str, second: str, tasks: Iterable[str]) -> str:
    """Why two rows' scores on these tasks are not comparable; empty where they are."""
    arms = [
        next((row.arm for row in table.experiment.rows if row.name == name), None)
        for name in (first, second)
    ]
    tuned, measured = (
        [of.get(name, []) for name in (first, second)] for of in (table.tuned, table.measured)
    )

    def reasons() -> Iterator[str]:
        yield _outdated(table, (first, second), arms, tasks)
        if arms[0] and arms[1] and arms[0] != arms[1]:
            yield _unmatched(table, arms[0], arms[1])
        differ = meant_to_differ(*tuned) | meant_to_differ(*measured)
        about = {key for key in differ if key.split(".")[0] not in PROTOCOL}
        for task in tasks:
            mine, theirs = (table.runs_on(name, task) for name in (first, second))
            yield _difference("fine-tuned", mine, theirs, table.experiment.free_keys | about)
        sides = () if CODE in table.experiment.free_keys else _sides(table, first, second, tasks)
        for how, mine, theirs in sides:
            if names := sorted(_made(mine, theirs, partial(_of_sessions, "modules"))):
                yield (
                    f"other code: {how} with two versions of {_some(names)}, and differ_in does not"
                    f" say {CODE}"
                )
        for name, arm, mine in zip((first, second) * 2, arms * 2, tuned + measured, strict=True):
            if other := [
                run for run in mine if arm and run.config.get("encoder_arm", arm) not in (arm, None)
            ]:
                yield (
                    f"not what it is called: paper.yaml says arm {arm} of the row {name}, and"
                    f" {len(other)} of {len(mine)} runs have the encoder of"
                    f" {other[0].config['encoder_arm']} (e.g. {other[0].place})"
                )
            yield _two_versions("row", name, mine)
        # Two rows of one arm are about one encoder, those of two arms about two.
        both, is_one = (
            zip(tuned, measured, strict=True) if all(arms) else [((), ())] * 2,
            arms[0] == arms[1],
        )
        began = [_encoders((*one, *other)) for one, other in both]
        for seed, fraction in sorted(began[0].keys() & began[1].keys()):
            if (began[0][seed, fraction] == began[1][seed, fraction]) != is_one:
                words = (
                    ("one encoder", "different ones")
                    if is_one
                    else ("two encoders", "one and the same")
                )
                yield (
                    f"the rows stand for {words[0]}, and began from {words[1]} (pre-training seed"
                    f" {seed})"
                )

    return next(filter(None, reasons()), "")


def made_apart(table: Table, first: str, second: str, tasks: Iterable[str]) -> str:
    """What two rows' runs of the same seeds were made with unequally, where that bars nothing;
    empty for nothing.
    """
    said = []
    for how, mine, theirs in _sides(table, first, second, tasks):
        words = _against(_made(mine, theirs, _made_with))
        said += [f"{how} with {words}"] if words else []
    return "; ".join(dict.fromkeys(said))


def _sides(
    table: Table, one: str, two: str, tasks: Iterable[str]
) -> Iterator[tuple[str, list[Record], list[Record]]]:
    """(how made, runs, runs) of all that two rows' scores come from apart from each other."""
    arm, other = (
        next(row.arm for row in table.experiment.rows if row.name == name) for name in (one, two)
    )
    if arm and other and arm != other:
        yield "pre-trained", table.trained.get(arm, []), table.trained.get(other, [])
    for task in tasks:
        yield "fine-tuned", table.runs_on(one, task), table.runs_on(two, task)


def _outdated(
    table: Table,
    rows: tuple[str, str],
    arms: Sequence[str | None],
    tasks: Iterable[str],
) -> str:
    """Why an arm or a row has no run that may be compared, though it has some; else empty."""
    if not table.outdated:
        return ""
    trained = [run for run in table.runs.pretrain if run.name in arms]
    scored = (*table.runs.finetune, *table.runs.evaluate)
    of_rows = [run for run in scored if run.name in rows and run.task in tasks]
    # An arm's encoders, and a row's runs on each task.
    kinds = grouped([*trained, *of_rows], lambda run: (run.stage, run.task, run.name))
    reasons = (why_no_score(table.outdated, mine) for mine in kinds.values())
    return next(filter(None, reasons), "")


def _unmatched(table: Table, first: str, second: str) -> str:
    """Why two arms are not comparable: they saw unequal amounts, or were trained in other ways."""
    experiment = table.experiment
    both = {arm: table.trained.get(arm, []) for arm in (first, second)}
    if experiment.matched and (absent := [arm for arm, mine in both.items() if not mine]):
        return f"no complete pre-training run of {' and '.join(absent)}"
    for key in experiment.matched:
        name = "training time (seconds x devices)" if key == "training_seconds" else key
        amounts = {arm: _amount(mine, key) for arm, mine in both.items()}
        if unknown := [arm for arm, amount in amounts.items() if amount is None]:
            return (
                f"{name} of pre-training not known for {' and '.join(unknown)}, so nobody can say"
                " the arms match"
            )
        one, other = (amount for amount in amounts.values() if amount is not None)
        if abs(one - other) > TOLERANCE * max(one, other):
            return (
                f"arms not matched: {rough(one)} against {rough(other)} {name} of pre-training, and"
                " matched_by in paper.yaml does not say that this is meant"
            )
    if versions := next(
        filter(None, (_two_versions("arm", arm, mine) for arm, mine in both.items())), ""
    ):
        return versions
    free = experiment.free_keys | meant_to_differ(both[first], both[second])
    return _difference("pre-trained", both[first], both[second], free)


def _amount(runs: Sequence[Record], key: str) -> float | None:
    """What an arm saw or took, all its devices together, as a mean over seeds; None where a run
    does not know.
    """
    devices = [run.facts.get("world_size", 1) if key == "training_seconds" else 1 for run in runs]
    known = [float(run.facts[key]) for run in runs if isinstance(run.facts.get(key), int | float)]
    return fmean(map(mul, known, devices)) if len(known) == len(runs) else None


def _two_versions(kind: str, name: str, runs: Sequence[Record]) -> str:
    said = {tuple(sorted((key, str(value)) for key, value in _delta(run).items())) for run in runs}
    return (
        f"the runs of {name} were made from {len(said)} versions of its {kind}"
        if len(said) > 1
        else ""
    )


def _delta(run: Record) -> Mapping[str, Any]:
    return run.arm_delta if run.stage == "pretrain" else run.row_delta


def encoder_of(run: Record) -> str | None:
    """Checksum of the weights that a run began with; None where they were fresh or nothing is
    recorded.
    """
    return run.inputs.get("encoder") if run.config.get("initialisation") == "pretrained" else None


def _encoders(runs: Iterable[Record]) -> dict[tuple[int, float], set[str | None]]:
    """(pre-training seed, fraction of its steps) -> the encoders that runs began with."""
    began = grouped(
        filter(encoder_of, runs),
        lambda run: (run.pretrain_seed, run.config.get("encoder_fraction", 1.0)),
    )
    return {key: set(map(encoder_of, mine)) for key, mine in began.items()}


def meant_to_differ(first: Sequence[Record], second: Sequence[Record]) -> frozenset[str]:
    """The settings that two arms' (or rows') own lines set differently, with all that refers to one
    of them.
    """
    if not first or not second:
        return frozenset()
    one, other = first[0], second[0]
    here, there = ({key: str(value) for key, value in _delta(run).items()} for run in (one, other))
    found: set[str] = set()
    for key in here.keys() | there.keys():
        if here.get(key, "(nothing)") != there.get(key, "(nothing)"):
            found |= (
                _chosen_apart(key.removeprefix("/"), one, other) if key.startswith("/") else {key}
            )
    references = derived() | {
        key: _named(key, text) for key, text in here.items() if there.get(key) == text
    }
    while True:
        more = {
            key
            for key, names in references.items()
            if any(is_within(name, found) for name in names)
        }
        if more <= found:
            break
        found |= more
    if any(key.split(".")[0] == "tokenizer" for key in found):
        found.add("input corpus")  # the same text, as other tokens
    return frozenset(found)


def _chosen_apart(group: str, one: Record, other: Record) -> set[str]:
    """The sub-groups that two choices of a group choose differently, such as objective.pair; else
    the whole group.
    """
    below = {
        key for key in one.choices.keys() | other.choices.keys() if key.startswith(f"{group}/")
    }
    apart = {key for key in below if one.choices.get(key) != other.choices.get(key)}
    is_one_object = any("_target_" in (run.config.get(group) or {}) for run in (one, other))
    return {key.replace("/", ".") for key in (apart if below and not is_one_object else {group})}


@cache
def derived() -> dict[str, list[str]]:
    """Setting -> those that conf/ derives it from: epochs from task.epochs, of phases only their
    length.
    """
    files = [("", CONF_DIR / f"{stage}.yaml") for stage in ("pretrain", "finetune")]
    files += [("model.", path) for path in (CONF_DIR / "model").glob("*.yaml")]
    files += [
        (f"objective.{path.parent.name}.", path)
        for path in (CONF_DIR / "objective").glob("*/*.yaml")
    ]
    found: dict[str, list[str]] = {}
    for prefix, path in files:
        for key, value in flatten(read_yaml(path)).items():
            found.setdefault(f"{prefix}{key}", []).extend(_named(f"{prefix}{key}", str(value)))
    found[STEP_KEYS[0]] = found.pop("phases", [])
    return {
        key: names
        for key, names in found.items()
        if names and key.split(".")[0] not in ("hydra", "run_dir")
    }


def _named(key: str, text: str) -> list[str]:
    """The settings that a value refers to; `${..data.x}` of task.module.y is task.data.x, two steps
    up from it.
    """
    found = []
    for name in REFERENCE.findall(text):
        plain = name.lstrip(".")
        above = key.split(".")[: -(len(name) - len(plain))] if name != plain else []
        found.append(".".join([*above, plain]))
    return found


def is_within(key: str, parts: Iterable[str]) -> bool:
    """Whether a dotted key is one of these, or inside one; a `*` stands for anything."""
    return any(
        key == part or key.startswith(f"{part}.") or fnmatch.fnmatchcase(key, part)
        for part in parts
    )


def settings(run: Record) -> dict[str, str]:
    """Dotted key -> value of all that should be equal in compared runs: precision, but not a
    machine's layout.
    """
    values = {key: value for key, value in identity_of(run.config).items() if _counts(key)}
    if (name := "corpus" if run.stage == "pretrain" else "task_files") in run.inputs:
        values[f"input {name}"] = run.inputs[name][:12]
    if "precision" in run.facts:
        values["precision"] = run.facts["precision"]
    return {key: str(value) for key, value in values.items()} | {
        "results_version": str(run.results_version)
    }


@cache
def _counts(key: str) -> bool:
    return not is_within(key, MAY_DIFFER) and meaning_of(key) not in (NEUTRAL, LAYOUT)


def _made_with(run: Record) -> dict[str, str]:
    return _of_sessions("environment", run) | _of_sessions("modules", run)


def _of_sessions(field: str, run: Record) -> dict[str, str]:
    """What all sessions of a run were made with: a run that went on under other code is of two
    versions, a1/b2.
    """
    known = [one.get(field) or {} for one in run.earlier_sessions] + [getattr(run, field)]
    return {
        key: "/".join(dict.fromkeys(one[key] for one in known if key in one)) for key in known[-1]
    }


def _joined(
    runs: Sequence[Record], of: Callable[[Record], Mapping[str, str]] = settings
) -> dict[str, str]:
    """Key of a setting (or of what else is asked of a run) -> all values that these runs have of
    it.
    """
    known = list(map(of, runs))
    keys = dict.fromkeys(key for one in known for key in one)
    return {key: "/".join(sorted({one[key] for one in known if key in one})) for key in keys}


def _rates(runs: Sequence[Record]) -> dict[str, str]:
    """Key of a learning rate -> all that were tried in fine-tuning, since a row takes one for all
    its seeds.
    """
    tuned = _joined([run for run in runs if run.stage == "finetune"])
    return {key: tuned[key] for key in RATE_KEYS if key in tuned}


def _difference(
    how: str, first: Sequence[Record], second: Sequence[Record], free: Iterable[str]
) -> str:
    """In words, what two rows' settings differ in for some seeds that both have: a difference is
    paired by seed.
    """
    mine, theirs = (
        {seeds: _joined(same) | rates for seeds, same in grouped(runs, seeds_of).items()}
        for runs, rates in ((first, _rates(first)), (second, _rates(second)))
    )
    found = {
        key: values for key, values in _apart(mine, theirs).items() if not is_within(key, free)
    }
    if RATE_KEYS[0] in found:  # the optimizer's rate repeats the run's own
        found.pop(RATE_KEYS[1], None)
    words = _against(found)
    return (
        words
        and f"another protocol: {how} with {words}, which differ_in in paper.yaml does not allow for"
    )


def _made(
    first: Sequence[Record], second: Sequence[Record], of: Callable[[Record], Mapping[str, str]]
) -> Apart:
    """What runs of two rows know of how they were made, and have otherwise; what one does not know
    is no difference.
    """
    if len({tuple(sorted(of(run).items())) for run in (*first, *second)}) < 2:
        return {}
    mine, theirs = (
        {key: _joined(one, of) for key, one in grouped(runs, seeds_of).items()}
        for runs in (first, second)
    )
    known = {
        key: [pair for pair in pairs if all(pair)]
        for key, pairs in _apart(mine, theirs, "").items()
    }
    return {key: pairs for key, pairs in known.items() if pairs}


def _apart(mine: BySeeds, theirs: BySeeds, unknown: str = "none") -> Apart:
    """Key -> values of both sides for all seeds that both have and differ in: a difference is
    paired by seed.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for seeds in sorted(mine.keys() & theirs.keys()):
        for key in mine[seeds].keys() | theirs[seeds].keys():
            pair = mine[seeds].get(key, unknown), theirs[seeds].get(key, unknown)
            if pair[0] != pair[1]:
                found.setdefault(key, []).append(pair)
    return found


def _against(found: Apart) -> str:
    """`torch 2.13 against 2.11; numpy ...` of the first keys; empty for none."""
    sides = {
        key: ["/".join(dict.fromkeys(one)) for one in zip(*found[key], strict=True)]
        for key in sorted(found)
    }
    return _some([f"{key} {here} against {there}" for key, (here, there) in sides.items()], "; ")


def _some(names: Sequence[str], between: str = ", ") -> str:
    return between.join(names[:SHOWN]) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )


def inconsistencies(experiment: Experiment, runs: Runs) -> list[str]:
    """One line for everything that makes complete runs unequal beyond what their names and their
    own lines say.
    """
    pretrain, finetune = (
        [run for run in stage if run.is_complete] for stage in (runs.pretrain, runs.finetune)
    )
    lines = _unequal("pre-training runs", pretrain, experiment.free_keys)
    evaluate = [run for run in runs.evaluate if run.is_complete]
    for (stage, task), mine in sorted(
        grouped([*finetune, *evaluate], lambda run: (run.stage, run.task)).items()
    ):
        what = "fine-tuning" if stage == "finetune" else "evaluation"
        lines += _unequal(f"{what} runs on {task}", mine, experiment.free_keys)
    for what, mine in (
        ("pre-training", pretrain),
        ("fine-tuning", finetune),
        ("evaluation", evaluate),
    ):
        said = {(key, one): run for run in reversed(mine) for key, one in _made_with(run).items()}
        unequal = {
            key: sorted(values)
            for key, values in grouped(said, itemgetter(0)).items()
            if len(values) > 1
        }
        parts = [
            f"{key}: {_some([f'{one[1]} (e.g. {said[one].place})' for one in unequal[key]])}"
            for key in unequal
        ]
        lines += [f"{what} runs were made with different {_some(parts, '; ')}"] if parts else []
    for row, mine in grouped([*finetune, *evaluate]).items():
        for (seed, _), used in _encoders(mine).items():
            if len(used) > 1:
                lines.append(
                    f"{row}, pre-training seed {seed}: its runs began with {len(used)} different"
                    " encoders"
                )
        lines += [f"{row}: {copies}"] if (copies := copied_seeds(mine)) else []
    finished = {(run.name, run.seed): run.finished or "" for run in pretrain}
    for run in (*finetune, *evaluate):
        arm, is_last = (
            str(run.config.get("encoder_arm")),
            float(run.config.get("encoder_fraction", 1.0)) == 1.0,
        )
        if encoder_of(run) and is_last and finished.get((arm, run.pretrain_seed), "") > run.started:
            which = f"{arm} seed {run.pretrain_seed}"
            lines.append(f"{run.place}: began before {which} was trained to its end (anew since?)")
    return lines


def _unequal(what: str, runs: Sequence[Record], free: frozenset[str]) -> list[str]:
    """Lines for what is not the same in all runs, or, where it sets an arm or row apart, not in all
    of its own.
    """
    named = grouped(runs)
    own = {
        name: free.union(*(meant_to_differ(mine, one) for one in named.values()))
        for name, mine in named.items()
    }
    values: dict[tuple[str, str], dict[str, list[Record]]] = {}
    known = {}
    for run in runs:
        same = [one for one in named[run.name] if seeds_of(one) == seeds_of(run)]
        known[run.folder] = settings(run) | (_rates(same) if len(same) > 1 else {})
        data = run.facts.get("data") or {}  # what the encoder decides, which no setting says
        if length := data.get("max_seq_length"):
            known[run.folder]["the length that texts are cut to"] = f"{length} tokens"
        if number := data.get("token_types"):
            known[run.folder]["the token types of a pair"] = str(number)
    for key in sorted({key for mine in known.values() for key in mine}):
        for run in runs:
            owner = run.name if is_within(key, own[run.name]) else ""
            values.setdefault((key, owner), {}).setdefault(
                known[run.folder].get(key, "none"), []
            ).append(run)
    lines = []
    for (key, owner), found in values.items():
        if len(found) > 1:
            shown = sorted(found.items(), key=lambda one: one[0] == "none")[:SHOWN]
            parts = [
                f"{value} ({len(mine)} runs, e.g. {mine[0].name} seed {mine[0].seeds})"
                for value, mine in shown
            ]
            lines.append(
                f"{what}{f' of {owner}' if owner else ''} differ in {key}: {', '.join(parts)}"
            )
    return lines


def copied_seeds(runs: Iterable[Record]) -> str:
    """Which pre-training seeds of one row on one task are none, in words, since their runs began
    with one encoder.
    """
    tuned = (
        run
        for run in runs
        if run.stage != "pretrain" and not run.facts.get("collapsed") and encoder_of(run)
    )
    seeds = [
        sorted({run.pretrain_seed for run in mine}) for mine in grouped(tuned, encoder_of).values()
    ]
    same = next((one for one in seeds if len(one) > 1), None)
    return (
        f"pre-training seeds {listed(map(str, same))} are one and the same encoder" if same else ""
    )


def sweep_table(runs: Runs) -> Table:
    """The table of a folder's runs: of pre-training where there are no others. ValueError: no
    run.
    """
    known = [run for run in runs.records if run.fingerprint and run.config.get("seed") is not None]
    tuned = [run for run in known if run.stage != "pretrain"]
    if not known:
        raise ValueError(
            f"{runs.root}: no run; give the folder of a sweep's runs, or the name of an experiment"
        )
    shown, kind = (tuned, "row") if tuned else (known, "arm")
    said = _said(shown)
    apart = ["experiment"] * (len({run.experiment for run in shown}) > 1)
    keys = list(dict.fromkeys([*apart, *_varying(shown, said)]))
    ends = [key.rpartition(".")[2] for key in keys]
    short = {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}
    named = []
    for run, words in zip(shown, said, strict=True):
        config = flatten(run.config)
        values = {short[key]: words.get(key, str(config.get(key, "default"))) for key in keys}
        label = ", ".join(f"{key}={value}" for key, value in values.items()) or run.name
        label = values[keys[0]] if len(keys) == 1 and keys[0] in NAMES else label
        named.append(run.model_copy(update={"config": run.config | {kind: label}}))
    if tuned:
        titles = {run.task: run.title for run in named}
        is_clear = len(set(titles.values())) == len(titles)
        more = {
            run.task: {"from": "evaluate", "metric": run.metric}
            for run in named
            if run.stage == "evaluate"
        }
        entries = [
            {"name": one if is_clear else key, "task": key} | more.get(key, {})
            for key, one in titles.items()
        ]
    else:
        figures = [key for key in FIGURES if any(key in run.facts for run in named)] or FIGURES[:1]
        names = {
            key: f"held-out {key.removeprefix('validation/').replace('_', ' ')}" for key in figures
        }
        entries = [{"name": name, "from": "pretrain", "metric": key} for key, name in names.items()]
    columns = tuple(map(Column.model_validate, entries))
    arms = {run.name: str(run.config.get("encoder_arm")) if tuned else run.name for run in named}
    experiment = Experiment(
        folder=runs.root,
        name=runs.root.name,
        title=f"What {' and '.join(short.values()) or 'this recipe'} changes",
        columns=columns,
        rows=tuple(
            Row(row=name, label=name, arm=arm, cells=(None,) * len(columns))
            for name, arm in arms.items()
        ),
        matched_by="none",
    )
    # Whatever the rows are named by is what they are about.
    others = [run for run in runs.records if run.stage == "pretrain"] if tuned else []
    swept = [*(_differing(said) or keys), *_differing(_said(others))]
    about = experiment.model_copy(update={"differ_in": tuple(swept)})
    return build_table(about, replace(runs, records=[*others, *named]))


def _said(runs: Sequence[Record]) -> list[dict[str, str]]:
    """The overrides of each run that may set it apart."""
    pairs = [[word.lstrip("+~").partition("=") for word in run.overrides] for run in runs]
    return [
        {key: value for key, _, value in words if not is_within(key, NO_DIFFERENCE)}
        for words in pairs
    ]


def _varying(runs: Sequence[Record], said: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys that the runs' overrides, or else their names or settings, say differently."""
    names = [
        {key: str(one) for key, one in run.config.items() if key in ("arm", "row")} for run in runs
    ]
    of_tasks = [[*map(settings, mine)] for mine in grouped(runs, lambda run: run.task).values()]
    for groups in ([said], [names], of_tasks):  # a task's own settings set no row apart
        if keys := list(dict.fromkeys(key for values in groups for key in _differing(values))):
            values = [one for values in groups for one in values]
            # A multirun names its arms by what differs: that says more than the name.
            own = [key for key in keys if key not in NAMES]
            kinds = [
                len({tuple(one.get(key) for key in some) for one in values}) for some in (own, keys)
            ]
            return own if own and kinds[0] == kinds[1] else keys
    return []


def _differing(values: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for one in values for key in one)
    return [key for key in keys if len({one.get(key) for one in values}) > 1]
