"""LightningModules: one for pre-training and one per task family."""
