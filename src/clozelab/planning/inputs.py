"""Inputs of an experiment by name: what `inputs.NAME=` gives, filled in before anything else.

An experiment that declares inputs is a form. Filling it makes an ordinary experiment, with links to
what was given, and every verb reads that one:

    clozelab reproduce worth_it inputs.encoder=FOLDER inputs.text=FOLDER inputs.task=intent.yaml
    RUNS_DIR/worth_it/adapt/given/worth_it/paper.yaml   # filled; says the checksums
    RUNS_DIR/worth_it/adapt/given/encoder               # a link, and so are text/ and tasks/

So later commands need not say them again, and records name no path (config.GIVEN). A folder of runs
keeps to one encoder and one text. Tasks may be added: each has its own runs.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from glob import has_magic
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from claims.text.did_you_mean import hint, nearest
from claims.text.safe_yaml import own_text
from clozelab.config import GIVEN
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.paths import files_below, matching_files, resolve_path, texts_of
from clozelab.files.digests import digest, file_sha256
from clozelab.files.public import PUBLIC_ENCODERS, encoder_folder
from clozelab.launch.experiments import PAPER
from clozelab.launch.own_task import (
    COLUMN_WORDS,
    describe_doubtful_target,
    describe_likely_groups,
    settings_of_words,
)
from clozelab.launch.processes import run_verb
from clozelab.models.locate import find_model, may_have_head
from clozelab.readers.remote import is_url
from clozelab.readers.tables import table_format
from clozelab.results.experiment import Experiment, is_filled_form, open_experiment, read_yaml
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.terminal import path_of
from clozelab.text.did_you_mean import values_of
from clozelab.text.paths import CONF_DIR
from clozelab.text.plain import Json, JsonObject, flatten

PREFIX = "inputs."
VOCABULARIES = ("tokenizer.json", "vocab.txt")
# what of a form's paper.yaml a filled one does not have
OF_A_FORM = ("inputs", "longer_vocabularies", "scale")
TASK = "${inputs.task}"
TITLE = "${inputs.task.title}"
FILES = "${inputs.tasks}"  # the folder of links to the files of tasks
TASK_LINKS = "tasks"  # its name
READING_VERBS = ("plan", "doctor", "reproduce")  # verbs for which texts and tasks are read
# what of a task's data names files, and below it each of several: test_files.A, train_extra.0
FILE_SETTINGS = ("_file", "_files", "_extra")
OF_FILES = "/files"  # behind a task's name: the checksum of its files alone
OF_FIELDS = "/fields"  # behind a text's name: the checksum of how it is read
FORM = "/form"  # beside the checksums: the name of the form
TEXT_SETTINGS = ("corpus.sources.0.text_field", "corpus.sources.0.format")


@dataclass
class GivenTask:
    """A task that was given: a choice of conf/task, or a file of the user's own."""

    name: str
    title: str
    node: JsonObject | None = None  # what its YAML is to say; None for a choice of conf/task
    files: dict[str, Path] = field(default_factory=dict)  # name in the folder of links -> file


@dataclass
class Given:
    """Every input as it was given."""

    names: Collection[str]  # of the form's inputs
    links: dict[str, Path] = field(default_factory=dict)  # name below GIVEN -> what it is
    values: dict[str, str] = field(default_factory=dict)  # input -> what stands for `${inputs.X}`
    checksums: dict[str, str] = field(default_factory=dict)
    tasks: list[GivenTask] = field(default_factory=list)


Look = Callable[[Given, str, str, Mapping[str, str]], None]
"""Looks at one input: adds to what is given, by its name, what is said and the other words."""


def fill(verb: str, words: Sequence[str]) -> list[str]:
    """A verb's words in which a form's name is the place of the filled experiment.

    ValueError for an input that is missing, unknown or no such thing, or other than before.
    """
    name = next((word for word in words if "=" not in word and word[:1] != "-"), None)
    form = _form_of(name)
    inputs = [word for word in words if word.startswith(PREFIX)]
    if form is None and inputs:
        raise ValueError(f"{inputs[0]}: {name} declares no inputs (docs/worth-it.md)")
    if form is None:
        _check_called_by_folder(verb, name, words)
        return list(words)
    _refuse_bare_names(words, form)
    settings = {"scale": str(form.scale), "experiment": form.name} | values_of(words)
    base = Path(path_of("runs_dir", settings), settings["experiment"], settings["scale"], GIVEN)
    filled = base / settings["experiment"]
    if inputs:
        said = values_of(word.removeprefix(PREFIX) for word in inputs)
        _check_names(verb, form, said)
        given = look_at_inputs(form, said, settings)
        _refuse_others(filled, given)
        _write(form, given, filled, settings)
    elif not (filled / PAPER).is_file():
        raise ValueError(f"{form.name} has inputs, and none is given: {_usage(verb, form)}")
    else:
        _check_filled(verb, form, filled, settings)
    return _words_of_filled(words, form, str(name), filled)


