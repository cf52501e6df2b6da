"""What a configuration may not say, which names are near to a misspelt one, and what is a secret."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from ductor_stream.config_names import DATABASE_OPTIONS
from ductor_stream.errors import InvalidConfig

_BOUNDS = "the store sets it, so that a frozen or cut-off owner is noticed in time"
OWNED_DATABASE: Mapping[str, str] = {
    "application_name": "owners are found by it when a frozen one has to be ended",
    "client_encoding": "always UTF8",
    "connect_timeout": _BOUNDS,
    "keepalives": _BOUNDS,
    "keepalives_count": _BOUNDS,
    "keepalives_idle": _BOUNDS,
    "keepalives_interval": _BOUNDS,
    "replication": "a replication connection cannot run statements",
    "target_session_attrs": "only the primary may be written to: always read-write",
    "tcp_user_timeout": _BOUNDS,
}
"""libpq options that are not passed through, each with its reason (protocol 29)."""

# Settings of the session that would break R3 or R5; the store sets them itself and says so here, before it does.
_OWNED_SESSION = ("synchronous_commit", "default_transaction_isolation", "default_transaction_read_only", "fsync")
_SECRET = re.compile(r"password|passphrase|secret|token$|\.pem$|user\.info|jaas|sasl\.oauthbearer\.config|scram_")
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP)(_[A-Z]+)?$")
HIDDEN = "***"


def check(kafka: Mapping[str, Any], database: Mapping[str, str], url: str | None) -> None:
    """Refuse options on which a rule rests, and unknown ones in the URL. Raises InvalidConfig with the reason."""
    if kafka:
        # The driver is imported only where there are options to check.
        from ductor_stream.kafka.options import check_options

        check_options(kafka)
    for name in database:
        if name in OWNED_DATABASE:
            raise InvalidConfig(f"database option {name!r} cannot be set: {OWNED_DATABASE[name]}")
    if url and "://" not in url and "=" not in url:
        raise InvalidConfig("the database URL is none: it is written as postgresql://USER:PASSWORD@HOST:5432/NAME")
    words = dict(_words(url or ""))
    for name in words:
        if name not in DATABASE_OPTIONS:
            raise InvalidConfig(f"the database URL has an unknown option {name!r}{nearest(name, DATABASE_OPTIONS)}")
    if words.get("target_session_attrs", "read-write") not in ("read-write", "primary", "any"):
        raise InvalidConfig(f"the database URL asks for a standby: {OWNED_DATABASE['target_session_attrs']}")
    session = f"{words.get('options', '')} {database.get('options', '')}"
    for name in _OWNED_SESSION:
        if name in session:
            raise InvalidConfig(f"database options set {name}, on which durability rests: leave it to the store")


def _parts(url: str) -> tuple[str, str, str, str]:
    """Scheme, login (with its ``@``), place, and query, as libpq tells them apart: a password may have ``#`` and ``?``."""
    scheme, _, rest = url.partition("://")
    login, at, place = rest.partition("@")
    if not at or "/" in login:
        login, at, place = "", "", rest
    place, _, query = place.partition("?")
    return scheme, login + at, place, query


def _words(url: str) -> Iterable[tuple[str, str]]:
    if "://" in url:
        return parse_qsl(_parts(url)[-1])
    return re.findall(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)", url)


def connection_string(url: str, options: Mapping[str, str]) -> str:
    """What libpq is given: the options stand behind those of the URL, since a later one wins."""
    if "://" in url:
        scheme, login, place, query = _parts(url)
        query = "&".join(filter(None, (query, urlencode(options, quote_via=quote))))
        return f"{scheme}://{login}{place}{query and '?' + query}"
    return " ".join([*filter(None, [url]), *(f"{key}={_quoted(value)}" for key, value in options.items())])


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`` (did you mean …?)``, or nothing when no known name is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {found[0]!r}?)" if found else ""


def is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes put this variable there for a service whose name happens to begin with ``ductor``."""
    return bool(_SERVICE_LINK.search(variable)) or (variable.endswith("_PORT") and "://" in value)


def shown(key: str, value: Any) -> Any:
    """The value of an option, or ``***`` where it is a secret."""
    if key == "url":  # of a registry: there may be several
        return ",".join(map(shown_url, re.split(r",(?=\w+://)", str(value))))
    return HIDDEN if _SECRET.search(key) else value


def shown_url(url: str) -> str:
    """A URL or libpq's words without passwords."""
    if "://" not in url:
        return re.sub(r"(\w*(?:password|secret|scram_)\w*\s*=\s*)('(?:[^'\\]|\\.)*'|\S*)", rf"\1{HIDDEN}", url)
    scheme, login, place, query = _parts(url)
    user, colon, _ = login.partition(":")
    if colon:
        login = f"{user}:{HIDDEN}@"
    query = "&".join(f"{name}={HIDDEN if _SECRET.search(name) else value}" for name, value in parse_qsl(query))
    return f"{scheme}://{login}{place}{query and '?' + query}"
