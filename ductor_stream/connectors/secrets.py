"""Values of secrets, from the worker's environment. They leave this process in a header of a request, and no other way."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ductor_stream.errors import RetryableError
from ductor_stream.work import Secret

SHORTEST = 6
"""Characters that a secret has at least: shorter ones would be found everywhere in answers, and could not be hidden."""

LONG_WORD = 8
"""Characters of a word of a secret that is hidden by itself: ``Bearer`` and ``Basic`` are shorter, and no secret."""

HIDDEN = b"***"
_VISIBLE = re.compile(r"[\x20-\x7e]+")


def value_of(secret: Secret, environ: Mapping[str, str] | None = None) -> str:
    """The value, read anew: a file may have been rotated. Raises RetryableError that never has the value in it.

    Retryable, since another worker may have what this one lacks, and this one after it was corrected.
    """
    environ = os.environ if environ is None else environ
    name = secret.name
    found = environ.get(name)
    if found is None and (path := environ.get(f"{name}_FILE")):
        try:
            found = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise RetryableError(
                f"secret {name}: the file of {name}_FILE cannot be read", type="SecretMissing"
            ) from None
    found = (found or "").strip()
    if not found:
        raise RetryableError(
            f"secret {name}: set {name} or {name}_FILE in the worker's environment", type="SecretMissing"
        )
    if not _VISIBLE.fullmatch(found):
        # Said here, since the HTTP library's message would have the value in it.
        raise RetryableError(f"secret {name} has characters that a header cannot have", type="SecretMissing")
    if len(found) < SHORTEST:
        raise RetryableError(
            f"secret {name} has fewer than {SHORTEST} characters: it could not be kept out of what services answer",
            type="SecretMissing",
        )
    return found


def redacted(content: bytes, secrets: Iterable[str]) -> bytes:
    """What a service answered, without the secrets that it echoes: as they are, or escaped as in JSON or in a URL.

    Of ``Basic dXNlcjpw…`` the second word alone is a secret too.
    """
    words = {word for secret in secrets for word in (secret, *(w for w in secret.split() if len(w) >= LONG_WORD))}
    for word in sorted(words, key=lambda word: (-len(word), word)):
        content = content.replace(word.encode(), HIDDEN)
        if b"\\" in content or b"%" in content:
            content = re.sub(b"".join(map(_written, word.encode())), HIDDEN, content)
    return content


def _written(byte: int) -> bytes:
    """A pattern of all ways to write a visible character."""
    plain = bytes([byte])
    escaped = rb"|\\" + re.escape(plain) if plain in b"\"'\\/" else b""
    return rb"(?:%s|\\u00(?i:%02x)|%%(?i:%02x)%s)" % (re.escape(plain), byte, byte, escaped)
