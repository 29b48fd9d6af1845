"""Arithmetic of measurements: calibration, protocol gates, intervals, tests and guarantees.

Pure functions of numbers that were measured elsewhere; nothing here runs a model or reads a file.
`split`, `quantile`, `bcb` and `counters` follow the authors' protocol to the letter. `intervals`,
`paired` and `risk_control` add what it lacks: how sure a figure is, and a choice of setting that
keeps a stated risk with a stated probability.
"""
