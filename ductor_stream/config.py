"""Where everything is and how it is set: environment, file, defaults, put together and checked once at start-up.

For each setting, the first of these that has it wins:

1. what the caller gives (options of a command);
2. its environment variable (``DUCTOR_KAFKA_BOOTSTRAP``), or the content of the file that the same name with
   ``_FILE`` gives (``DUCTOR_DATABASE_URL_FILE=/run/secrets/url``);
3. the file that ``DUCTOR_CONFIG`` names, else ``ductor.toml`` in the working directory;
4. its default.

``[kafka]`` takes any librdkafka option and ``[database]`` any libpq option, but for those on which a rule of
durability rests; in the environment an option is in capitals with underscores
(``DUCTOR_KAFKA_SASL_PASSWORD``, ``DUCTOR_DATABASE_SSLMODE``). An unknown key is refused with the nearest name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from ductor_stream import config_rules as rules
from ductor_stream.config_names import DATABASE_OPTIONS, KAFKA_OPTIONS, REGISTRY_OPTIONS
from ductor_stream.errors import InvalidConfig
from ductor_stream.protocol.topics import Topics

FILE = "ductor.toml"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be configured, checked. ``load`` makes one."""

    namespace: str | None = None
    """``DUCTOR_NAMESPACE``: takes the place of the name in ``App("shop")``."""
    topic_prefix: str = "ductor."
    """``DUCTOR_TOPIC_PREFIX``: what topics and groups begin with; at most 32 characters."""
    kafka_bootstrap: str | None = None
    """``DUCTOR_KAFKA_BOOTSTRAP``, ``[kafka] bootstrap``: host:port, several with commas."""
    kafka_protocol: Literal["auto", "consumer", "classic"] = "auto"
    """``DUCTOR_KAFKA_PROTOCOL``, ``[kafka] protocol``: of groups; ``auto`` is the new one where the broker has it."""
    kafka_instance_id: str | None = None
    """``DUCTOR_KAFKA_INSTANCE_ID``, ``[kafka] instance_id``: a stable name of this process in its groups."""
    kafka: Mapping[str, str] = {}
    """``[kafka]``: librdkafka's options, checked for names but not for values."""
    database_url: str | None = None
    """``DUCTOR_DATABASE_URL``, ``[database] url``: a Postgres URL or libpq's ``key=value`` words."""
    database: Mapping[str, str] = {}
    """``[database]``: libpq's options; they win over those in the URL."""
    encoding: Literal["json", "avro", "registry"] = "json"
    """``DUCTOR_ENCODING``: of what is produced. Consumed is every form; ``registry`` is Confluent's format."""
    schema_registry: Mapping[str, Any] = {}
    """``DUCTOR_SCHEMA_REGISTRY_URL``, ``[schema_registry] url``: its address, and other options of Confluent's client."""
    partitions: int | None = None
    """``DUCTOR_PARTITIONS``: of inbound and task topics, when they are created."""
    replicas: int | None = None
    """``DUCTOR_REPLICAS``: of topics, when they are created; else the broker's default."""
    health_host: str = "127.0.0.1"
    """``DUCTOR_HEALTH_HOST``: the address on which health and metrics are served."""
    health_port: int | None = None
    """``DUCTOR_HEALTH_PORT``: its port; without one nothing is served, 0 takes a free one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """``DUCTOR_LOG_LEVEL``: what is logged at least; payloads are at ``debug`` only."""
    log_format: Literal["console", "json"] = "console"
    """``DUCTOR_LOG_FORMAT``: lines for people, or one JSON object a line."""

    @property
    def has_database(self) -> bool:
        """Whether a database is configured: by its URL, or by libpq's options alone."""
        return bool(self.database_url or self.database)

    def topics(self, app_namespace: str) -> Topics:
        """The topics of an app, under the configured namespace and prefix. Raises InvalidConfig."""
        return Topics(self.namespace or app_namespace, self.topic_prefix)

    def need_kafka(self) -> str:
        """Kafka's address. Raises InvalidConfig where none is configured."""
        if not self.kafka_bootstrap:
            raise InvalidConfig(f"where is Kafka? Set DUCTOR_KAFKA_BOOTSTRAP, or bootstrap under [kafka] in {FILE}")
        return self.kafka_bootstrap

    def need_database(self) -> str:
        """Postgres's connection string, all options in it. Raises InvalidConfig where none is configured."""
        if not self.has_database:
            raise InvalidConfig(f"where is Postgres? Set DUCTOR_DATABASE_URL, or url under [database] in {FILE}")
        return rules.connection_string(self.database_url or "", self.database)

    def beside(self, kafka_bootstrap: str, database_url: str, namespace: str | None) -> Settings:
        """The same settings with the servers of a ``dev``; a namespace that is configured stays.

        The groups of a ``dev`` are classic ones: who joins them does as its members do, unless he is told otherwise.
        """
        return msgspec.structs.replace(
            self,
            kafka_bootstrap=kafka_bootstrap,
            kafka_protocol="classic" if self.kafka_protocol == "auto" else self.kafka_protocol,
            database_url=database_url,
            namespace=self.namespace or namespace,
        )

    def embedded(self, *, kafka: bool, postgres: bool) -> Settings:
        """Without what is for servers elsewhere, where those of a ``dev`` or ``demo`` are used: who one is, and TLS.

        Of Postgres nothing stays: libpq's options may name another host.
        """
        options = {key: value for key, value in self.kafka.items() if not key.startswith(_WHO_ONE_IS)}
        return msgspec.structs.replace(
            self, kafka=options if kafka else self.kafka, database={} if postgres else self.database
        )

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """An environment in which a process has these settings and no others: that one with ours replaced, and no file."""
        others = {name: value for name, value in environ.items() if not name.startswith("DUCTOR_") or name in OTHERS}
        # A setting with two names is said once.
        variables = {target: variable for variable, target in reversed(VARIABLES.items())}
        found = others | {"DUCTOR_CONFIG": os.devnull}
        for (name, key), variable in variables.items():
            value = getattr(self, name) if key is None else getattr(self, name).get(key)
            if value is not None and value != "":
                found[variable] = _text(value)
        return found

    def plain(self) -> dict[str, Any]:
        """All settings as plain values, secrets among them."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def redacted(self) -> dict[str, Any]:
        """All settings as plain values, with ``***`` in the place of secrets: for logs and for people."""
        plain = self.plain()
        for table in ("kafka", "database", "schema_registry"):
            plain[table] = {key: rules.shown(key, value) for key, value in plain[table].items()}
        if self.database_url:
            plain["database_url"] = rules.shown_url(self.database_url)
        return plain


def load(environ: Mapping[str, str] | None = None, **given: Any) -> Settings:
    """Read the configuration. ``given`` are settings by name that win over all else; None among them is "not given".

    Raises InvalidConfig, which names the variable or the file and key, and the remedy.
    """
    environ = os.environ if environ is None else environ
    found = read_file(environ)
    for name, value in read_environment(environ).items():
        found[name] = {**found.get(name, {}), **value} if isinstance(value, dict) else value
    if unknown := [name for name in given if name not in Settings.__struct_fields__]:
        raise InvalidConfig(f"unknown setting {unknown[0]!r}{rules.nearest(unknown[0], Settings.__struct_fields__)}")
    found.update({name: value for name, value in given.items() if value is not None})
    found.update({name: found[name].lower() for name in _WORDS if isinstance(found.get(name), str)})
    try:
        settings = msgspec.convert(found, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidConfig(_where(str(error))) from error
    rules.check(settings.kafka, settings.database, settings.database_url)
    if settings.encoding == "registry" and "url" not in settings.schema_registry:
        raise InvalidConfig("encoding is registry: set DUCTOR_SCHEMA_REGISTRY_URL too")
    Topics(settings.namespace or "any", settings.topic_prefix)
    return settings


_WHO_ONE_IS = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "oauth_cb")
_WORDS = ("kafka_protocol", "encoding", "log_level", "log_format")


# -- the file -------------------------------------------------------------------------------

_TOP = tuple(
    name
    for name in Settings.__struct_fields__
    if not name.startswith(("kafka", "database")) and name != "schema_registry"
)
_TABLES: Mapping[str, tuple[Mapping[str, str], frozenset[str]]] = {
    "kafka": (
        {
            "bootstrap": "kafka_bootstrap",
            "bootstrap.servers": "kafka_bootstrap",
            "protocol": "kafka_protocol",
            "instance_id": "kafka_instance_id",
        },
        KAFKA_OPTIONS,
    ),
    "database": ({"url": "database_url"}, DATABASE_OPTIONS),
    "schema_registry": ({}, REGISTRY_OPTIONS),
}
"""By table: keys that are settings of their own, and the driver's options."""


