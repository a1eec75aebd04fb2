"""Readers of benchmark file formats and what turns their examples into token rows."""
