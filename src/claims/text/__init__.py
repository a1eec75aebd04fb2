"""Numbers, lists and YAML as text."""