def config_file(environ: Mapping[str, str]) -> Path:
    """The file that is read, whether it is there or not."""
    return Path(environ.get("DUCTOR_CONFIG") or FILE)


def read_file(environ: Mapping[str, str]) -> dict[str, Any]:
    """Settings out of the file, not yet converted. Raises InvalidConfig."""
    path = config_file(environ)
    if not environ.get("DUCTOR_CONFIG") and not path.is_file():
        return {}
    if not path.exists():
        raise InvalidConfig(f"DUCTOR_CONFIG names {path}: there is no such file")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfig(f"{path}: {error}") from error
    found: dict[str, Any] = {}
    for key, value in document.items():
        if key in _TABLES:
            if not isinstance(value, dict):
                raise InvalidConfig(f"{path}: {key} is a table: [{key}]")
            _read_table(found, key, value, str(path))
        elif key in _TOP:
            found[key] = value
        else:
            own = [f"[{table}] {name}" for table, (names, _) in _TABLES.items() for name in names]
            raise InvalidConfig(f"{path}: unknown key {key!r}{rules.nearest(key, [*_TOP, *_TABLES, *own])}")
    return found


def _read_table(found: dict[str, Any], table: str, content: Mapping[str, Any], path: str) -> None:
    own, options = _TABLES[table]
    chosen: dict[str, Any] = {}
    for key, value in _flat(content).items():
        if key in own:
            if own[key] in found:
                raise InvalidConfig(f"{path}: [{table}] has {key!r} twice, under two names")
            found[own[key]] = value
        elif key in options:
            chosen[key] = value if table == "schema_registry" else _text(value)
        else:
            raise InvalidConfig(f"{path}: [{table}] has an unknown key {key!r}{rules.nearest(key, [*own, *options])}")
    if chosen:
        found[table] = chosen


