"""Optimiser, decay groups, learning-rate schedules."""
