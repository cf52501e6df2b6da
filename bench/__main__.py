"""``python -m bench``."""

from __future__ import annotations

from bench.run import main

if __name__ == "__main__":
    main()