def _check_called_by_folder(verb: str, name: str | None, words: Sequence[str]) -> None:
    """Check a filled experiment whose folder is named, as the command that `status` prints does."""
    if name is None or not is_filled_form(Path(name)):
        return
    filled = Path(name)
    form = _form_of(_given_before(filled).get(FORM))
    if form is not None:  # it may be gone
        _check_filled(verb, form, filled, values_of(words))


def _check_filled(verb: str, form: Experiment, filled: Path, settings: Mapping[str, str]) -> None:
    """ValueError where what was given is not as it was when the experiment was filled in."""
    for word in COLUMN_WORDS:
        if word in settings:
            raise ValueError(
                f"{word}={settings[word]}: it is of a labelled file; say all inputs again, too"
            )
    # The other verbs read runs alone.
    if verb in READING_VERBS:
        _refuse_other_reading(form, filled, settings)
        _refuse_missing_vocabularies(form, filled)
        _refuse_changed_texts(form, filled)
        _refuse_changed_files(form, filled)
        _refuse_changed_tasks(filled, path_of("data_dir", settings))


def _refuse_bare_names(words: Sequence[str], form: Experiment) -> None:
    """ValueError for `text=FOLDER` where the form has `inputs.text=FOLDER`."""
    for word in words:
        if word.partition("=")[0] in form.inputs:
            raise ValueError(f"{word}: {form.name} takes it as {PREFIX}{word}")


def _words_of_filled(words: Sequence[str], form: Experiment, name: str, filled: Path) -> list[str]:
    """The filled experiment is called as its folder, and has a scale of its own."""
    of_inputs = (PREFIX, "experiment=", *(f"{word}=" for word in COLUMN_WORDS))
    kept = [word for word in words if not word.startswith(of_inputs)]
    kept[kept.index(name)] = str(filled)
    if "scale" not in values_of(words):
        kept.append(f"scale={form.scale}")
    return kept


def _form_of(name: str | None) -> Experiment | None:
    """The experiment of a name if it declares inputs."""
    if name is None:
        return None
    try:
        experiment = open_experiment(name)
    except ValueError:
        return None  # the verb itself says what is wrong
    return experiment if experiment.inputs else None


def _usage(verb: str, form: Experiment) -> str:
    """The command line that fills a form, and what each of its inputs is."""
    needed = [key for key, spec in form.inputs.items() if spec.is_needed]
    words = " ".join(f"{PREFIX}{key}=..." for key in needed)
    meanings = "; ".join(f"{key}: {form.inputs[key].about}" for key in needed)
    return f"say clozelab {verb} {form.name} {words} ({meanings})"


# What was given


def _check_names(verb: str, form: Experiment, said: Mapping[str, str]) -> None:
    """ValueError for an input that the form does not have, and for one that is missing."""
    for key in said:
        if key not in form.inputs:
            advice = hint(key, form.inputs, prefix=PREFIX)
            raise ValueError(f"{PREFIX}{key}: {form.name} has no such input; {advice}")
    for key, spec in form.inputs.items():
        if spec.is_needed and not said.get(key):
            raise ValueError(f"{PREFIX}{key}= is missing: {_usage(verb, form)}")


def look_at_inputs(form: Experiment, said: Mapping[str, str], settings: Mapping[str, str]) -> Given:
    """Look at every input, the quick ones first; ValueError in one sentence.

    Args:
        form: what is to be filled in.
        said: input -> what the command line says.
        settings: the other words: where relative paths begin, and the columns of a labelled file.
    """
    given = Given(form.inputs)
    looks: dict[str, Look] = {
        "number": _number,
        "file": _file,
        "tasks": _tasks,
        "corpus": _corpus,
        "model": _model,
    }
    for kind, look in looks.items():
        for key, spec in form.inputs.items():
            value = said.get(key, spec.default)
            if spec.kind == kind and value not in (None, ""):
                look(given, key, str(value), settings)
            # Only a default may be missing.
            if spec.kind == kind == "file" and said.get(key) and key not in given.values:
                raise ValueError(
                    f"{PREFIX}{key}={value}: there is no such file in"
                    f" {path_of('data_dir', settings)}, nor from here; say {PREFIX}{key}= to leave"
                    " it out"
                )
    given.checksums |= _read_as(form, settings)
    return given


