"""The Dockerfile and the compose file, as far as they can be judged where there is no container engine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from deploy.containers import dockerfile
from deploy.tooling import ROOT, checked, composed, run

from ductor_stream.dev.properties import broker_properties

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


def test_the_linter_of_dockerfiles_has_nothing_to_say() -> None:
    assert checked("hadolint", "Dockerfile") == ""


def test_the_compose_file_is_valid() -> None:
    checked("docker-compose", "config", "--quiet")


def test_prometheus_looks_at_the_services_that_there_are_and_finds_its_files() -> None:
    services = composed()
    settings = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text("utf-8"))
    looked_at = {
        (name, place["port"])
        for job in settings["scrape_configs"]
        for place in job["dns_sd_configs"]
        for name in place["names"]
    }
    ours = [name for name, service in services.items() if "build" in service and "healthcheck" in service]
    assert looked_at == {(name, dockerfile()["EXPOSE"]) for name in ours if services[name].get("healthcheck")}
    mounted = {Path(each["target"]): Path(each["source"]) for each in services["prometheus"]["volumes"]}
    folder = Path("/etc/prometheus")
    assert mounted[folder / "prometheus.yml"] == ROOT / "deploy" / "prometheus.yml"
    for rules in settings["rule_files"]:
        assert mounted[folder / rules].is_file()


def test_a_misspelt_compose_file_is_refused(tmp_path: Path) -> None:
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    document["services"]["kafka"]["imagee"] = "kafka"
    (tmp_path / "broken.yml").write_text(yaml.safe_dump(document), "utf-8")
    done = run("docker-compose", "--file", str(tmp_path / "broken.yml"), "config", "--quiet")
    assert done.returncode != 0 and "imagee" in done.stderr


def test_the_image_is_not_roots_and_names_no_registry() -> None:
    image = dockerfile()
    user, _, group = image["USER"].partition(":")
    # A number: Kubernetes cannot tell from a name that it is not root.
    assert int(user) > 0 and int(group) > 0
    assert image["ENTRYPOINT"] == ["ductor-stream"]
    sources = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    services = [service["image"] for service in composed().values()]
    for source in [*sources, *services]:
        host = source.split("/")[0] if "/" in source else ""
        assert "." not in host.split(":")[0] and ":" not in host, f"{source} names a registry's host"
    assert all(
        ":" in image for name, service in composed().items() if "build" not in service for image in [service["image"]]
    )


def test_what_the_image_is_built_of_is_enough_for_a_wheel(tmp_path: Path) -> None:
    """The files that the first stage copies, without those that .dockerignore keeps away."""
    build = DOCKERFILE.split("\nFROM ")[1]
    for sources, target in re.findall(r"^COPY ([^$\n]+) (\S+)$", build, re.MULTILINE):
        for source in sources.split():
            here = ROOT / source
            place = tmp_path / (source if target == "./" else target)
            if here.is_dir():
                shutil.copytree(here, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(here, place)
    build_wheel = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(build_wheel, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "out").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "ductor_stream" / "store" / "sql").rglob("*.sql"):
        assert path.relative_to(ROOT).as_posix() in names
    for path in (ROOT / "schemas").glob("*.avsc"):
        assert f"ductor_stream/protocol/schemas/{path.name}" in names
    for path in (ROOT / "docs" / "errors").rglob("*.md"):
        assert f"ductor_stream/cli/errors/{path.relative_to(ROOT / 'docs' / 'errors').as_posix()}" in names
    assert "ductor_stream/py.typed" in names


def test_nothing_that_is_copied_is_kept_away() -> None:
    ignored = {line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text("utf-8").split()}
    copied = {
        source
        for sources in re.findall(r"^COPY (?!--from)([^$\n]+) \S+$", DOCKERFILE, re.MULTILINE)
        for source in sources.split()
    }
    assert copied >= {"pyproject.toml", "ductor_stream", "schemas"}
    assert not copied & ignored and not {"examples", "docs"} & ignored and "!docs/errors" in ignored


def test_the_broker_of_the_compose_file_is_set_as_the_embedded_one() -> None:
    """A property that both have is the same, so that what was tested is what runs; the rest is the place it runs in."""
    tested = broker_properties(1, 2, {})
    given = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in composed()["kafka"]["environment"].items()
    }
    here = {"node.id", "listeners", "advertised.listeners", "listener.security.protocol.map", "controller.quorum.voters",
            "log.dirs", "inter.broker.listener.name"}  # fmt: skip
    assert {name: value for name, value in given.items() if name not in here and tested.get(name) != value} == {}
    assert "group.consumer.session.timeout.ms" in given


@pytest.mark.parametrize("name", ["migrate", "topics", "coordinator", "worker"])
def test_our_containers_can_write_nothing_and_may_do_nothing(name: str) -> None:
    service = composed()[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    if name in ("topics", "worker"):
        assert "DUCTOR_DATABASE_URL" not in service["environment"]


def test_servers_are_reached_from_this_machine_only() -> None:
    for name, service in composed().items():
        for port in service.get("ports", ()):
            assert port["host_ip"] == "127.0.0.1", name
