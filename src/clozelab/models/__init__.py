"""BERT in plain torch: tensors in, tensors out."""
