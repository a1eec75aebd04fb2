"""The reference bands of held-out losses: `loss_bands.py OUT.json PLACE ...`

A place is a pack (runs.zip in a folder of docs/results) or a folder of runs. Complete pre-trainings
that differ in nothing but the seed make a band, from three seeds on: the loss of each seed at each
step that all of them have evaluated. Of a seed that several places hold the first run counts.
conf/loss_bands.json, which comes along in the package, is of every pack that is here:

    python benchmarks/loss_bands.py conf/loss_bands.json docs/results/*/runs.zip
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from clozelab.files.atomic import atomic_write_lines
from clozelab.runs.archive import open_archive
from clozelab.runs.find import find
from clozelab.runs.loss_bands import settings_of
from clozelab.runs.record import Record
from clozelab.text.plain import JsonObject
from clozelab.training.measuring import read_rows

LEAST_SEEDS = 3
HEADLINE = "validation/loss"


def read_places(places: Sequence[Path], unpacked: Path) -> Iterator[tuple[str, Record]]:
    """Each complete pre-training with the name of its place; packs are unpacked into a folder."""
    for number, place in enumerate(places):
        if place.is_dir():
            name, records = place.name, find(place).records
        else:
            name, records = place.parent.name, open_archive(place, unpacked / str(number)).records
        for record in records:
            if record.stage == "pretrain" and record.is_complete:
                yield name, record


def losses_by_step(run: Record) -> dict[int, tuple[int, float]]:
    """Step -> (tokens, held-out loss) of each evaluation."""
    rows = read_rows(run.folder / "metrics.csv")
    return {row.step: (row.tokens, row.value) for row in rows if row.key == HEADLINE}


def name_of(run: Record) -> str:
    """`mlm_nsp, L2 H128, microworld, 2,048 entries`: what a band is called."""
    model = run.config["model"]
    objective = run.choices["objective"]
    family = run.config["architecture"]["model_type"]
    if family != "bert":
        objective = f"{family} {objective}"
    size = f"L{model['num_hidden_layers']} H{model['hidden_size']}"
    entries = f"{run.config['tokenizer']['vocab_size']:,} entries"
    return f"{objective}, {size}, {run.config['corpus']['name']}, {entries}"


def band_of(runs: Sequence[tuple[str, Record]]) -> JsonObject | None:
    """The band of runs of one kind; None where too few seeds have a curve."""
    curves: dict[int, dict[int, tuple[int, float]]] = {}
    for _, run in runs:
        losses = losses_by_step(run)
        if losses:
            curves.setdefault(run.seed, losses)
    if len(curves) < LEAST_SEEDS:
        return None
    steps = sorted(set.intersection(*map(set, curves.values())))
    first = runs[0][1]
    tokens = []
    all_losses = []
    for step in steps:
        at_step = [curve[step] for curve in curves.values()]
        tokens.append(round(fmean(tokens for tokens, _ in at_step)))
        all_losses.append([round(loss, 4) for _, loss in at_step])
    return {
        "name": name_of(first),
        "results": sorted({place for place, _ in runs}),
        "settings": settings_of(first),
        "unigram_loss": round(first.facts["unigram_loss"], 4),
        "flops_per_token": round(first.facts["flops"] / first.facts["tokens"]),
        "tokens": tokens,
        "losses": all_losses,
    }


def bands_of(runs: Sequence[tuple[str, Record]]) -> list[JsonObject]:
    """The bands of all kinds, in the order of their names."""
    groups: dict[str, list[tuple[str, Record]]] = {}
    for place, run in runs:
        groups.setdefault(json.dumps(settings_of(run), sort_keys=True), []).append((place, run))
    bands = [band for band in map(band_of, groups.values()) if band]
    return sorted(bands, key=lambda band: (str(band["name"]), str(band["results"])))


def common_settings(bands: Sequence[JsonObject]) -> JsonObject:
    """The most frequent value of each setting: bands then only hold what differs from it."""
    common: JsonObject = {}
    for key in sorted(set(chain.from_iterable(band["settings"] for band in bands))):
        values = Counter(json.dumps(band["settings"].get(key)) for band in bands)
        ((value, _),) = values.most_common(1)
        common[key] = json.loads(value)
    return common


def lines_of(bands: Sequence[JsonObject]) -> Iterator[str]:
    """The file, a band a line, so that a change of one is a change of one line."""
    common = common_settings(bands)
    yield f'{{"settings": {json.dumps(common)},\n"bands": ['
    for number, band in enumerate(bands, 1):
        settings = {}
        for key, value in common.items():
            if band["settings"].get(key) != value:
                settings[key] = band["settings"].get(key)
        comma = "," if number < len(bands) else ""
        yield json.dumps(band | {"settings": settings}) + comma
    yield "]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the bands, a .json")
    parser.add_argument("places", nargs="+", type=Path, help="packs, or folders of runs")
    arguments = parser.parse_args()
    with TemporaryDirectory() as unpacked:
        runs = list(read_places(arguments.places, Path(unpacked)))
        bands = bands_of(runs)
    atomic_write_lines(arguments.out, lines_of(bands))
    print(f"{arguments.out}: {len(bands)} bands of {len(runs)} runs")


if __name__ == "__main__":
    main()
