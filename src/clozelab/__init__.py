"""clozelab: BERT as an experiment platform. Importing this package imports nothing heavy."""

__version__ = "0.1.0"
