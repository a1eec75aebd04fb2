"""What the tables of a plan name: the steps of a run, and the rows behind equal names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clozelab.planning.cost import Costing, DiskUsage
from clozelab.planning.steps import make_steps
from clozelab.planning.sweeps import Corpora, analyse
from clozelab.planning.tables import Table, disk_lines, stage_tables
from clozelab.planning.tasks import ExampleLengths, Sample, Samples
from clozelab.results.experiment import find_experiment


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Costing:
    root = tmp_path_factory.mktemp("family")
    words = ["scale=demo", "finetune.task=mnli,sst2", f"data_dir={root}", f"cache_dir={root}"]
    return analyse(make_steps(find_experiment("family"), words), Corpora(strict=False))


def columns(table: Table, *names: str) -> list[list[str]]:
    headings, rows = table
    present = [heading.name for heading in headings]
    chosen = []
    for cells in rows:
        by_name = dict(zip(present, cells, strict=True))
        chosen.append([by_name[name] for name in names])
    return chosen


def test_each_table_has_the_steps_of_a_run(family: Costing) -> None:
    pretraining, finetuning = stage_tables(family)
    steps = [arm.steps for arm in family.arms]
    assert columns(pretraining, "steps") == [[f"{number:,}"] for number in steps]
    # 1,800 examples in batches of 16 are 113 steps an epoch, and there are two
    assert {*map(tuple, columns(finetuning, "steps"))} == {("226",)}


def test_a_batch_counts_windows_and_no_choices(family: Costing) -> None:
    job = family.tasks[0]
    choices = replace(
        job,
        samples=Samples(Sample(1000, inputs=4.0, characters=50.0, words=10.0), None),
        lengths=ExampleLengths(200.0, inputs=4.0),
    )
    assert choices.steps == 63 * 2
    windows = replace(
        job,
        samples=Samples(Sample(1000, inputs=1.0, characters=5000.0, words=900.0), None),
        lengths=ExampleLengths(1500.0, inputs=4.0),
    )
    assert windows.steps == 250 * 2


def test_equal_tasks_are_told_apart_by_their_rows(family: Costing) -> None:
    _, finetuning = stage_tables(family)
    assert columns(finetuning, "fine-tuning", "rows")[::2] == [
        ["mnli", "bert, roberta, random and 1 more"],
        ["mnli", "albert"],
        ["mnli", "electra"],
    ]


def test_a_plan_without_pre_training_speaks_of_no_prepared_corpus(family: Costing) -> None:
    usage = DiskUsage("runs", free_bytes=10**9, run_bytes=10**6)
    assert disk_lines(replace(family, arms=[]), usage) == (
        "disk: run folders 1.0 MB\nfree: 1.0 GB for runs"
    )
    assert "the corpus is not prepared yet" in disk_lines(family, usage)
