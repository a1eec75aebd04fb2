"""From scores over seeds to verdicts on claims: statistics, comparability, corrections.

It decides on types and numbers, and makes no sentence: report/wording.py turns its reasons into
words.
"""
