"""Odd weights and places of model folders for `load`: answers are those of transformers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, as_nobody
from tests.fuzz.making import (
    WEIGHTS,
    Change,
    Tensors,
    agrees,
    bert,
    classifier,
    copy_of,
    edit,
    load,
    put,
    remove,
    reweight,
    same_ids,
    same_masks,
    same_states,
)
from transformers import BertForMaskedLM

CASES = Cases("weights and places")
WORD_ROWS = "bert.embeddings.word_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
PICKLE = "pytorch_model.bin"


@CASES.rows("load")
def weight_case(
    place: Path, change: Change, compare: Callable[[Path, Path], object] = agrees
) -> None:
    """A clean folder whose weights are changed; its answers are those of the clean one."""
    folder = bert(place)
    twin = copy_of(folder)
    change(folder)
    compare(folder, twin)


# Names


def renamed(new: Callable[[str], str]) -> Change:
    def change(tensors: Tensors) -> Tensors:
        return {new(name): tensor for name, tensor in tensors.items()}

    return lambda folder: reweight(folder, change)


def of_tensorflow(name: str) -> str:
    return name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")


def as_pickle(folder: Path, name: str = PICKLE) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / name)
    (folder / WEIGHTS).unlink()


def both(*changes: Change) -> Change:
    """One change after the other."""
    return lambda folder: [change(folder) for change in changes]


module = renamed(lambda name: f"module.{name}")
weight_case("names begin with module.", READ, module)
weight_case("names begin with module., in a pickle", READ, both(module, as_pickle))
for _prefix in ("model.", "_orig_mod."):
    prefixed = renamed(lambda name, prefix=_prefix: prefix + name)  # type: ignore[misc]
    weight_case(f"names begin with {_prefix}", EITHER, prefixed, names=_prefix)
doubled = renamed(lambda name: name.replace("bert.", "bert.bert."))
weight_case("names begin with bert.bert.", EITHER, doubled, names="bert.bert.")
weight_case("layer norms called gamma and beta", READ, renamed(of_tensorflow))


# More tensors, and fewer


def with_tensors(more: Callable[[Tensors], Tensors]) -> Change:
    """Tensors that are added, made of those that there are."""
    return lambda folder: reweight(folder, lambda tensors: {**tensors, **more(tensors)})


def given(**more: torch.Tensor) -> Change:
    return with_tensors(lambda _: more)


def without(*parts: str) -> Change:
    """No tensor whose name has one of the parts."""

    def change(tensors: Tensors) -> Tensors:
        kept = dict(tensors)
        for part in parts:
            kept = {name: tensor for name, tensor in kept.items() if part not in name}
        return kept

    return lambda folder: reweight(folder, change)


POOLER, NEXT = "bert.pooler.dense", "cls.seq_relationship"
positions = {"bert.embeddings.position_ids": torch.arange(64)[None]}
weight_case("a leftover buffer position_ids", READ, given(**positions))
types = {"bert.embeddings.token_type_ids": torch.zeros(1, 64, dtype=torch.long)}
weight_case("a leftover buffer token_type_ids", READ, given(**types))


def projection(tensors: Tensors) -> Tensors:
    return {
        "cls.predictions.decoder.weight": tensors[WORD_ROWS],
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
    }


stored_twice = "the vocabulary projection is stored beside the word embeddings"
weight_case(stored_twice, READ, with_tensors(projection))
next_head = {f"{NEXT}.weight": torch.ones(2, 16), f"{NEXT}.bias": torch.ones(2)}
weight_case("a head for the next sentence that the class does not name", READ, given(**next_head))
pooler = {f"{POOLER}.weight": torch.ones(16, 16), f"{POOLER}.bias": torch.ones(16)}
weight_case("a pooler that the class does not have", READ, given(**pooler))
adapter = {"bert.encoder.layer.0.output.adapter.down.weight": torch.ones(4, 16)}
weight_case("tensors of an adapter inside a layer", REFUSED, given(**adapter), names="adapter")
unknown = given(**{"teacher.weight": torch.ones(4)})
weight_case("a tensor beside the encoder that nobody knows", EITHER, unknown, names="teacher")
weight_case("a tensor of a layer is missing", REFUSED, without("query.bias"), names="query.bias")
no_words = without("word_embeddings")
weight_case("the word embeddings are missing", REFUSED, no_words, names="word_embeddings")


# Types, shapes and numbers


def each(new: Callable[[torch.Tensor], torch.Tensor], part: str = "") -> Change:
    """The tensors whose names have a part are changed."""

    def change(tensors: Tensors) -> Tensors:
        chosen = {name: new(tensor) for name, tensor in tensors.items() if part in name}
        return {**tensors, **chosen}

    return lambda folder: reweight(folder, change)


def fourth_as(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[3] = value
        return tensor

    return change


def agrees_with_rounded(folder: Path, _: Path) -> None:
    """The folder itself, as transformers reads it into float32."""
    agrees(folder)


weight_case("float16", READ, each(torch.Tensor.half), compare=agrees_with_rounded)
weight_case("bfloat16", READ, each(torch.Tensor.bfloat16), compare=agrees_with_rounded)
weight_case("float64", READ, each(torch.Tensor.double))
weight_case("int8, as quantised weights are", REFUSED, each(torch.Tensor.char), names="int8")
transposed = each(torch.t, "intermediate.dense.weight")
weight_case("a matrix is transposed", REFUSED, transposed, names="intermediate")
weight_case("a matrix is flat", REFUSED, each(torch.flatten, QUERY), names="query")
nan = each(fourth_as(float("nan")), QUERY)
weight_case("a NaN in a matrix", REFUSED, nan, names="finite|number")
infinity = each(fourth_as(float("inf")), POSITIONS)
weight_case("an infinity in an embedding that a text has", REFUSED, infinity, names="finite|number")


# Files


def cut(name: str) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:9000])


def in_state(folder: Path) -> None:
    torch.save({"epoch": 3, "state_dict": load_file(folder / WEIGHTS)}, folder / PICKLE)
    (folder / WEIGHTS).unlink()


def other_pickle(folder: Path) -> None:
    tensors = {name: tensor + 1 for name, tensor in load_file(folder / WEIGHTS).items()}
    torch.save(tensors, folder / PICKLE)


def as_tensorflow(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "tf_model.h5")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
weight_case("pytorch_model.bin alone", READ, as_pickle)
weight_case("model.safetensors cut in half", REFUSED, cut(WEIGHTS), names=WEIGHTS)
weight_case("an empty model.safetensors", REFUSED, put(WEIGHTS, ""), names=WEIGHTS)
pointer = put(WEIGHTS, POINTER)
weight_case("a pointer of git-lfs in place of the weights", REFUSED, pointer, names=WEIGHTS)
half_a_pickle = both(as_pickle, cut(PICKLE))
weight_case("pytorch_model.bin cut in half", REFUSED, half_a_pickle, names=PICKLE)
oddity = "a training's state in place of the tensors alone"
weight_case(oddity, EITHER, in_state, names=PICKLE)
weight_case("no weights", REFUSED, remove(WEIGHTS), names="weights")
weight_case("tf_model.h5 alone", REFUSED, as_tensorflow, names="weights")
beside = "beside model.safetensors"
weight_case(f"another model's pytorch_model.bin {beside}", READ, other_pickle)
weight_case(f"an empty pytorch_model.bin {beside}", READ, put(PICKLE, ""))
adapter_alone = both(remove(WEIGHTS, "config.json"), put("adapter_config.json", "{}"))
weight_case("a LoRA adapter's folder", REFUSED, adapter_alone, names="config.json")


def sharded(folder: Path, suffix: str = "safetensors") -> list[Path]:
    """Weights in two files, with their index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(tensors)
    places, files = {}, []
    for number, own in enumerate((names[::2], names[1::2]), 1):
        path = folder / f"{stem}-{number:05d}-of-00002.{suffix}"
        part = {name: tensors[name] for name in own}
        if suffix == "safetensors":
            save_file(part, path, {"format": "pt"})
        else:
            torch.save(part, path)
        places |= dict.fromkeys(own, path.name)
        files.append(path)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return files