def _flat(content: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Keys with dots: TOML makes tables of ``sasl.password = "x"`` where it is not quoted."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat.update(_flat(value, f"{start}{key}.") if isinstance(value, dict) else {f"{start}{key}": value})
    return flat


# -- the environment ------------------------------------------------------------------------


def _variable(table: str, key: str) -> str:
    return f"DUCTOR_{table}_{key}".upper().replace(".", "_")


VARIABLES: dict[str, tuple[str, str | None]] = {
    **{_variable(table, key): (table, key) for table, (_, options) in _TABLES.items() for key in options},
    **{f"DUCTOR_{name.upper()}": (name, None) for name in _TOP},
    **{_variable(table, key): (name, None) for table, (own, _) in _TABLES.items() for key, name in own.items()},
}
"""Environment variable -> setting, or table and option."""

OTHERS: dict[str, str] = {
    "DUCTOR_CONFIG": "the configuration file, instead of `ductor.toml` in the working directory",
    "DUCTOR_CACHE_DIR": "where `dev` keeps what it has fetched, instead of the user's cache folder",
    "DUCTOR_DEV_PORTS": "the ports, as `FIRST-LAST`, from which `dev` and `demo` take theirs, instead of 20000-32000",
    "DUCTOR_POSTGRES_BIN": "the folder with Postgres's programs for `dev`, instead of those of the extra `dev`",
    "DUCTOR_MAVEN_REPOSITORY": "a mirror that has Kafka's jars, for the installation of the extra `dev`",
}
"""Variables of ours that are read elsewhere, with their meaning."""


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Settings out of environment variables, not yet converted. Raises InvalidConfig."""
    found: dict[str, Any] = {}
    for variable, value in environ.items():
        # An empty variable is how compose files and charts leave one out.
        ours = variable.startswith("DUCTOR_") and variable not in OTHERS
        if not ours or not value or rules.is_service_link(variable, value):
            continue
        target = VARIABLES.get(variable)
        if target is None and variable.endswith("_FILE"):
            target = VARIABLES.get(variable.removesuffix("_FILE"))
            value = _content(variable, value, environ) if target else value
        if target is None:
            # Other software may have names of its own here, so only what looks like a slip is refused.
            if near := rules.nearest(variable.removesuffix("_FILE"), [*VARIABLES, *OTHERS], cutoff=0.88):
                raise InvalidConfig(f"unknown variable {variable}{near}")
        elif target[1] is None:
            found[target[0]] = value
        else:
            found.setdefault(target[0], {})[target[1]] = value
    return found


def _content(variable: str, path: str, environ: Mapping[str, str]) -> str:
    if variable.removesuffix("_FILE") in environ:
        raise InvalidConfig(f"{variable} and {variable.removesuffix('_FILE')} are both set; unset one")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{variable}: {error}") from error


def _where(problem: str) -> str:
    """msgspec's message with the setting in front, by the name that people set it by."""
    text, _, path = problem.partition(" - at `$.")
    name = path.rstrip("`")
    if text.startswith("Invalid enum value"):
        text += f", it may be {', '.join(get_args(get_type_hints(Settings)[name]))}"
    known = {setting: variable for variable, (setting, option) in reversed(VARIABLES.items()) if option is None}
    return f"{name} ({known[name]}): {text}" if name in known else problem


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
