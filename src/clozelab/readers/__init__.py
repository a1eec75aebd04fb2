"""Readers of the files that users bring: tables, lines, questions and tagged sentences."""
