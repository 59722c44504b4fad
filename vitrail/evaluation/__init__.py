"""Evaluation: probes, confidence intervals, calibration, corruptions, feature health."""