def with_index(change: Callable[[dict[str, Any]], object]) -> Change:
    index = f"{WEIGHTS}.index.json"
    return both(sharded, lambda folder: edit(folder / index, change))


def beside_an_index(folder: Path) -> None:
    """The whole file beside an index whose own files are gone."""
    content = (folder / WEIGHTS).read_bytes()
    for path in sharded(folder):
        path.unlink()
    (folder / WEIGHTS).write_bytes(content)


def above(index: dict[str, Any]) -> None:
    index.update(weight_map=dict.fromkeys(index["weight_map"], "../x.safetensors"))


SECOND = "00002-of-00002"
weight_case("weights in two files", READ, sharded)
weight_case("weights in two pickles", READ, lambda folder: sharded(folder, "bin"))
one_missing = "one of two files of weights is missing"
weight_case(one_missing, REFUSED, lambda folder: sharded(folder)[1].unlink(), names=SECOND)
copied = "the second file is a copy of the first"
weight_case(
    copied, REFUSED, lambda folder: shutil.copy(*sharded(folder)), names=f"missing|{SECOND}"
)
no_file = with_index(lambda index: index.update(weight_map={}))
weight_case("an index that lists no file", REFUSED, no_file, names="index.json")
weight_case(
    "an index that lists a file above the folder", REFUSED, with_index(above), names="x.safetensors"
)
no_index = both(sharded, remove(f"{WEIGHTS}.index.json"))
weight_case("two files of weights and no index", EITHER, no_index, names="weights")
weight_case("an index whose files are gone beside a whole file", READ, beside_an_index)


