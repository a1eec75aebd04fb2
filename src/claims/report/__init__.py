"""A judged table in words, tables and pictures."""
