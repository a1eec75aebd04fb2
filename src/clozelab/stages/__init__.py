"""Entry points, one per verb; each at most 80 lines."""
