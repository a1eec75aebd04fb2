"""Members of the BERT family: one file each, named as its model_type; nobody lists them."""
