"""A task module on a tiny encoder, as the tests of modules have it, and an encoder folder."""

from __future__ import annotations

from tests.modules.conftest import tiny_module as tiny_module
from tests.runs.conftest import save_encoder as save_encoder
