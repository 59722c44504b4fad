"""Evaluation: probes, confidence intervals, calibration, corruptions, feature health, contrasts between trainings and verdicts on them."""
