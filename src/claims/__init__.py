"""Claims about a table of scores over seeds: contrasts, verdicts, power and a report.

It needs no torch and imports nothing of clozelab, which imports it.
"""
