"""deploy/kubernetes: the overlays as a real kubectl builds them, and the examples for schedulers and operators."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from caboose_daemon import assets
from caboose_daemon.cli.relay import relay as relay_command
from caboose_daemon.config import load
from caboose_wire.endpoints import split_tcp

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
EXAMPLES = sorted(path.stem for path in KUBERNETES.glob("examples/*.yaml"))
VERSIONS = ("1.29", "1.37")
OPERATORS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
FIRST_WITH_RESOURCES = (1, 21)
"""The kubectl from which on a kustomization names directories under `resources`; Debian 12 has an older one."""
MAX_APPLIED = 250_000
"""Bytes of an object that `kubectl apply` can keep in its annotation, of 262,144."""


def kubectl_version() -> tuple[int, int]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed (Debian: kubernetes-client)")
    command = ["kubectl", "version", "--client", "-o", "json"]
    version = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["clientVersion"]
    return int(version["major"]), int(re.sub(r"\D", "", version["minor"]))


def for_old_kubectl(directory: Path) -> None:
    """Writes the kustomizations as they were before 1.21: directories under `bases`, patches as a list of files."""
    for file in directory.rglob("kustomization.yaml"):
        content = yaml.safe_load(file.read_text())
        folders = [name for name in content["resources"] if not name.endswith(".yaml")]
        content["resources"] = [name for name in content["resources"] if name not in folders]
        content["bases"] = folders
        content["patchesStrategicMerge"] = [patch["path"] for patch in content.pop("patches", [])]
        file.write_text(yaml.safe_dump(content))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    if kubectl_version() < FIRST_WITH_RESOURCES:
        for_old_kubectl(copy)
    return copy


@cache
def _built(directory: Path) -> tuple[Any, ...]:
    ended = subprocess.run(["kubectl", "kustomize", str(directory)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr or kubectl_version() < FIRST_WITH_RESOURCES, ended.stderr
    return tuple(yaml.safe_load_all(ended.stdout))


def built(sources: Path, overlay: str) -> tuple[Any, ...]:
    """The manifests of an overlay."""
    return _built(sources / "overlays" / overlay)


def of_kind(manifests: tuple[Any, ...], kind: str, name: str = "caboose") -> Any:
    (found,) = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_accepts_every_manifest_that_kubectl_builds(sources: Path, overlay: str, version: str) -> None:
    manifests = built(sources, overlay)

    assert {"StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"} <= {
        manifest["kind"] for manifest in manifests
    }
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"training"}
    for manifest in manifests:
        assert len(json.dumps(manifest).encode()) < MAX_APPLIED, manifest["metadata"]["name"]
        if manifest["kind"] not in OPERATORS:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_overlays_add_what_they_say(sources: Path) -> None:
    kinds = {name: {manifest["kind"] for manifest in built(sources, name)} for name in OVERLAYS}

    assert OVERLAYS == ["complete", "monitored", "plain", "relayed"]
    assert kinds["relayed"] - kinds["plain"] == {"DaemonSet"}
    assert kinds["monitored"] - kinds["plain"] == set(OPERATORS)
    assert kinds["complete"] - kinds["monitored"] == {"Ingress"}


def test_the_dashboards_are_those_that_are_shipped(sources: Path) -> None:
    maps = [m for m in built(sources, "monitored") if m["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    shipped = {path.name: json.loads(path.read_text()) for path in assets.dashboards()}

    assert {name: json.loads(text) for each in maps for name, text in each["data"].items()} == shipped


def test_the_complete_daemon_asks_for_a_token_and_is_reached_over_tls(sources: Path, tmp_path: Path) -> None:
    manifests = built(sources, "complete")
    file = tmp_path / "caboose.toml"
    file.write_text(of_kind(manifests, "ConfigMap")["data"]["caboose.toml"])
    config = load(file).daemon
    ingress = of_kind(manifests, "Ingress")
    pod = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    (endpoint,) = of_kind(manifests, "ServiceMonitor")["spec"]["endpoints"]
    (rule,) = ingress["spec"]["rules"]
    (tls,) = ingress["spec"]["tls"]
    (path,) = rule["http"]["paths"]

    assert Path(config.read_token_file).parent == Path("/read-token")
    assert secrets[mounts["/read-token"]] == endpoint["authorization"]["credentials"]["name"]
    assert {"/data", "/etc/caboose", "/keys"} <= mounts.keys(), "the patch adds a mount and takes none"
    assert tls["hosts"] == [rule["host"]]
    assert rule["host"] in config.allowed_hosts
    assert config.external_url == f"https://{rule['host']}"
    assert path["backend"]["service"]["name"] == of_kind(manifests, "Service")["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] == "http"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_policies_are_about_the_daemon_and_its_ports(sources: Path, overlay: str) -> None:
    manifests = built(sources, overlay)
    workload = of_kind(manifests, "StatefulSet")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for port in workload["spec"]["template"]["spec"]["containers"][0]["ports"]}
    policy, budget = of_kind(manifests, "NetworkPolicy")["spec"], of_kind(manifests, "PodDisruptionBudget")["spec"]

    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert [claim["metadata"]["name"] for claim in workload["spec"]["volumeClaimTemplates"]] == ["data"]


def test_the_relays_report_to_the_daemon_with_its_keys_and_ranks_to_that_of_their_node(sources: Path) -> None:
    manifests = built(sources, "relayed")
    relay, service = of_kind(manifests, "DaemonSet", "caboose-relay"), of_kind(manifests, "Service", "caboose-relay")
    policy = of_kind(manifests, "NetworkPolicy", "caboose-relay")["spec"]
    pod = relay["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    given = relay_command.make_context("relay", list(container["args"][1:])).params
    daemon = of_kind(manifests, "Service")
    name, port = split_tcp(given["upstream"])
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == mounts[given["keys"]]]

    assert container["args"][0] == "relay"
    assert (name, port) == (daemon["metadata"]["name"], daemon["spec"]["ports"][0]["port"])
    assert container["envFrom"] == [{"secretRef": {"name": "caboose-agent"}}], "to the daemon it is an agent"
    assert {item["path"] for item in volume["secret"]["items"]} == {"daemon.key_secret", "agents/agent.key"}
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert not daemon["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert given["listen"] == ("tcp://0.0.0.0:5757",)
    assert not given["insecure"]


# Examples


def containers(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each pod specification in a resource of any kind, and its containers that train."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value, [each for each in value["containers"] if each["name"] != "ray-head"]
        for inner in value.values():
            yield from containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from containers(inner)


def example(name: str) -> list[Any]:
    return list(yaml.safe_load_all((KUBERNETES / "examples" / f"{name}.yaml").read_text()))


def test_there_is_an_example_for_each_scheduler() -> None:
    wanted = ["jobset", "kueue", "pytorchjob", "rayjob", "sidecar", "torchrun", "trainjob", "volcano"]
    assert wanted == EXAMPLES


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_kubernetes_accepts_the_examples_and_the_pods_of_custom_resources(name: str, version: str) -> None:
    for manifest in example(name):
        if manifest["apiVersion"] in ("v1", "batch/v1"):
            kubernetes_validate.validate(manifest, version, strict=True)
        for spec, _ in containers(manifest):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec}
            kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("sidecar", "trainjob")])
def test_every_training_container_reports_to_the_daemon_and_proves_its_launch(name: str) -> None:
    training = [each for manifest in example(name) for _, found in containers(manifest) for each in found]

    assert training
    for container in training:
        variables = {each["name"]: each for each in container["env"]}
        assert variables["CABOOSE_ENDPOINT"]["value"] == "tcp://caboose:5757"
        assert variables.keys() >= {"CABOOSE_JOB", "CABOOSE_LAUNCH_SECRET"}
        assert container["envFrom"] == [{"secretRef": {"name": "caboose-agent"}}]


def test_the_train_job_names_every_key_that_an_agent_needs() -> None:
    (job,) = example("trainjob")
    names = {each["name"] for each in job["spec"]["trainer"]["env"]}

    made = {"CABOOSE_SERVER_KEY", "CABOOSE_AGENT_KEY"}  # as `caboose keys new` prints them
    assert names == {"CABOOSE_ENDPOINT", "CABOOSE_JOB", "CABOOSE_LAUNCH_SECRET", *made}


def test_ranks_of_several_pods_meet_at_a_pod_that_exists() -> None:
    service, job = example("torchrun")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = " ".join(container["command"])

    assert f"--rdzv-endpoint={job['metadata']['name']}-0.{service['metadata']['name']}:29500" in command
    assert f"--nnodes={job['spec']['completions']}" in command
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
