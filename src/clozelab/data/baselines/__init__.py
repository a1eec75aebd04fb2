"""How far the surface of a text goes, without any pre-training: words, overlap, most frequent tags."""
