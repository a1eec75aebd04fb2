"""Text in, numpy batches out: tokenizer, corpus, instances, benchmark readers."""
