"""How a corpus is prepared: texts in shards, passes of a pool of processes, what is settled."""
