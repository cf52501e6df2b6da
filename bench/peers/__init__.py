"""What users would otherwise pick, measured in turn with ours: ``python -m bench.peers`` (see README.md)."""
