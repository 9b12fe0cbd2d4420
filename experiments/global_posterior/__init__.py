"""Does a posterior whose spreads the data determine help? Accuracy, calibration and detection against cheap rivals."""
