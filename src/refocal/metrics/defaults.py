"""Defaults that several measures share."""

from refocal.stats.binning import BINS

__all__ = ["BINS", "CONFIDENT", "LEVEL", "RESAMPLES"]

CONFIDENT = 0.99  # the least confidence of a very confident prediction, as in Mukhoti et al. (2020), Table 6
LEVEL = 0.95  # of confidence intervals and consistency bands
RESAMPLES = 1000  # of a bootstrap or a simulation
