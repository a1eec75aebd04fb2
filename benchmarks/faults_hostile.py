"""What an experiment, a pickle, an archive or a path of somebody else's does here, as lines of
`make faults`.

The tests are the trials, each kind with its control; nothing is said twice. They run in a process
of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from interleaved import ROOT

MOST_SECONDS = 3000


class Kind(NamedTuple):
    """Trials of one kind: tests of a file, what each does and what must come of it."""

    file: str
    tests: tuple[str, ...]
    done: str
    must: str


GATE, OFFLINE = "tests/test_gate.py", "tests/test_offline.py"
NOTHING, CANARY = "refused in a sentence, nothing run or written", "a canary is written"


def in_gate(done: str, must: str, *tests: str) -> Kind:
    return Kind(GATE, tests, done, must)


KINDS = (
    in_gate("hostile `_target_` in an experiment", NOTHING, "test_no_other_address_is_called"),
    in_gate(
        "hostile places of it: Hydra's keys, resolvers, packages, sweeps, anchors, paths",
        NOTHING,
        "test_nothing_in_a_file_is_more_than_data",
        "test_nothing_in_a_row_is_more_than_data",
        "test_no_verb_takes_more_than_data",
        "test_a_swept_address_is_none_of_the_plain_values",
        "test_what_is_made_is_looked_at_once_more",
        "test_nothing_is_resolved_twice",
    ),
    in_gate("control: the same without the gate", CANARY, "test_the_canary_sings"),
    in_gate(
        "names and links that lead out of their folder",
        NOTHING,
        "test_words_that_nobody_may_say",
        "test_links_do_not_lead_out_of_an_experiment",
    ),
    in_gate(
        "control: places, by the user's own words",
        "they are taken",
        "test_the_users_own_words_may_name_anything",
    ),
    in_gate(
        "pickles as weights, checkpoint, cache, job",
        NOTHING,
        "test_pickles_are_not_unpickled",
        "test_a_pickled_job_is_not_run",
    ),
    in_gate("control: a pickle is unpickled", CANARY, "test_a_pickle_sings"),
    in_gate("zip and tar whose members climb out", NOTHING, "test_archives_are_not_unpacked"),
    in_gate("control: such an archive is unpacked", CANARY, "test_an_archive_climbs"),
    in_gate(
        "an encoder's config.json names other code",
        NOTHING,
        "test_a_shared_encoder_names_parts_alone",
    ),
    Kind(
        OFFLINE,
        ("test_a_tracked_pretraining_needs_no_network", "test_a_small_demo_needs_no_network"),
        "pre-training without a network, W&B on; in the long form fine-tuning and a report too",
        "all of it runs, no name is looked up",
    ),
    Kind(
        OFFLINE,
        ("test_whoever_asks_is_seen",),
        "control: a process that asks for a name",
        "it is seen",
    ),
)


def run(long: bool, scratch: Path) -> list[tuple[str, str, int, int]]:
    """(what was done, what must happen, trials, passed); impossible trials are not counted."""
    tests = []
    for kind in KINDS:
        tests += [(kind.file, test) for test in kind.tests]
    outcomes = outcomes_of(tests, scratch, slow=long)
    rows = []
    for kind in KINDS:
        counts = sum((outcomes[kind.file, test] for test in kind.tests), Counter[bool]())
        rows.append((kind.done, kind.must, counts.total(), counts[True]))
    return rows


def outcomes_of(
    tests: list[tuple[str, str]], scratch: Path, *, slow: bool
) -> dict[tuple[str, str], Counter[bool]]:
    """File and function -> how many of its cases passed, and failed. RuntimeError: pytest broke."""
    found, marks = scratch / "trials.xml", "" if slow else "not slow"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
    command += [f"--junitxml={found}", f"--basetemp={scratch / 'tests'}"]
    done = subprocess.run(
        [*command, *map("::".join, tests)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"pytest ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        )
    outcomes = {test: Counter[bool]() for test in tests}
    for case in ElementTree.parse(found).iter("testcase"):
        name = str(case.get("name")).partition("[")[0]
        file = str(case.get("classname")).replace(".", "/") + ".py"
        if case.find("skipped") is None:
            outcomes[file, name][case.find("failure") is None and case.find("error") is None] += 1
    return outcomes
