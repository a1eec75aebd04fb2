"""A family of models by its name: each is a file of families/, and nobody lists them."""

from __future__ import annotations

import importlib
import pkgutil

from clozelab.models import families
from clozelab.models.config import EncoderConfig
from clozelab.models.families.bert import Family

# Names with an underscore in config.json, too.
UNDERSCORED = frozenset({"big_bird"})


def family_of(model_type: str) -> Family:
    """The family whose heads an encoder has, and whose names its folders.

    ValueError lists all where there is none of this name.
    """
    modules = [module.name for module in pkgutil.iter_modules(families.__path__)]
    # A name in config.json may have hyphens, as deberta-v2; a module's has underscores.
    known = sorted(name if name in UNDERSCORED else name.replace("_", "-") for name in modules)
    if model_type not in known:
        raise ValueError(f"model_type is {model_type!r}; known families: {', '.join(known)}")
    # Imported on demand: one family needs none of the others.
    module = model_type.replace("-", "_")
    return importlib.import_module(f"{families.__name__}.{module}").FAMILY


def family_for(config: EncoderConfig) -> Family:
    """The family of an encoder, as it stores one of these sizes."""
    return family_of(config.model_type).of(config)
