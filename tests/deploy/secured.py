"""A Kafka that asks everybody who he is, and a Postgres behind TLS, both with certificates of our own."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from deploy.apps.tokens import LIVES_S, unsigned
from deploy.tls_front import TlsFront, tls_front
from http_server import Answer, Asked, HttpServer
from kafka_tools import kafka_acls
from support import free_port

from ductor_stream.dev.kafka import EmbeddedKafka
from ductor_stream.dev.postgres import EmbeddedPostgres

PASSWORD = "letmein"
ANSWER_WITHIN_S = 20


class IdentityServer(HttpServer):
    """Gives tokens by OIDC's flow for programs: to whoever knows the password, in his name (RFC 6749, 4.4)."""

    def next_answer(self, asked: Asked) -> Answer:
        """A token, if the login in the header is right."""
        kind, _, login = asked.headers.get("Authorization", "").partition(" ")
        name, _, password = base64.b64decode(login).decode().partition(":")
        if (asked.method, kind, password) != ("POST", "Basic", PASSWORD) or b"client_credentials" not in asked.body:
            return Answer(401, b'{"error": "invalid_client"}')
        token, _ = unsigned(name)
        body = {"access_token": token, "token_type": "Bearer", "expires_in": LIVES_S}
        return Answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})


@dataclass(frozen=True)
class Secured:
    """Where everything is. ``admin`` and the URL ``superuser`` may do all, and are for the test alone.

    ``ports`` are those of Kafka's listeners, by how one is known there; ``front`` is where Postgres is reached by TLS.
    """

    folder: Path
    admin: AdminClient
    ports: dict[str, int]
    superuser: str
    front: TlsFront
    identities: IdentityServer

    @property
    def authority(self) -> str:
        """The file with the certificate that signed all others."""
        return str(self.folder / "ca.pem")

    def paste(self, commands: str) -> None:
        """Run in a shell what a page has, or what ``ductor-stream acls`` has printed."""
        kafka_acls(self.folder)
        admin = self.folder / "admin.properties"
        admin.write_text("security.protocol=PLAINTEXT\n", "utf-8")
        environment = os.environ | {
            "PATH": os.pathsep.join([str(self.folder), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "BROKER": f"127.0.0.1:{self.ports['admin']}",
            "ADMIN": str(admin),
            "OWNER_URL": re.sub(r"//[^@/]*@", f"//shop_owner:{PASSWORD}@", self.superuser),
        }
        done = subprocess.run(
            ["sh", "-eu"], input=commands, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0 and "Exception" not in done.stderr, done.stdout + done.stderr

    def allow(self, principal: str, acls: Sequence[dict[str, str]]) -> None:
        """What ``ductor-stream acls --json`` says, and nothing more."""
        bindings = [AclBinding(*_binding(principal, acl)) for acl in acls]
        for done in self.admin.create_acls(bindings, request_timeout=ANSWER_WITHIN_S).values():
            done.result(ANSWER_WITHIN_S)

    def forbid(self, principal: str, acls: Sequence[dict[str, str]]) -> None:
        """Take these away again."""
        filters = [AclBindingFilter(*_binding(principal, acl)) for acl in acls]
        for done in self.admin.delete_acls(filters, request_timeout=ANSWER_WITHIN_S).values():
            assert done.result(ANSWER_WITHIN_S), "there was none"

    def scram(self, user: str, bits: int = 512) -> dict[str, str]:
        """The environment of a process that is known by SCRAM over TLS; the user is made."""
        info = ScramCredentialInfo(ScramMechanism[f"SCRAM_SHA_{bits}"], 4096)
        changes: list[Any] = [UserScramCredentialUpsertion(user, info, PASSWORD.encode(), os.urandom(16))]
        for done in self.admin.alter_user_scram_credentials(changes).values():
            done.result(ANSWER_WITHIN_S)
        return self._sasl(f"SCRAM-SHA-{bits}", user)

    def plain(self) -> dict[str, str]:
        """The same for the one user by PLAIN, ``client``."""
        return self._sasl("PLAIN", "client")

    def _sasl(self, mechanism: str, user: str) -> dict[str, str]:
        secret = self.folder / "password"
        secret.write_text(PASSWORD + "\n", "utf-8")
        return {
            "DUCTOR_KAFKA_BOOTSTRAP": f"127.0.0.1:{self.ports['sasl']}",
            "DUCTOR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "DUCTOR_KAFKA_SSL_CA_LOCATION": self.authority,
            "DUCTOR_KAFKA_SASL_MECHANISM": mechanism,
            "DUCTOR_KAFKA_SASL_USERNAME": user,
            "DUCTOR_KAFKA_SASL_PASSWORD_FILE": str(secret),
        }

    def mutual(self, name: str) -> dict[str, str]:
        """That of one who is known by his certificate, whose parts are given as mounted secrets would be."""
        return {
            "DUCTOR_KAFKA_BOOTSTRAP": f"127.0.0.1:{self.ports['mtls']}",
            "DUCTOR_KAFKA_SECURITY_PROTOCOL": "SSL",
            "DUCTOR_KAFKA_SSL_CA_PEM_FILE": self.authority,
            "DUCTOR_KAFKA_SSL_CERTIFICATE_PEM_FILE": str(self.folder / f"{name}.crt"),
            "DUCTOR_KAFKA_SSL_KEY_PEM_FILE": str(self.folder / f"{name}.key"),
        }

    def oauth(self, name: str) -> dict[str, str]:
        """That of one who brings a token (unsigned: the broker is set to take those)."""
        return self._bearer() | {
            "DUCTOR_KAFKA_ENABLE_SASL_OAUTHBEARER_UNSECURE_JWT": "true",
            "DUCTOR_KAFKA_SASL_OAUTHBEARER_CONFIG": f"principal={name}",
        }

    def token(self, name: str) -> dict[str, str]:
        """That of one whose tokens are brought by a function of his own, ``apps/tokens.py``."""
        return self._bearer() | {
            "DUCTOR_KAFKA_OAUTH_CB": "tokens:kafka_token",
            "DUCTOR_KAFKA_SASL_OAUTHBEARER_CONFIG": name,
            "TOKENS_TOLD": str(self.folder / "tokens"),
        }

    def oidc(self, name: str) -> dict[str, str]:
        """That of one who asks an identity server for his tokens."""
        return self._bearer() | {
            "DUCTOR_KAFKA_SASL_OAUTHBEARER_METHOD": "oidc",
            "DUCTOR_KAFKA_SASL_OAUTHBEARER_CLIENT_ID": name,
            "DUCTOR_KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET": PASSWORD,
            "DUCTOR_KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": f"{self.identities.url}/token",
        }

    def _bearer(self) -> dict[str, str]:
        return {
            "DUCTOR_KAFKA_BOOTSTRAP": f"127.0.0.1:{self.ports['oauth']}",
            "DUCTOR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "DUCTOR_KAFKA_SSL_CA_LOCATION": self.authority,
            "DUCTOR_KAFKA_SASL_MECHANISM": "OAUTHBEARER",
        }

    def postgres(self, role: str) -> dict[str, str]:
        """That of a role, with the server's certificate checked to its name."""
        secret = self.folder / f"{role}-url"
        secret.write_text(f"postgresql://{role}:{PASSWORD}@127.0.0.1:{self.front.port}/postgres\n", "utf-8")
        return {
            "DUCTOR_DATABASE_URL_FILE": str(secret),
            "DUCTOR_DATABASE_SSLMODE": "verify-full",
            "DUCTOR_DATABASE_SSLROOTCERT": self.authority,
        }


def _binding(principal: str, acl: dict[str, str]) -> tuple[Any, ...]:
    return (
        ResourceType[acl["resource"].upper()],
        acl["name"],
        ResourcePatternType[acl["pattern"].upper()],
        principal,
        "*",
        AclOperation[acl["operation"].upper()],
        AclPermissionType.ALLOW,
    )


@contextmanager
def secured(folder: Path) -> Iterator[Secured]:
    """Both, for as long as the block lasts."""
    _certificates(folder)
    ports = {name: free_port() for name in ("admin", "sasl", "mtls", "oauth", "controller")}
    kafka = EmbeddedKafka(folder / "kafka", port=ports["admin"], extra=_broker(folder, ports))
    postgres = EmbeddedPostgres(folder / "postgres")
    identities = IdentityServer()
    try:
        kafka.start()
        postgres.start()
        place = urlsplit(postgres.url)
        assert place.hostname and place.port
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
        with tls_front((place.hostname, place.port), folder / "postgres.pem") as front:
            yield Secured(folder, admin, ports, postgres.url, front, identities)
    finally:
        identities.close()
        postgres.stop()
        kafka.stop()


def _certificates(folder: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    named = {
        "broker": ("127.0.0.1", "localhost"),
        "postgres": ("127.0.0.1", "localhost"),
        "worker": ("worker@guarded",),
    }
    for name, identities in named.items():
        certificate = authority.issue_cert(*identities, common_name=name)
        chain = b"".join(part.bytes() for part in certificate.cert_chain_pems)
        # Kafka's PEM store takes PKCS#8 only.
        key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for suffix, content in ((".crt", chain), (".key", pem), (".pem", pem + chain)):
            (folder / (name + suffix)).write_bytes(content)


def _broker(folder: Path, ports: dict[str, int]) -> dict[str, str]:
    module = "org.apache.kafka.common.security"
    listeners = {"SASL": "sasl", "MTLS": "mtls", "OAUTH": "oauth", "ADMIN": "admin"}
    addresses = ",".join(f"{name}://127.0.0.1:{ports[port]}" for name, port in listeners.items())
    return {
        "listeners": f"{addresses},CONTROLLER://127.0.0.1:{ports['controller']}",
        "advertised.listeners": addresses,
        "controller.quorum.voters": f"1@127.0.0.1:{ports['controller']}",
        "listener.security.protocol.map": "SASL:SASL_SSL,MTLS:SSL,OAUTH:SASL_SSL,ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "ADMIN",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
        "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.sasl.plain.sasl.jaas.config": f'{module}.plain.PlainLoginModule required user_client="{PASSWORD}";',
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{module}.oauthbearer.OAuthBearerLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^.*[Cc][Nn]=([^,]+).*$/$1/,DEFAULT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Who comes by the listener without security: the broker itself, and the test that sets all up.
        "super.users": "User:ANONYMOUS",
    }
