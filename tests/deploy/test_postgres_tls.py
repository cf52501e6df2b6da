"""TLS to each Postgres that is installed here: its own where it was built with it, else that of a front before it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import trustme
from deploy.tls_front import tls_front
from support import until

from ductor_stream.config import load
from ductor_stream.dev.binaries import installations
from ductor_stream.dev.postgres import EmbeddedPostgres
from ductor_stream.errors import StoreUnavailable
from ductor_stream.store.migrate import check, migrate


@contextmanager
def with_tls(server: EmbeddedPostgres, data: Path, certificate: trustme.LeafCert) -> Iterator[tuple[int, bool]]:
    """Make it answer to TLS: the port, and whether it does so itself."""
    place, owner = urlsplit(server.url), data.stat()
    assert place.hostname and place.port
    certificate.private_key_and_cert_chain_pem.write_to_path(data / "server.key")
    certificate.cert_chain_pems[0].write_to_path(data / "server.crt")
    for name in ("server.key", "server.crt"):
        (data / name).chmod(0o600)
        os.chown(data / name, owner.st_uid, owner.st_gid)
    with psycopg.connect(server.url, autocommit=True) as connection:
        try:
            connection.execute("alter system set ssl = on")
        except psycopg.errors.InvalidParameterValue as error:
            assert "not supported by this build" in str(error)
            itself = False
        else:
            connection.execute("select pg_reload_conf()")
            until(lambda: _asks_for_tls(server.url), what="TLS")
            itself = True
    if itself:
        yield place.port, True
        return
    with tls_front((place.hostname, place.port), data / "server.key") as front:
        yield front.port, False


def _asks_for_tls(url: str) -> bool:
    with psycopg.connect(url, sslmode="prefer") as connection:
        return bool(connection.pgconn.ssl_in_use)


@pytest.mark.parametrize("installation", installations(), ids=lambda path: str(path.parent.name))
def test_the_certificate_of_postgres_is_checked(installation: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    for name, signed in (("ours.pem", authority), ("other.pem", trustme.CA())):
        signed.cert_pem.write_to_path(tmp_path / name)
    server = EmbeddedPostgres(tmp_path / "postgres", binaries=installation)
    server.start()
    try:
        with with_tls(server, tmp_path / "postgres/data", authority.issue_cert("127.0.0.1")) as (port, itself):
            place = urlsplit(server.url)
            url = place._replace(netloc=f"{place.username}:{place.password}@127.0.0.1:{port}").geturl()
            given = {"DUCTOR_DATABASE_URL": url, "DUCTOR_DATABASE_SSLMODE": "verify-full"}
            trusting = load(given | {"DUCTOR_DATABASE_SSLROOTCERT": str(tmp_path / "ours.pem")}).need_database()
            assert migrate(trusting)
            check(trusting)
            with psycopg.connect(trusting) as connection:
                row = connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone()
                assert row == (itself,) and connection.pgconn.ssl_in_use
            wrong = load(given | {"DUCTOR_DATABASE_SSLROOTCERT": str(tmp_path / "other.pem")}).need_database()
            with pytest.raises(StoreUnavailable, match="certificate verify failed"):
                migrate(wrong)
    finally:
        server.stop()