def _read_as(form: Experiment, settings: Mapping[str, str]) -> dict[str, str]:
    """How the text that is trained on is read, as a checksum beside its own."""
    texts = [key for key, spec in form.inputs.items() if spec.kind == "corpus" and spec.is_needed]
    return {f"{key}{OF_FIELDS}": digest(_fields(settings)) for key in texts}


def _number(given: Given, key: str, value: str, *_: object) -> None:
    """A whole number; what needs one is left out where it is 0."""
    if not value.isdecimal():
        raise ValueError(f"{PREFIX}{key}={value} is no number: give 0 or more")
    given.checksums[key] = value
    if int(value):
        given.values[key] = value


def _file(given: Given, key: str, value: str, settings: Mapping[str, str]) -> None:
    """A file that need not be there: without it, what needs it is left out."""
    file = resolve_path(value, path_of("data_dir", settings))
    if file.is_file():
        given.checksums[key] = file_sha256(file)
        given.values[key] = value
        link = key
        # Records name no place on the disk, so such a file is read behind its link. Else nothing
        # reads the link: it says where the file is that the checksum is of.
        if Path(value).is_absolute():
            link = f"{key}/{file.name}"
            given.values[key] = link
        given.links[link] = file


def _checksum(files: Mapping[str, Path]) -> str:
    """Of the names and the content of a text's files."""
    return digest({name: file_sha256(path) for name, path in files.items()})


def _corpus(given: Given, key: str, value: str, settings: Mapping[str, str]) -> None:
    """Texts: a folder is linked as a whole, files one by one."""
    if is_url(value):
        raise ValueError(f"{PREFIX}{key}={value}: copy the text to this machine first")
    data_dir = path_of("data_dir", settings)
    location = resolve_path(value, data_dir)
    files, _ = matching_files(value, data_dir)
    if not files:
        raise ValueError(
            f"{PREFIX}{key}={value}: no text here; give one folder, file or glob, and no list"
        )
    given.checksums[key] = _checksum(files)
    given.values[key] = key
    if location.is_dir():
        given.links[key] = location
        return
    for name, path in files.items():
        given.links[f"{key}/{name}"] = path
    if len(files) == 1:
        # A single file may be called as it likes; of a folder only texts are read.
        given.values[key] = f"{key}/{next(iter(files))}"
    elif texts_of(files)[0].keys() != files.keys():
        # A glob named files that a folder of these links would leave out.
        given.values[key] = f"{key}/**/*"


def _model(given: Given, key: str, value: str, *_: object) -> None:
    """An encoder's folder, its vocabulary, and how much faster its head has to learn."""
    try:
        folder = find_model(encoder_folder(value))
    except ValueError as error:
        public = nearest(value, PUBLIC_ENCODERS)
        advice = "" if public is None else f"; did you mean '{PREFIX}{key}={public}'?"
        raise ValueError(f"{PREFIX}{key}={error}{advice}") from None
    vocabularies = [name for name in VOCABULARIES if (folder / name).is_file()]
    if not vocabularies:
        raise ValueError(f"{PREFIX}{key}={value} has no {' and no '.join(VOCABULARIES)}")
    # Every job reads it: what is wrong with it is said once, before the first.
    try:
        read_tokenizer(folder)
    except ValueError as error:
        raise ValueError(f"{PREFIX}{key}: {error}") from None
    given.links[key] = folder
    given.checksums[key] = encoder_fingerprint(folder)
    given.values |= {key: key, f"{key}.vocabulary": f"{key}/{vocabularies[0]}"}
    given.values[f"{key}.head_rate"] = "1" if may_have_head(folder) else "10"


