"""An experiment's table and what may be said of it."""
