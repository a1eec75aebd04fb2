"""Sweeps and how their jobs are started."""
