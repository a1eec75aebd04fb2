"""From run folders to a table of scores: the bridge between runs/ and analysis/."""