def _tasks(given: Given, key: str, value: str, settings: Mapping[str, str]) -> None:
    """Several tasks, with commas; the columns that are named are those of each labelled file."""
    task_words = value.split(",")
    has_table = any(table_format(Path(word)) for word in task_words)
    for column in COLUMN_WORDS:
        if column in settings and not has_table:
            raise ValueError(f"{column}={settings[column]}: {PREFIX}{key}= has no labelled file")
    for word in task_words:
        for task in _tasks_of(word.strip(), settings, key):
            _add_task(given, task, f"{PREFIX}{key}={word}", path_of("data_dir", settings))


def _add_task(given: Given, task: GivenTask, place: str, data_dir: str) -> None:
    """Add a task with its checksums and links; ValueError, at this place, where it cannot be."""
    if task.name in {other.name for other in given.tasks}:
        raise ValueError(f"{place}: two tasks are called {task.name}")
    if task.name in given.names:
        raise ValueError(
            f"{place}: {PREFIX}{task.name} is another input: rename the file, or say another name:"
            " in a task's YAML"
        )
    checksums = _checksums_of_task(task, data_dir)
    given.tasks.append(task)
    try:
        given.checksums[task.name] = digest([task.node, checksums])
    except TypeError:  # from sorting keys
        raise ValueError(
            f"{place}: numbers and words are keys of one mapping: put the numbers into quotes"
        ) from None
    if checksums:
        given.checksums[f"{task.name}{OF_FILES}"] = digest(checksums)
    for name, path in task.files.items():
        given.links[f"{TASK_LINKS}/{task.name}/{name}"] = path


def _tasks_of(word: str, settings: Mapping[str, str], key: str) -> list[GivenTask]:
    """A task by its name in conf/task, or its YAML; of a labelled file one a label column."""
    path = Path(word).expanduser()
    is_table = table_format(path) is not None
    if (is_table or path.suffix == ".yaml") and not path.is_file():
        raise ValueError(f"{PREFIX}{key}={word}: there is no such file, seen from here")
    if is_table:
        return _labelled_file(path, settings)
    if path.suffix == ".yaml":
        return [_described_task(path)]
    in_conf = CONF_DIR / "task" / f"{word}.yaml"
    if in_conf.is_file():
        node = read_yaml(in_conf)
        return [GivenTask(node["name"], str(node.get("title", word)))]
    names = [file.stem for file in (CONF_DIR / "task").glob("*.yaml")]
    raise ValueError(
        f"{PREFIX}{key}={word} is no task: give a task's YAML, a labelled file (csv, tsv, jsonl,"
        f" parquet), or a name; {hint(word, names)}"
    )


def _described_task(path: Path) -> GivenTask:
    """A YAML; files that lie where it says, seen from its own folder, come along with it."""
    node = read_yaml(path)
    name = str(node.get("name") or path.stem)
    task = GivenTask(name, str(node.get("title") or name), node | {"name": name})
    for key, text in (("name", name), ("title", task.title)):
        if "${" in text:
            raise ValueError(f"{path}: the {key} {text!r} would be looked up; leave '${{' out")
    data = node.get("data") or {}
    for setting, value in data.items():
        if setting.endswith(FILE_SETTINGS):
            data[setting] = _with_links(task, setting, value, path.parent)
    return task


def _with_links(task: GivenTask, setting: str, value: object, folder: Path) -> object:
    """A setting that names one file or several, with links in the place of those in a folder."""
    if isinstance(value, dict):
        linked = {}
        for name, child in value.items():
            linked[name] = _with_links(task, f"{setting}-{name}", child, folder)
        return linked
    if isinstance(value, list):
        named = enumerate(value)
        return [_with_links(task, f"{setting}-{name}", child, folder) for name, child in named]
    if not isinstance(value, str) or not value:
        return value
    file = folder / Path(value).expanduser()
    try:
        is_there = file.exists()
    except OSError as error:  # such as a name that is too long
        raise ValueError(f"the task {task.name}, {setting}: {error}") from None
    if not is_there:
        return value
    # Folders tell files of one name apart, such as train/data.csv and dev/data.csv.
    link = file.name
    if task.files.get(link, file) != file:
        link = f"{setting}-{file.name}"
    task.files[link] = file
    return f"{FILES}/{task.name}/{link}"


