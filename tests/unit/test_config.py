"""Configuration: who wins, what is refused and how it is told, and that no secret is shown."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import confluent_kafka
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from ductor_stream.config import Settings, load
from ductor_stream.config_names import DATABASE_OPTIONS, KAFKA_OPTIONS
from ductor_stream.config_rules import shown_url
from ductor_stream.errors import InvalidConfig


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(toml: str = "", **environ: str) -> Settings:
    Path("ductor.toml").write_text(toml)
    return load({f"DUCTOR_{name}": value for name, value in environ.items()})


def test_nothing_configured_is_defaults() -> None:
    settings = load({})
    assert settings == Settings()
    assert (settings.topic_prefix, settings.encoding, settings.health_host) == ("ductor.", "json", "127.0.0.1")
    with pytest.raises(InvalidConfig, match="where is Kafka\\? Set DUCTOR_KAFKA_BOOTSTRAP"):
        settings.need_kafka()
    with pytest.raises(InvalidConfig, match="where is Postgres\\? Set DUCTOR_DATABASE_URL"):
        settings.need_database()


def test_what_is_given_wins_over_the_environment_over_the_file() -> None:
    toml = 'namespace = "file"\ntopic_prefix = "file."\nencoding = "avro"\n[kafka]\nbootstrap = "file:1"\n"linger.ms" = 5\n'
    Path("ductor.toml").write_text(toml)
    environ = {"DUCTOR_NAMESPACE": "env", "DUCTOR_TOPIC_PREFIX": "env.", "DUCTOR_KAFKA_CLIENT_ID": "me"}
    settings = load(environ, namespace="given", database_url=None)
    assert (settings.namespace, settings.topic_prefix, settings.encoding) == ("given", "env.", "avro")
    assert (settings.need_kafka(), settings.kafka) == ("file:1", {"linger.ms": "5", "client.id": "me"})
    topics = settings.topics("shop")
    assert (topics.namespace, topics.prefix) == ("given", "env.")
    assert load({"DUCTOR_CONFIG": "/dev/null"}).topics("shop").namespace == "shop"


def test_the_file_may_be_elsewhere_but_has_to_be_there(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[kafka]\nbootstrap = "other:1"')
    assert load({"DUCTOR_CONFIG": str(other)}).kafka_bootstrap == "other:1"
    with pytest.raises(InvalidConfig, match=r"DUCTOR_CONFIG names .*nope\.toml: there is no such file"):
        load({"DUCTOR_CONFIG": str(tmp_path / "nope.toml")})
    with pytest.raises(InvalidConfig, match=r"^ductor\.toml: "):
        read("kafka = [")
    with pytest.raises(InvalidConfig, match=r"kafka is a table"):
        read('kafka = "here"')


def test_a_secret_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://u:p@h/db\n")
    settings = load({"DUCTOR_DATABASE_URL_FILE": str(secret), "DUCTOR_KAFKA_SASL_PASSWORD_FILE": str(secret)})
    assert settings.database_url == "postgresql://u:p@h/db"
    assert settings.kafka == {"sasl.password": "postgresql://u:p@h/db"}
    # An option whose own name ends like this is not a file of ours.
    option = "sasl.oauthbearer.assertion.file"
    assert load({"DUCTOR_KAFKA_SASL_OAUTHBEARER_ASSERTION_FILE": "/x"}).kafka == {option: "/x"}
    with pytest.raises(InvalidConfig, match="are both set"):
        load({"DUCTOR_DATABASE_URL_FILE": str(secret), "DUCTOR_DATABASE_URL": "x"})
    with pytest.raises(InvalidConfig, match="DUCTOR_DATABASE_URL_FILE: .*No such file"):
        load({"DUCTOR_DATABASE_URL_FILE": str(tmp_path / "nope")})


def test_dotted_keys_need_no_quotes_and_values_become_text() -> None:
    settings = read(
        '[kafka]\nbootstrap.servers = "a:1"\nsasl.username = "u"\nsocket.keepalive.enable = true\nlinger.ms = 5'
    )
    assert settings.kafka_bootstrap == "a:1"
    assert settings.kafka == {"sasl.username": "u", "socket.keepalive.enable": "true", "linger.ms": "5"}


@pytest.mark.parametrize(
    ("toml", "environ", "problem"),
    [
        ('encodng = "json"', {}, r"ductor\.toml: unknown key 'encodng' \(did you mean 'encoding'\?\)"),
        ("[kafak]", {}, r"unknown key 'kafak' \(did you mean 'kafka'\?\)"),
        ("[kafka]\nlingr.ms = 5", {}, r"\[kafka\] has an unknown key 'lingr\.ms' \(did you mean 'linger\.ms'\?\)"),
        ("[database]\nsslmod = 1", {}, r"\[database\] has an unknown key 'sslmod' \(did you mean 'sslmode'\?\)"),
        ('[kafka]\nbootstrap = "a"\n"bootstrap.servers" = "b"', {}, "twice, under two names"),
        ("", {"KAFKA_BOOTSTRP": "x"}, "unknown variable DUCTOR_KAFKA_BOOTSTRP .*'DUCTOR_KAFKA_BOOTSTRAP'"),
        ("", {"DATABSE_URL": "x"}, "unknown variable DUCTOR_DATABSE_URL .*'DUCTOR_DATABASE_URL'"),
        ("", {"HEALTH_PORT": "http"}, r"health_port \(DUCTOR_HEALTH_PORT\): Expected `int"),
        ("", {"ENCODING": "xml"}, r"\(DUCTOR_ENCODING\): Invalid enum value 'xml', it may be json, avro, registry"),
        ('kafka_bootstap = "x"', {}, r"unknown key 'kafka_bootstap' \(did you mean '\[kafka\] bootstrap'\?\)"),
        ("", {"DATABASE_URL": "my-database"}, "the database URL is none: it is written as postgresql://"),
        ("", {"ENCODING": "registry"}, "set DUCTOR_SCHEMA_REGISTRY_URL too"),
        ("", {"TOPIC_PREFIX": "a b"}, "topic prefix 'a b'"),
        ("", {"NAMESPACE": "a.b"}, "namespace 'a.b'"),
        ('[kafka]\nacks = "1"', {}, "'acks' cannot be set: a record that one broker alone has can be lost"),
        ("", {"KAFKA_ENABLE_AUTO_COMMIT": "true"}, "'enable.auto.commit' cannot be set: offsets belong to the commit"),
        ("", {"KAFKA_ISOLATION_LEVEL": "read_uncommitted"}, "'isolation.level' cannot be set"),
        ("", {"DATABASE_TARGET_SESSION_ATTRS": "any"}, "'target_session_attrs' cannot be set: only the primary"),
        ("", {"DATABASE_OPTIONS": "-c synchronous_commit=off"}, "set synchronous_commit, on which durability rests"),
        (
            "",
            {"DATABASE_URL": "host=h options='-c default_transaction_isolation=serializable'"},
            "leave it to the store",
        ),
        ("", {"DATABASE_URL": "postgresql://h/db?sslmod=require"}, "URL has an unknown option 'sslmod' .*'sslmode'"),
        ("", {"DATABASE_URL": "postgresql://h/db?target_session_attrs=standby"}, "asks for a standby"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(toml: str, environ: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        read(toml, **environ)


def test_an_unknown_setting_of_a_caller_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="unknown setting 'kafka_bootstrp' .*'kafka_bootstrap'"):
        load({}, kafka_bootstrp="x")


def test_variables_of_others_are_left_alone() -> None:
    links = {
        "DUCTOR_DATABASE_PORT": "tcp://10.0.0.1:5432",
        "DUCTOR_DATABASE_PORT_5432_TCP_ADDR": "10.0.0.1",
        "DUCTOR_KAFKA_SERVICE_HOST": "10.0.0.2",
        "DUCTOR_KAFKA_SERVICE_PORT_CLIENT": "9092",
        "DUCTOR_TEAM_CHANNEL": "x",
        "DUCTOR_CACHE_DIR": "/tmp",
        "DUCTOR_TEST_KAFKA": "x",
        "DUCTOR_TEST_DATABASE": "x",
        "DUCTOR_HEALTH_PORT": "",
        "KAFKA_BOOTSTRP": "x",
    }
    assert load(links) == Settings()


def test_words_are_taken_in_any_case() -> None:
    settings = load({"DUCTOR_LOG_LEVEL": "INFO", "DUCTOR_ENCODING": "Avro"})
    assert (settings.log_level, settings.encoding) == ("info", "avro")


@pytest.mark.parametrize(
    "environ",
    [
        {"URL": "postgresql://u:old@h:1/db?sslmode=require", "SSLMODE": "disable", "PASSWORD": "a&b ='\\"},
        {
            "URL": "host=h port=1 user=u dbname=db password='o l d' sslmode=require",
            "SSLMODE": "disable",
            "PASSWORD": "a&b ='\\",
        },
        {"HOST": "h", "PORT": "1", "USER": "u", "DBNAME": "db", "SSLMODE": "disable", "PASSWORD": "a&b ='\\"},
    ],
)
def test_options_of_the_database_win_over_its_url(environ: dict[str, str]) -> None:
    settings = load({f"DUCTOR_DATABASE_{name}": value for name, value in environ.items()})
    assert settings.has_database
    assert conninfo_to_dict(settings.need_database()) == {
        "host": "h", "port": "1", "user": "u", "dbname": "db", "sslmode": "disable", "password": "a&b ='\\",
    }  # fmt: skip


def test_no_secret_is_shown() -> None:
    settings = read(
        '[kafka]\nsasl.password = "hush"\nssl.key.pem = "hush"\nsasl.username = "u"\n'
        '[schema_registry]\nurl = "http://u:hush@r"\nbasic.auth.user.info = "u:hush"\n',
        DATABASE_URL="postgresql://u:hush@h/db?sslpassword=hush&sslmode=require",
        DATABASE_PASSWORD="hush",
    )
    shown = settings.redacted()
    assert "hush" not in repr(shown)
    assert shown["database_url"] == "postgresql://u:***@h/db?sslpassword=***&sslmode=require"
    assert shown["kafka"] == {"sasl.password": "***", "ssl.key.pem": "***", "sasl.username": "u"}
    assert shown_url("host=h password='hu sh' user=u") == "host=h password=*** user=u"
    assert shown_url("postgresql://h/db") == "postgresql://h/db"


@pytest.mark.parametrize("password", ["p#ss", "p?ss", "p%23ss"])
def test_a_password_is_what_libpq_takes_for_it(password: str) -> None:
    """It may have what ends the place in other URLs: neither is it shown then, nor does an option become a part of it."""
    url = f"postgresql://u:{password}@h:5/db"
    assert shown_url(url) == "postgresql://u:***@h:5/db"
    settings = load({"DUCTOR_DATABASE_URL": url, "DUCTOR_DATABASE_SSLMODE": "verify-full"})
    meant = conninfo_to_dict(url)
    assert conninfo_to_dict(settings.need_database()) == {**meant, "sslmode": "verify-full"}
    assert meant["password"] in ("p#ss", "p?ss")


def test_no_password_of_several_registries_is_shown() -> None:
    environ = {"DUCTOR_SCHEMA_REGISTRY_URL": "https://a:hush@sr1,https://c:hush@sr2"}
    assert load(environ).redacted()["schema_registry"] == {"url": "https://a:***@sr1,https://c:***@sr2"}


ELSEWHERE = """
log_level = "debug"
partitions = 3
[kafka]
bootstrap = "prod:9093"
security.protocol = "SASL_SSL"
sasl.password = "s3cret"
linger.ms = 5
[database]
host = "prod-db"
dbname = "orders"
password = "s3cret"
[schema_registry]
url = "http://registry"
"""


def test_embedded_servers_get_no_option_that_is_for_servers_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `dev` in a folder that is configured for production migrates, and runs on, the database of production."""
    (tmp_path / "ductor.toml").write_text(ELSEWHERE, "utf-8")
    monkeypatch.chdir(tmp_path)
    given = {"kafka_bootstrap": "127.0.0.1:1", "database_url": "postgresql://me@127.0.0.1:2/postgres"}
    settings = load({}, **given).embedded(kafka=True, postgres=True)
    assert settings.need_database() == given["database_url"]
    assert settings.kafka == {"linger.ms": "5"}
    assert load({}, **given).embedded(kafka=False, postgres=False) == load({}, **given)
    # And the processes of `dev --reload`, which read their settings anew in the same folder, have these and no others.
    environ = {"PATH": "p", "DUCTOR_DATABASE_URL_FILE": "x", "DUCTOR_KAFKA_SSL_CA_PEM": "y", "DUCTOR_CACHE_DIR": "z"}
    theirs = settings.environment(environ)
    assert load(theirs) == settings
    assert (theirs["PATH"], theirs["DUCTOR_CACHE_DIR"]) == ("p", "z")


