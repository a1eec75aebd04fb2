"""LightningDataModules: the corpus, and one per benchmark format."""
