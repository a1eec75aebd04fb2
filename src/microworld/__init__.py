"""A small synthetic world, written as a corpus and as tasks in the official file formats."""