def _checksums_of_task(task: GivenTask, data_dir: str) -> dict[str, str]:
    """The checksum of each file that a task names: of its links, and of others below data_dir."""
    checksums = {name: file_sha256(path) for name, path in task.files.items()}
    data = (task.node or {}).get("data") or {}
    for setting, value in flatten(data).items():
        if isinstance(value, str) and value and not value.startswith(f"{FILES}/"):
            text = value.replace("${data_dir}", data_dir)
            for name, path in _files_named_by(setting, text, data_dir).items():
                checksums[name] = file_sha256(path)
    return checksums


def _files_named_by(setting: str, text: str, data_dir: str) -> dict[str, Path]:
    """The files that a text of a task's data names, if any, below data_dir or from here.

    A setting of one's own may name files, too, and no folder: "/" may be a separator.
    """
    names_files = setting.partition(".")[0].endswith(FILE_SETTINGS)
    # OSError: a text too long for a name; the others: no pattern
    with suppress(OSError, ValueError, NotImplementedError):
        path = resolve_path(text, data_dir)
        if path.is_file() or (names_files and path.exists()):
            return {setting: path}
        if has_magic(text) and (names_files or "/" in text or "." in text):
            files, _ = matching_files(text, data_dir)
            return {f"{setting}/{name}": path for name, path in files.items()}
    return {}


def _labelled_file(path: Path, settings: Mapping[str, str]) -> list[GivenTask]:
    """A table, whose columns `text_column=` and `label_column=` name where it does not say."""
    tasks = []
    for node in settings_of_words(str(path.absolute()), "", settings):
        yaml = "a task's YAML with data"
        data = node["data"]
        doubts = (
            describe_likely_groups(
                path, [*data["text_columns"], data["label_column"]], f"{yaml}.group_column"
            ),
            describe_doubtful_target(
                path,
                data["label_column"],
                f"{yaml}.numeric_labels",
                numeric_labels=data["numeric_labels"],
            ),
        )
        for doubt in filter(None, doubts):
            print(f"inputs: {doubt}", file=sys.stderr)
        node["data"]["train_file"] = f"{FILES}/{node['name']}/{path.name}"
        node = {"defaults": ["own@_here_", "_self_"]} | node
        tasks.append(GivenTask(str(node["name"]), str(node["title"]), node, {path.name: path}))
    return tasks


# The filled experiment


def _refuse_others(filled: Path, given: Given) -> None:
    """ValueError where runs lie there of an encoder, text or task that was another one."""
    if not _has_runs(filled):
        return
    before = _given_before(filled)
    for key, checksum in given.checksums.items():
        if before.get(key, checksum) != checksum:
            name = key.removesuffix(OF_FIELDS)
            raise ValueError(
                f"{PREFIX}{name}: {filled.parents[1]} has runs of another {name}, and one table has"
                f" one: say experiment={filled.name}_2 too, which makes a table of its own"
            )


def _has_runs(filled: Path) -> bool:
    return any(filled.parents[1].glob("*/*/*/**/run.json"))


def _remedy(filled: Path) -> str:
    """What to do where an input has changed."""
    return f"say all inputs again, or experiment={filled.name}_2 too where it has runs already"


def _refuse_other_reading(form: Experiment, filled: Path, settings: Mapping[str, str]) -> None:
    """ValueError for a text that is to be read otherwise than when it was given."""
    before = _given_before(filled)
    for key, checksum in _read_as(form, settings).items():
        if before.get(key, checksum) != checksum:
            names = " and ".join(TEXT_SETTINGS)
            raise ValueError(
                f"{PREFIX}{key.removesuffix(OF_FIELDS)}: it was given with other settings of"
                f" {names}: repeat those, or say all inputs again"
            )


def _refuse_missing_vocabularies(form: Experiment, filled: Path) -> None:
    """ValueError where an encoder with more words was to be made, and was not."""
    before = _given_before(filled)
    for key, spec in form.longer_vocabularies.items():
        if before.get(spec.add, "0") != "0" and not (filled.parent / key).is_dir():
            raise ValueError(
                f"{PREFIX}{spec.add}={before[spec.add]}: the encoder with these words was not"
                " written; say all inputs again"
            )


def _refuse_changed_texts(form: Experiment, filled: Path) -> None:
    """ValueError where a text that the verb reads has other content than when it was given."""
    before = _given_before(filled)
    for key, spec in form.inputs.items():
        linked = filled.parent / key
        if spec.kind != "corpus" or key not in before or not linked.exists():
            continue
        # A folder is one link, files have one each.
        files = files_below(linked)
        if linked.is_symlink():
            files = matching_files(str(linked), Path())[0]
        if _checksum(files) != before[key]:
            raise ValueError(
                f"{PREFIX}{key}: the text has changed since it was given; {_remedy(filled)}"
            )


