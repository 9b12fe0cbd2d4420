"""Tests of whether the clients' values of each weight look like samples of a Gaussian, and their histograms."""

from typing import TYPE_CHECKING

from tfp_bfl.contrib.normality.statistics import Normality, normality, normality_summary
from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.contrib.normality.histograms import normality_histograms

# matplotlib is imported when something is drawn.
export_later(__name__, {"normality_histograms": "tfp_bfl.contrib.normality.histograms"})

__all__ = ["Normality", "normality", "normality_histograms", "normality_summary"]
