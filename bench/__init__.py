"""How fast ductor_stream is on this machine: ``python -m bench`` (see README.md). Not part of the installed package."""