def _refuse_changed_files(form: Experiment, filled: Path) -> None:
    """ValueError where an input that is one file has other content than when it was given."""
    before = _given_before(filled)
    for key, spec in form.inputs.items():
        if spec.kind != "file":
            continue
        linked = filled.parent / key
        if linked.is_dir():
            linked = next(linked.iterdir(), linked)
        if linked.is_file() and before.get(key, "") not in ("", file_sha256(linked)):
            raise ValueError(
                f"{PREFIX}{key}: the file has changed since it was given; {_remedy(filled)}"
            )


def _refuse_changed_tasks(filled: Path, data_dir: str) -> None:
    """ValueError where a file of a task has other content than when it was given."""
    for key, checksum in _given_before(filled).items():
        if not key.endswith(OF_FILES):  # an input, or a task as a whole
            continue
        name = key.removesuffix(OF_FILES)
        task = _task_as_filled(filled, name)
        # A finished experiment needs no files; who reads a link without its file says so.
        are_there = all(file.exists() for file in task.files.values())
        if are_there and digest(_checksums_of_task(task, data_dir)) != checksum:
            raise ValueError(
                f"a file of the task {name} has changed since it was given, or is not in {data_dir}"
                f" (data_dir=) any more; {_remedy(filled)}"
            )


def _task_as_filled(filled: Path, name: str) -> GivenTask:
    """A task as it was given, by its YAML and its links in a filled experiment.

    Its node says FILES again, as when it was given: so `_checksums_of_task` tells links from other
    files, and calls each as before.
    """
    links = filled.parent / TASK_LINKS
    node = read_yaml(filled / "task" / f"{name}.yaml")
    task = GivenTask(name, name, _replace(node, {_place_of_links(filled): FILES}))
    for value in flatten(task.node).values():
        link = str(value).removeprefix(f"{FILES}/{name}/")
        if link != str(value):
            task.files[link] = links / name / link
    return task


def _place_of_links(filled: Path) -> str:
    """The folder of links to the files of tasks, as a filled experiment's files call it."""
    scale = filled.parents[1]
    return f"${{runs_dir}}/{scale.parent.name}/{scale.name}/{GIVEN}/{TASK_LINKS}"


def _given_before(filled: Path) -> Mapping[str, str]:
    """The checksums of an experiment that was filled in; none of one that was not."""
    paper = filled / PAPER
    return read_yaml(paper)["given"] if paper.is_file() else {}


def _write(form: Experiment, given: Given, filled: Path, settings: Mapping[str, str]) -> None:
    """Write the filled experiment, its tasks, the links, and encoders with more words."""
    base = filled.parent
    # Where runs began with longer encoders, these stay as they are.
    if not _has_runs(filled):
        _remove_outdated(form, given, filled)
    _write_links(base, given)
    given_folder = f"${{runs_dir}}/{settings['experiment']}/{settings['scale']}/{GIVEN}"
    filling = _Filling(_replacements(form, given, given_folder), given.tasks)
    paper = read_yaml(form.folder if form.folder.is_file() else form.folder / PAPER)
    for key in OF_A_FORM:
        paper.pop(key, None)
    _write_yaml(filled / PAPER, filling.of(paper) | {"given": given.checksums | {FORM: form.name}})
    for path in [*form.folder.glob("*/*.yaml"), *form.folder.glob("*.md")]:
        copy = filled / path.relative_to(form.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(filling.text(own_text(path, form.folder)), encoding="utf-8")
    for task in given.tasks:
        if task.node is not None:
            # Its column is called so, and a task needs a title.
            node = {"title": task.title} | task.node
            node = _replace(node, {FILES: _place_of_links(filled)})
            _write_yaml(filled / "task" / f"{task.name}.yaml", node)
    for key, spec in form.longer_vocabularies.items():
        if spec.add in given.values and not (base / key).is_dir():
            text = base / given.values[spec.text]
            _lengthen(base / key, base / spec.of, text, given.values[spec.add], settings)


def _remove_outdated(form: Experiment, given: Given, filled: Path) -> None:
    """Remove the encoders with more words that were made of something else.

    Tasks that are added change nothing of them.
    """
    before = _given_before(filled)
    for key, spec in form.longer_vocabularies.items():
        made_of = (spec.of, spec.text, spec.add, f"{spec.text}{OF_FIELDS}")
        if any(before.get(name) != given.checksums.get(name) for name in made_of):
            shutil.rmtree(filled.parent / key, ignore_errors=True)


def _write_links(base: Path, given: Given) -> None:
    """Link to what is given; links of an earlier call go, but those of other tasks."""
    # Resolved before any link goes: somebody may have named one.
    targets = {base / name: target.resolve() for name, target in given.links.items()}
    for key in {name.partition("/")[0] for name in given.links} - {TASK_LINKS}:
        # What is written into a folder that is a link would replace the person's own files.
        shutil.rmtree(base / key, ignore_errors=True)
        (base / key).unlink(missing_ok=True)
    for link, target in targets.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)  # of a task
        link.symlink_to(target)