@CASES.add("load", READ)
def untied(place: Path) -> None:
    """A vocabulary projection that is not the word embeddings"""
    agrees(bert(place, tie_word_embeddings=False))


@CASES.add("load", EITHER, "tie|decoder")
def tied_but_other(place: Path) -> None:
    """tie_word_embeddings is true, and the file has another projection"""
    folder = bert(place)
    with_tensors(lambda all_: {"cls.predictions.decoder.weight": all_[WORD_ROWS] + 1})(folder)
    model = BertForMaskedLM.from_pretrained(folder).eval()
    same_masks(load(folder), folder, model)


@CASES.add("load", READ)
def bare_names(place: Path) -> None:
    """A bare encoder: names without the family's prefix"""
    folder = bert(place, "Model")
    predictor = load(folder)
    same_ids(predictor, folder)
    same_states(predictor, folder)


@CASES.rows("load", "classif")
def headless_case(place: Path, part: str) -> None:
    """A classifier without some of its head: its encoder is read, and it does not classify."""
    folder = classifier(place)
    without(part)(folder)
    predictor = load(folder)
    same_states(predictor, folder)
    predictor.classify("the cat")


no_head = "a classifier's configuration, and weights without its head"
headless_case(no_head, REFUSED, "classifier")
headless_case("a classifier without its pooler", REFUSED, "pooler")


# Places


@CASES.rows("load")
def place_case(place: Path, move: Callable[[Path, Path], Path]) -> None:
    """A clean folder that `move(place, folder)` puts elsewhere; returns what is loaded."""
    folder = bert(place)
    twin = copy_of(folder)
    agrees(folder, twin, place=move(place, folder))


def link(place: Path, folder: Path) -> Path:
    (place / "link").symlink_to(folder)
    return place / "link"


def linked_files(place: Path, folder: Path) -> Path:
    (place / "blobs").mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(place / "blobs" / str(number))
        path.symlink_to(Path("..") / "blobs" / str(number))
    return folder


def broken_link(_: Path, folder: Path) -> Path:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("../blobs/1")
    return folder


def in_another(place: Path, folder: Path) -> Path:
    (place / "outer").mkdir()
    folder.rename(place / "outer" / "bert-base")
    return place / "outer"


def of_a_trainer(place: Path, folder: Path) -> Path:
    shutil.copytree(folder, place / "out" / "checkpoint-500")
    folder.rename(place / "out" / "checkpoint-1000")
    return place / "out"


def empty(place: Path, _: Path) -> Path:
    (place / "empty").mkdir()
    return place / "empty"


def called(name: str) -> Callable[[Path, Path], Path]:
    return lambda place, folder: folder.rename(place / name)


odd_name = called("my 'model' [v=1], é 中 #?%20")
oddity = "a path with blanks, quotes, an equals sign, brackets and letters beyond ASCII"
place_case(oddity, READ, odd_name)
of_the_hub = called(f"name@{'0123456789' * 4}")
place_case("a folder's name with @, as the hub's commits are written", READ, of_the_hub)
place_case("the folder is a symbolic link", READ, link)
oddity = "all files are symbolic links to files without suffixes, as in the hub's cache"
place_case(oddity, READ, linked_files)
oddity = "the weights are a symbolic link to nothing"
place_case(oddity, REFUSED, broken_link, names=f"{WEIGHTS}|weights")
oddity = "the file of weights in place of its folder"
place_case(oddity, READ, lambda _, folder: folder / WEIGHTS)
place_case("the folder above the model's", REFUSED, in_another, names="config.json")
oddity = "a trainer's folder: checkpoint-500 and checkpoint-1000 inside"
place_case(oddity, REFUSED, of_a_trainer, names="config.json")
place_case("an empty folder", REFUSED, empty, names="empty")
oddity = "a folder that is not there"
place_case(oddity, REFUSED, lambda place, _: place / "nowhere", names="nowhere")


@CASES.add("load", READ)
def read_only(place: Path) -> None:
    """A folder that one may not write to"""
    folder = bert(place)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    with as_nobody():
        load(folder)
    agrees(folder)


@CASES.add("load", REFUSED, "permission|may not")
def unreadable(place: Path) -> None:
    """Weights that one may not read"""
    folder = bert(place)
    for path in folder.iterdir():
        path.chmod(0o444)
    (folder / WEIGHTS).chmod(0)
    with as_nobody():
        load(folder)


@CASES.add("load", READ)
def relative_path(place: Path) -> None:
    """A relative path with .. and a slash at its end"""
    folder = bert(place)
    here = Path.cwd()
    os.chdir(place)
    try:
        agrees(folder, place="model/../model/")
    finally:
        os.chdir(here)
