"""Text in, numpy out: files, documents, tokenizers, shards, instances, masks."""
