"""Files on disk: atomic writes, checksums, locks, and which run wrote a folder."""
