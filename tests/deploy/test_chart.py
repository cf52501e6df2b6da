"""The Helm chart: what it renders is valid in a cluster, safe by default, and says what is missing."""

from __future__ import annotations

import copy
import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.kubernetes_schemas import problem
from deploy.tooling import CHART, EVERYTHING, ROOT, SMALLEST, helm, named, rendered

VALUES = {"smallest": SMALLEST, "everything": EVERYTHING}


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each object that makes pods, with their spec."""
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield each, each["spec"]["template"]["spec"]
        if each["kind"] == "CronJob":
            job = each["spec"]["jobTemplate"]["spec"]
            yield {**each, "spec": job}, job["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


@pytest.mark.parametrize("values", VALUES)
def test_helm_finds_nothing_to_say_against_it(values: str, tmp_path: Path) -> None:
    done = helm("lint", VALUES[values], tmp_path, "--strict")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", VALUES)
def test_helm_3_makes_the_same_of_it(values: str, tmp_path: Path) -> None:
    """All other tests take the Helm that is installed here, of whatever version."""
    assert helm("lint", VALUES[values], tmp_path, "--strict", program="helm-3").returncode == 0
    done = helm("template", VALUES[values], tmp_path, program="helm-3")
    assert [each for each in yaml.safe_load_all(done.stdout) if each] == rendered(VALUES[values], tmp_path)


@pytest.mark.parametrize("kubernetes", ["1.29", "1.36"])
@pytest.mark.parametrize("values", VALUES)
def test_every_object_is_one_that_a_cluster_takes(values: str, kubernetes: str, tmp_path: Path) -> None:
    objects = rendered(VALUES[values], tmp_path)
    assert {each["kind"] for each in objects} >= {"Deployment", "Job", "PodDisruptionBudget", "Service"}
    found = {f"{each['kind']}/{each['metadata']['name']}": problem(each, kubernetes) for each in objects}
    assert {name: told for name, told in found.items() if told} == {}


def test_the_schemas_are_strict(tmp_path: Path) -> None:
    """What checks the chart is checked itself: each of these must be refused."""
    objects = rendered(EVERYTHING, tmp_path)
    for kind, path, value in (
        ("Deployment", ("spec", "replicas"), "one"),
        ("Deployment", ("spec", "replica"), 1),
        ("Job", ("spec", "backofLimit"), 1),
        ("ScaledObject", ("spec", "minReplicaCountt"), 1),
        ("ServiceMonitor", ("spec", "endpoint"), []),
        ("PrometheusRule", ("spec", "groups"), [{"name": "x", "rules": [{"exprr": "1"}]}]),
    ):
        broken = copy.deepcopy(next(each for each in objects if each["kind"] == kind))
        broken[path[0]][path[1]] = value
        assert problem(broken, "1.36"), f"{kind} with {path} passes"


@pytest.mark.parametrize("values", VALUES)
def test_no_pod_runs_as_root_or_writes_or_talks_to_the_cluster(values: str, tmp_path: Path) -> None:
    for owner, pod in pods(rendered(VALUES[values], tmp_path)):
        name = owner["metadata"]["name"]
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        # Kubernetes' own variables would be taken for ours where a service is called ductor-something.
        assert pod["enableServiceLinks"] is False, name
        for container in containers(pod):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True and context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert {"requests", "limits"} <= container["resources"].keys(), name


@pytest.mark.parametrize("values", VALUES)
def test_secrets_are_files_and_a_worker_gets_no_database(values: str, tmp_path: Path) -> None:
    for owner, pod in pods(rendered(VALUES[values], tmp_path)):
        files = {item["path"] for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", ())
                 for item in source["secret"]["items"]}  # fmt: skip
        for container in containers(pod):
            variables = {each["name"]: each.get("value") for each in container["env"]}
            named_files = {name: value for name, value in variables.items() if name.endswith("_FILE")}
            assert {Path(str(value)).name for value in named_files.values()} == files
            assert not {"DUCTOR_DATABASE_URL", "DUCTOR_KAFKA_SASL_PASSWORD"} & variables.keys()
            if "-worker-" in owner["metadata"]["name"]:
                assert not [name for name in variables if name.startswith("DUCTOR_DATABASE")]


def test_probes_and_the_grace_period(tmp_path: Path) -> None:
    for owner, pod in pods(rendered(EVERYTHING, tmp_path)):
        if owner["kind"] in ("Job", "CronJob"):
            continue
        [container] = pod["containers"]
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
        assert container["ports"] == [{"name": "health", "containerPort": 8080}]
        # A worker drains for at most 25 s, a coordinator for 10 s; then 10 s for the rest.
        assert pod["terminationGracePeriodSeconds"] >= 35


def test_a_deployment_for_each_worker_of_the_values(tmp_path: Path) -> None:
    objects = rendered(EVERYTHING, tmp_path)
    payments = named(objects, "Deployment", "-worker-payments")
    [container] = payments["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["worker", "orders:app", "--queue", "payments", "--concurrency", "50"]
    # KEDA decides how many there are: a number of ours would fight with it at every upgrade.
    assert "replicas" not in payments["spec"]
    rest = named(objects, "Deployment", "-worker-rest")
    assert rest["spec"]["replicas"] == 3
    beside = named(objects, "StatefulSet", "-worker-beside")
    instance = {
        each["name"]: each.get("valueFrom") for each in beside["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert instance["DUCTOR_KAFKA_INSTANCE_ID"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert named(objects, "Service", beside["spec"]["serviceName"])["spec"]["clusterIP"] == "None"
    budgets = {
        each["metadata"]["name"]: each["spec"]["maxUnavailable"]
        for each in objects
        if each["kind"] == "PodDisruptionBudget"
    }
    assert budgets == {
        "shop-ductor-stream-coordinator": 1,
        "shop-ductor-stream-worker-payments": 1,
        "shop-ductor-stream-worker-rest": "50%",
    }


def test_without_workers_in_the_values_there_is_one_for_all_queues(tmp_path: Path) -> None:
    workers = [each for each in rendered(SMALLEST, tmp_path) if "-worker-" in each["metadata"]["name"]]
    assert {(each["kind"], each["metadata"]["name"]) for each in workers} == {
        ("Deployment", "shop-ductor-stream-worker-all"),
        ("PodDisruptionBudget", "shop-ductor-stream-worker-all"),
    }


def test_keda_looks_at_the_lag_of_the_queues_own_group(tmp_path: Path) -> None:
    scaled = named(rendered(EVERYTHING, tmp_path), "ScaledObject", "-worker-payments")
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["topic"] == "acme.shop.tasks.payments"
    assert trigger["metadata"]["consumerGroup"] == "acme.shop.worker.payments"
    assert (trigger["metadata"]["sasl"], trigger["authenticationRef"]) == ("scram_sha512", {"name": "kafka"})


def test_metrics_are_asked_of_coordinators_and_workers_alone(tmp_path: Path) -> None:
    objects = rendered(EVERYTHING, tmp_path)
    selector = named(objects, "Service", "-metrics")["spec"]["selector"].items()
    chosen = {
        owner["metadata"]["name"].removeprefix("shop-ductor-stream-")
        for owner, _ in pods(objects)
        if selector <= owner["spec"]["template"]["metadata"]["labels"].items()
    }
    assert chosen == {"coordinator", "worker-payments", "worker-rest", "worker-beside"}
    monitor = named(objects, "ServiceMonitor", "shop-ductor-stream")
    assert (
        monitor["spec"]["selector"]["matchLabels"].items()
        <= named(objects, "Service", "-metrics")["metadata"]["labels"].items()
    )


def test_migrations_come_before_and_the_late_ones_after(tmp_path: Path) -> None:
    def commands(*options: str) -> dict[str, tuple[str, list[list[str]]]]:
        jobs = [each for each in rendered(EVERYTHING, tmp_path, *options) if each["kind"] == "Job"]
        return {
            job["metadata"]["name"].removeprefix("shop-ductor-stream-"): (
                job["metadata"]["annotations"]["helm.sh/hook"],
                [container["args"] for container in containers(job["spec"]["template"]["spec"])],
            )
            for job in jobs
        }

    roles = ["--coordinator", "shop_coordinator", "--reader", "shop_reader", "--purger", "shop_purger"]
    grants = ["grants", "--apply", *roles]
    topics = ["topics", "create", "orders:app", "--partitions", "12", "--replicas", "3"]
    assert commands() == {
        "migrate": ("pre-install,pre-upgrade", [["migrate", "--phase", "all"], grants]),
        "migrate-post": ("post-upgrade", [["migrate", "--phase", "post"], grants]),
        "topics": ("pre-install,pre-upgrade", [topics]),
    }
    assert commands("--is-upgrade")["migrate"][1][0] == ["migrate", "--phase", "pre"]


def test_runs_that_ended_long_ago_are_purged_at_night_where_that_is_wanted(tmp_path: Path) -> None:
    purge = named(rendered(EVERYTHING, tmp_path), "CronJob", "-purge")["spec"]
    [container] = purge["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["purge", "--closed-before", "45d", "--namespace", "shop", "--json"]
    assert (purge["schedule"], purge["concurrencyPolicy"]) == ("30 3 * * *", "Forbid")
    assert not [each for each in rendered(SMALLEST, tmp_path) if each["kind"] == "CronJob"]


def test_the_owners_url_goes_to_migrations_only(tmp_path: Path) -> None:
    found = {
        owner["metadata"]["name"].removeprefix("shop-ductor-stream-"): item["key"]
        for owner, pod in pods(rendered(EVERYTHING, tmp_path))
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        for item in source["secret"]["items"]
        if item["path"] == "DUCTOR_DATABASE_URL"
    }
    assert found == {
        "coordinator": "coordinator-url",
        "migrate": "owner-url",
        "migrate-post": "owner-url",
        "purge": "purger-url",
    }


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"app": ""}, "app: your app as MODULE:APP"),
        ({"image": {}}, "image.repository: the image that has your app"),
        ({"kafka": {}}, "kafka.bootstrap: host:port of Kafka"),
        ({"coordinator": {}}, "coordinator.secrets: DUCTOR_DATABASE_URL"),
        ({"coordinators": {}}, "coordinators"),
        ({"workers": {"a": {"queue": "x"}}}, "queue"),
        ({"secrets": {"DUCTOR_KAFKA_SASL_PASSWORD_FILE": {"secret": "a", "key": "b"}}}, "_FILE"),
        ({"workers": {"a": {"keda": {"enabled": True}, "queues": ["a"]}}}, "namespace: KEDA needs the app's name"),
        (
            {"namespace": "s", "workers": {"a": {"keda": {"enabled": True}}}},
            "workers.a.queues: KEDA needs to know them",
        ),
        ({"mounts": [{"name": "ca", "path": "/x"}]}, "mounts"),
    ],
)
def test_a_mistake_in_the_values_is_told(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    done = helm("template", {**SMALLEST, **change}, tmp_path)
    assert done.returncode != 0 and told in done.stderr, done.stderr


def test_the_values_of_the_chart_are_those_of_its_schema() -> None:
    """A value that the schema knows has a default and a comment to be found by."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    for part in (None, "coordinator", "workerDefaults", "migrate", "topics", "jobs"):
        described = schema if part is None else schema["properties"][part]
        described = schema["$defs"][described["$ref"].rpartition("/")[2]] if "$ref" in described else described
        given = values if part is None else values[part]
        assert described["properties"].keys() - {"global"} == given.keys(), part


def test_the_chart_is_of_this_release() -> None:
    """An image without a tag is the one of the product's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"] == project["version"]


@pytest.mark.parametrize("options", [(), ("--is-upgrade",)])
@pytest.mark.parametrize("values", VALUES)
def test_the_notes_after_an_installation_can_be_read(values: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Helm shows them only with a cluster at hand: here they are the text of a ConfigMap of a copy of the chart."""
    chart = shutil.copytree(CHART, tmp_path / "chart")
    notes = (chart / "templates" / "NOTES.txt").read_text("utf-8")
    indented = "".join(f"    {line}\n" for line in notes.splitlines())
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  notes: |\n"
    (chart / "templates" / "notes.yaml").write_text(head + indented, "utf-8")
    done = helm("template", VALUES[values], tmp_path, "--show-only", "templates/notes.yaml", *options, chart=chart)
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout)["data"]["notes"]
    assert "orders:app runs as shop-ductor-stream" in shown and "{{" not in shown
    owner = "statefulset" if values == "everything" else "deployment"
    assert f"exec {owner}/shop-ductor-stream-coordinator" in shown
    # The smallest values leave the late migrations to people.
    assert ("migrate --phase post" in shown) == (values == "smallest" and bool(options))
