"""Files on disk: atomic writes, checksums, locks, packed lines, and which run wrote a folder."""
