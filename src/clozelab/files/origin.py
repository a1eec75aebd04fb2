"""Where an encoder's weights come from: a pre-training of this project, or somewhere else.

A scale's learning rates suit the encoders that its own runs have pre-trained from fresh weights.
Any other encoder is a given one, also where a run has trained it further.
"""

from __future__ import annotations

from pathlib import Path

from clozelab.text.plain import ReadOnlyJson, read_json

RUN_FILE = "run.json"  # the record of a run, in its folder
# what a run calls the folders of its weights; those of single steps lie in encoders/
FOLDER_NAMES = ("encoder", "generator", "model")
GIVEN = ""


def scale_of_encoder(folder: Path) -> str:
    """Return the scale whose run has pre-trained an encoder from fresh weights; GIVEN for none."""
    record = _record_beside(folder.resolve())
    if record is None:
        return GIVEN
    # Runs say where the weights come from that they begin with; older ones do not.
    begun_with = (record.get("facts") or {}).get("encoder")
    if begun_with is not None:
        return str(begun_with["scale"])
    return str(record.get("scale", GIVEN))


def is_given(folder: str | Path, scale: str) -> bool:
    """Whether an encoder's weights are not those of a run of this scale.

    A folder that is not there yet is taken for one that a run is going to write.
    """
    path = Path(folder)
    return path.is_dir() and scale_of_encoder(path) != scale


def _record_beside(folder: Path) -> ReadOnlyJson | None:
    """The plain record of the run that has written a folder of weights."""
    if folder.parent.name == "encoders":
        run_dir = folder.parent.parent
    elif folder.name in FOLDER_NAMES:
        run_dir = folder.parent
    else:
        return None
    try:
        record = read_json(run_dir / RUN_FILE)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None