def test_every_option_of_libpq_is_known() -> None:
    assert {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()} <= DATABASE_OPTIONS


def _librdkafka() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parent
    # Linux wheels keep it beside the package, macOS wheels in it.
    found = [*folder.parent.glob("confluent_kafka.libs/librdkafka*"), *folder.glob(".dylibs/librdkafka*")]
    return ctypes.CDLL(str(found[0]))


def test_every_option_of_librdkafka_is_known(tmp_path: Path) -> None:
    """Its own list, so that a new release of it shows what is missing here."""
    c = ctypes.CDLL(None)
    c.fopen.restype = ctypes.c_void_p
    c.fclose.argtypes = [ctypes.c_void_p]
    show = _librdkafka().rd_kafka_conf_properties_show
    show.argtypes = [ctypes.c_void_p]
    listing = tmp_path / "properties"
    stream = c.fopen(str(listing).encode(), b"w")
    show(stream)
    c.fclose(stream)
    names = set(re.findall(r"^([a-z_0-9.]+) +\|", listing.read_text(), re.MULTILINE))
    # Callbacks, pointers to objects, and what only a C program can use.
    of_programs = {name for name in names if name.endswith("_cb") and name != "oauth_cb"} | {
        "builtin.features", "default_topic_conf", "enabled_events", "interceptors", "internal.termination.signal",
        "log.queue", "msg_order_cmp", "opaque", "ssl_ca", "ssl_certificate", "ssl_engine_callback_data", "ssl_key",
    }  # fmt: skip
    assert len(names) > 150
    assert names - of_programs | {"oauth_cb"} == KAFKA_OPTIONS