def _replacements(form: Experiment, given: Given, place: str) -> dict[str, str]:
    """`${inputs.NAME}` -> what stands in its place, of every input that is there."""
    values = dict(given.values)
    for key, spec in form.longer_vocabularies.items():
        if spec.add in values:
            values |= {key: key, f"{key}.vocabulary": f"{key}/tokenizer.json"}
    replaced = {}
    for key, value in values.items():
        is_place = value.partition("/")[0] in (*form.inputs, *form.longer_vocabularies)
        if key in form.inputs and form.inputs[key].kind == "file":
            # Its folder may be called as an input is, such as text/.
            is_place = value in given.links
        replaced[f"${{{PREFIX}{key}}}"] = f"{place}/{value}" if is_place else value
    return replaced


def _write_yaml(path: Path, node: JsonObject) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(node, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _lengthen(
    folder: Path, encoder: Path, text: Path, number: str, settings: Mapping[str, str]
) -> None:
    """Write the encoder with so many words of the text."""
    print(f"inputs: {number} words of the text are added to a copy of the encoder", file=sys.stderr)
    argv = [str(encoder), f"to={folder}", f"text={text}", f"add={number}"]
    if run_verb(["vocabulary", *argv, *_fields(settings)], {}):
        raise ValueError(
            "so no words of the text were added to the encoder; inputs.words=0 leaves that out"
        )


def _fields(settings: Mapping[str, str]) -> list[str]:
    """How the text is read, as `clozelab vocabulary` takes it."""
    arguments = []
    for key in TEXT_SETTINGS:
        # A stage's own setting stands before that of all stages.
        value = settings.get(f"pretrain.{key}", settings.get(key))
        if value is not None:
            arguments.append(f"{key.rpartition('.')[2]}={value}")
    return arguments


@dataclass(frozen=True)
class _Filling:
    """Puts values in the place of `${inputs.NAME}`; an entry that needs what is not given goes.

    An entry of a list that names the task stands once a task.
    """

    replaced: Mapping[str, str]
    tasks: Sequence[GivenTask]

    def of(self, node: Json) -> Json:
        if isinstance(node, dict):
            kept = {key: child for key, child in node.items() if self._is_kept(child)}
            return {key: self.of(child) for key, child in kept.items() if key != "needs"}
        if isinstance(node, list):
            entries: list[Json] = []
            for child in filter(self._is_kept, node):
                entries += map(self.of, self._each(child))
            return entries
        if not isinstance(node, str):
            return node
        text = self.text(node)
        return int(text) if text != node and text.isdecimal() else text

    def text(self, text: str) -> str:
        return str(_replace(text, self.replaced))

    def _is_kept(self, node: Json) -> bool:
        if not isinstance(node, dict) or "needs" not in node:
            return True
        return f"${{{PREFIX}{node['needs']}}}" in self.replaced

    def _each(self, node: Json) -> Iterable[Json]:
        if TASK not in str(node) and TITLE not in str(node):
            return [node]
        return [_replace(node, {TASK: task.name, TITLE: task.title}) for task in self.tasks]


def _replace(node: Json, replaced: Mapping[str, str]) -> Json:
    """A node in whose texts some words are replaced."""
    if isinstance(node, dict):
        return {key: _replace(child, replaced) for key, child in node.items()}
    if isinstance(node, list):
        return [_replace(child, replaced) for child in node]
    if isinstance(node, str):
        for word, value in replaced.items():
            node = node.replace(word, value)
    return node
