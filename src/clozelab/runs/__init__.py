"""Run folders: their record, their place, what is found in them."""
