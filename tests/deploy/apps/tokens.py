"""Brings tokens as a company's own library would: unsigned here, since the broker of the tests takes those."""

from __future__ import annotations

import base64
import json
import os
import time

LIVES_S = 3
"""Short, so that each connection of a test needs more than one."""


def kafka_token(config: str) -> tuple[str, float]:
    """A token for who is named in the configuration; each call leaves a line in a file."""
    if config == "broken":
        raise RuntimeError("the token server is away")
    with open(os.environ["TOKENS_TOLD"], "a", encoding="utf-8") as told:
        told.write(f"{config}\n")
    return unsigned(config)


def unsigned(name: str) -> tuple[str, float]:
    """A token in that name, and when it expires."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": name, "iat": now, "exp": now + LIVES_S})
    token = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."
    return token, now + LIVES_S
