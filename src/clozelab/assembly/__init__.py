"""From a configuration to the objects of a run, and the life of a run."""
