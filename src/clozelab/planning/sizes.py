"""Which encoder size a budget favours, by the published losses of several sizes and lengths.

A quadratic surface over log(FLOPs per token) and log(tokens) is fitted to the final losses. It
speaks of sizes that were run, at numbers of tokens between those that each of them was run with.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from claims.analysis.comparability import is_within
from clozelab.runs.loss_bands import PLANNED_TOKENS, Band, load_bands, nearest
from clozelab.runs.record import Record

SIZE_KEYS = ("model.num_*", "model.*_size", PLANNED_TOKENS)
LEAST_BANDS = 8  # the surface has six coefficients
STANDARD_ERRORS = 2.0
MOST_LEVERAGE = 0.999
Values: TypeAlias = float | NDArray[np.float64]


class SizeForecast(NamedTuple):
    """Of a size: what a budget buys it, and the loss that is expected then, in nats."""

    name: str
    tokens: float
    loss: float
    error: float  # twice the root mean square of what the fit misses bands by that it leaves out


def bands_of_sizes(run: Record) -> list[Band]:
    """The bands that differ from a pre-training in nothing but size and length."""
    bands = []
    for match in nearest(run, load_bands()):
        if all(is_within(key, SIZE_KEYS) for key in match.differing):
            bands.append(match.band)
    return bands


def forecasts(bands: Sequence[Band], flops: float) -> list[SizeForecast]:
    """What each size is expected to reach with so many FLOPs, the best first.

    Left out are sizes that were not run around the tokens which it buys them, and all of them where
    there are too few bands to fit.
    """
    sizes = np.array([band.flops_per_token for band in bands])
    tokens = np.array([band.tokens[-1] for band in bands])
    losses = np.array([fmean(band.losses[-1]) for band in bands])
    terms = _terms(sizes, tokens)
    if len(bands) < LEAST_BANDS or np.linalg.matrix_rank(terms) < terms.shape[1]:
        return []
    inverse = np.linalg.pinv(terms)
    leverages = np.diag(terms @ inverse)
    # A band that alone determines a coefficient can't be left out.
    if leverages.max() > MOST_LEVERAGE:
        return []
    # The leave-one-out residuals, from the fit with all bands.
    missed = (losses - terms @ inverse @ losses) / (1.0 - leverages)
    error = STANDARD_ERRORS * float(np.sqrt(np.mean(missed**2)))

    expected = []
    names = np.array([band.name for band in bands])
    for name in dict.fromkeys(names.tolist()):
        # Measured FLOPs of one size differ a little from length to length.
        size = sizes[names == name].mean()
        known = tokens[names == name]
        if known.min() <= flops / size <= known.max():
            loss = float(_terms(size, flops / size) @ inverse @ losses)
            expected.append(SizeForecast(name, float(flops / size), loss, error))
    return sorted(expected, key=lambda forecast: forecast.loss)


def _terms(flops_per_token: Values, tokens: Values) -> NDArray[np.float64]:
    """The terms of the surface [..., 6], in logarithms that are near zero."""
    size = np.log(flops_per_token / 1e6)
    length = np.log(tokens / 1e6)
    return np.stack([size**0, size, length, size**2, size * length, length**2], axis=-1)
