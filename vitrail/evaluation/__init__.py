"""Evaluation: probes, intervals, calibration, corruptions, feature health, and verdicts on differences between trainings."""
