"""How well a model does and how sure that is: intervals, calibration, damage."""
