"""Benefit of posterior standard deviations that the data determine: accuracy, calibration and detection against
baselines.
"""
