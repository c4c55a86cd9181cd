"""Judges: a panel that an operator defined says whether a proposed change may land.

A definition names the judges; a round puts one change to all of them, each for itself; a verdict is read strictly, and
whatever is not one counts as a block; calibration tells what a panel is worth.
"""
