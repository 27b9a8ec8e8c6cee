"""deploy/: every file is checked with the tool that reads it, and every daemon argument in it is valid."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from caboose_daemon import assets
from caboose_daemon.cli.daemon import daemon as daemon_command
from caboose_daemon.cli.relay import relay as relay_command
from caboose_daemon.config import SECTIONS, Config, load
from caboose_daemon.ops.grafana_push import FOLDER_UID, SOURCE_NAME, SOURCE_UID
from caboose_daemon.rules import RULES
from support.processes import clean_environment, wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OLDEST = "1.29"
"""The first Kubernetes with sidecars enabled by default."""
NEWEST = "1.37"
OPERATORS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
"""Kinds of the Prometheus operator, which are not part of Kubernetes."""


def run(*command: str, **settings: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **settings)


def succeeded(ended: "subprocess.CompletedProcess[str]") -> str:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def accepted(arguments: list[str]) -> dict[str, Any]:
    """The parsed arguments of `caboose daemon`, without running it."""
    assert arguments[0] == "daemon"
    return daemon_command.make_context("daemon", arguments[1:]).params


# caboose.example.toml


def test_the_example_has_every_key_with_its_default() -> None:
    path = DEPLOY / "caboose.example.toml"
    config = load(path)

    assert config == Config()
    text = path.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^\[([\w.]+)\]\n(.*?)(?=^\[|\Z)", text, flags=re.MULTILINE | re.DOTALL))
    wanted = {name: getattr(Config(), name) for name in SECTIONS}
    wanted |= {f"rules.{rule.name}": rule.config_class() for rule in RULES}
    assert sections.keys() == wanted.keys()
    for name, section in wanted.items():
        keys = re.findall(r"^(\w+) = ", sections[name], flags=re.MULTILINE)
        assert keys == [field.name for field in fields(section)], name
        assert len(re.findall(r"^# .*\n(?=\w+ = )", sections[name], flags=re.MULTILINE)) == len(keys), "each explained"


def test_the_generated_files_are_up_to_date() -> None:
    ended = run(sys.executable, str(DEPLOY / "generate.py"), "--check", env=clean_environment())

    assert ended.returncode == 0, ended.stderr


# Prometheus and Alertmanager


@pytest.mark.parametrize("name", ["prometheus.yml", "remote-write.yml"])
def test_prometheus_accepts_its_configuration_with_the_rules(tmp_path: Path, name: str) -> None:
    text = (DEPLOY / "prometheus" / name).read_text(encoding="utf-8")
    copy = tmp_path / "prometheus.yml"
    copy.write_text(text.replace("/etc/prometheus/rules", str(assets.folder("alerts"))))

    assert copy.read_text() != text
    succeeded(run("promtool", "check", "config", str(copy)))
    assert yaml.safe_load(text)["scrape_configs"][0]["job_name"] == "caboose", "the alerts expect this name"


def test_writing_to_victoria_metrics_changes_nothing_else() -> None:
    plain, written = (
        yaml.safe_load((DEPLOY / "prometheus" / name).read_text(encoding="utf-8"))
        for name in ("prometheus.yml", "remote-write.yml")
    )

    assert [target["url"] for target in written.pop("remote_write")] == ["http://victoria-metrics:8428/api/v1/write"]
    assert written == plain


def test_alertmanager_accepts_its_configuration() -> None:
    assert "SUCCESS" in succeeded(run("amtool", "check-config", str(DEPLOY / "alertmanager" / "alertmanager.yml")))


def test_promtool_accepts_the_groups_of_the_prometheus_rule(tmp_path: Path) -> None:
    groups = [group for resource in manifests("operator/prometheusrules.yaml") for group in resource["spec"]["groups"]]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": groups}))
    shipped = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in assets.alerts()]

    output = succeeded(run("promtool", "check", "rules", str(file)))

    assert f"{sum(len(group['rules']) for group in groups)} rules found" in output
    assert groups == [group for content in shipped for group in content["groups"]]


# Kubernetes


def manifests(*names: str) -> list[Any]:
    """The manifests of these files; of none, those of the daemon, of the operator and of the sidecar."""
    names = names or ("base/*.yaml", "operator/*.yaml", "examples/sidecar.yaml")
    paths = [path for name in names for path in sorted(KUBERNETES.glob(name)) if path.name != "kustomization.yaml"]
    return [found for path in paths for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def of_kind(kind: str) -> Any:
    (found,) = [manifest for manifest in manifests() if manifest["kind"] == kind]
    return found


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_accepts_every_manifest(version: str) -> None:
    checked = [manifest for manifest in manifests() if manifest["kind"] not in OPERATORS]

    kinds = {"ConfigMap", "StatefulSet", "Service", "Job", "PodDisruptionBudget", "NetworkPolicy"}
    assert {manifest["kind"] for manifest in checked} == kinds
    for manifest in checked:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_misspelt_key_is_rejected() -> None:
    service = of_kind("Service")
    service["spec"]["selectors"] = service["spec"].pop("selector")

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, NEWEST, strict=True)


def test_the_service_selects_the_daemon_and_the_service_monitor_the_service() -> None:
    service, monitor, workload = of_kind("Service"), of_kind("ServiceMonitor"), of_kind("StatefulSet")
    pod = workload["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    (endpoint,) = monitor["spec"]["endpoints"]

    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert workload["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    assert {p["name"]: p["containerPort"] for p in container["ports"]} == ports == {"reports": 5757, "http": 9757}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= {p["name"] for p in container["ports"]}
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert ports[endpoint["port"]] == 9757
    assert endpoint["path"] == "/metrics"
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "caboose", "the alerts expect this name"


def test_the_pod_monitor_selects_the_sidecar_and_not_the_daemon() -> None:
    monitor, pod = of_kind("PodMonitor"), of_kind("Job")["spec"]["template"]
    (sidecar,) = pod["spec"]["initContainers"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"]

    assert wanted.items() <= pod["metadata"]["labels"].items()
    assert not wanted.items() <= of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
    assert not of_kind("Service")["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in sidecar["ports"]}
    assert pod["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "caboose"


def test_the_sidecar_starts_before_the_training_and_lets_the_job_complete() -> None:
    pod = of_kind("Job")["spec"]["template"]["spec"]
    (sidecar,) = pod["initContainers"]
    (training,) = pod["containers"]

    assert sidecar["restartPolicy"] == "Always", "required for a native sidecar"
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/healthz", (
        "the training waits for it, but not for its journal"
    )
    assert 120 < accepted(sidecar["args"])["linger_seconds"] < pod["terminationGracePeriodSeconds"] - 10
    assert pod["restartPolicy"] == "Never"
    assert "caboose" not in training["name"]
    assert accepted(sidecar["args"])["listen"] == "tcp://127.0.0.1:5757", "on the pod's loopback, without keys"


def test_no_container_runs_as_root_or_can_become_root() -> None:
    workload, job = of_kind("StatefulSet")["spec"]["template"]["spec"], of_kind("Job")["spec"]["template"]["spec"]
    for pod, container in ((workload, workload["containers"][0]), (job, job["initContainers"][0])):
        context = {**pod.get("securityContext", {}), **container["securityContext"]}
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == 65532
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_the_configuration_of_the_daemon_is_valid_and_its_files_are_mounted(tmp_path: Path) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text(of_kind("ConfigMap")["data"]["caboose.toml"])
    config = load(file).daemon
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    secret = {item["path"] for item in volumes[mounts["/keys"]]["secret"]["items"]}
    claims = {claim["metadata"]["name"] for claim in of_kind("StatefulSet")["spec"]["volumeClaimTemplates"]}

    assert accepted(container["args"])["config_file"] == Path("/etc/caboose/caboose.toml")
    assert volumes[mounts["/etc/caboose"]]["configMap"]["name"] == of_kind("ConfigMap")["metadata"]["name"]
    assert mounts[config.data_dir] in claims
    assert config.keys == "/keys"
    assert secret == {"daemon.key_secret", "agents/agent.key", "token"}, "as `caboose keys new` lays them out"
    assert config.token_file == "/keys/token"


# compose


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def test_compose_mounts_existing_files_and_depends_on_existing_services() -> None:
    content = compose()
    services = content["services"]
    not_made = () if assets.dashboards() else ("../dashboards/grafana",)

    assert services.keys() == {"keys", "caboose", "prometheus", "alertmanager", "grafana"}
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= services.keys(), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists() or source in not_made, source
            else:
                assert source in content["volumes"], source
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_only_the_reports_port_is_reachable_from_other_machines() -> None:
    published = [port for service in compose()["services"].values() for port in service.get("ports", [])]

    assert [port for port in published if not port.startswith("127.0.0.1:")] == ["5757:5757"]


def test_the_composed_daemon_has_keys_and_a_token() -> None:
    given = accepted(compose()["services"]["caboose"]["command"])

    assert (given["keys"], given["token_file"], given["insecure"]) == ("/keys", "/keys/token", False)


def test_grafana_is_provisioned_with_the_same_objects_as_a_push() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "caboose.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "caboose.yaml").read_text())["providers"]
    mounts = {volume.split(":")[1]: volume.split(":")[0] for volume in compose()["services"]["grafana"]["volumes"]}

    assert (source["uid"], source["name"], source["type"]) == (SOURCE_UID, SOURCE_NAME, "prometheus")
    assert provider["folderUid"] == FOLDER_UID
    assert mounts[provider["options"]["path"]] == "../dashboards/grafana"
    assert mounts["/etc/grafana/provisioning"] == "./grafana/provisioning"


# systemd


@pytest.mark.parametrize("name", ["caboose", "caboose-relay"])
def test_systemd_accepts_the_unit_and_the_command_its_arguments(tmp_path: Path, name: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    text = (DEPLOY / "systemd" / f"{name}.service").read_text(encoding="utf-8")
    program = tmp_path / "caboose"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "caboose.service"
    unit.write_text(text.replace("/opt/caboose/bin/caboose", str(program)))
    broken = tmp_path / "broken.service"
    broken.write_text(unit.read_text().replace("Type=exec", "Typ=exec"))

    assert succeeded(run("systemd-analyze", "--man=no", "verify", str(unit))) == ""
    assert "'Typ'" in run("systemd-analyze", "--man=no", "verify", str(broken)).stderr
    started = re.search(r"^ExecStart=/opt/caboose/bin/caboose (.*)$", text, flags=re.MULTILINE)
    assert started is not None
    if name == "caboose":
        assert accepted(started.group(1).split())["data_dir"] == "${STATE_DIRECTORY}"
    else:
        given = relay_command.make_context("relay", started.group(1).split()[1:]).params
        assert (given["listen"], given["insecure"]) == (("ipc:///run/caboose-relay/relay.sock",), False)


# Slurm


def program(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def test_a_full_disk_does_not_remove_the_daemon_from_its_service() -> None:
    (container,) = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"]

    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")} == {
        "/healthz"
    }


def test_the_batch_script_trains_also_if_the_daemon_does_not_start(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    program(bin_, "scontrol", "echo 127.0.0.1")
    program(bin_, "caboose", '[ "$1" = keys ] || { echo "no room on the disk" >&2; exit 2; }')
    program(bin_, "srun", "touch trained; exit 3")
    env = clean_environment(PATH=f"{bin_}:{os.environ['PATH']}", CABOOSE_DIR=str(tmp_path / "state"))
    env |= {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1"}

    ended = run("bash", str(DEPLOY / "slurm" / "train.sbatch"), "train.py", env=env, cwd=tmp_path)

    assert (ended.returncode, (tmp_path / "trained").exists()) == (3, True), ended.stderr
    assert "this run is not watched" in ended.stderr
    assert "no room on the disk" in ended.stderr


@pytest.mark.long
@pytest.mark.slow
def test_the_batch_script_starts_a_daemon_and_ends_it(tmp_path: Path) -> None:
    """Runs the script with stand-ins for the two Slurm commands; the daemon and its keys are real."""
    bin_, targets, state = tmp_path / "bin", tmp_path / "targets", tmp_path / "state"
    bin_.mkdir()
    targets.mkdir()
    program(bin_, "scontrol", "echo 127.0.0.1")
    program(bin_, "caboose", f'exec {shlex.quote(sys.executable)} -m caboose_daemon "${{@//0.0.0.0/127.0.0.1}}"')
    keep = "cp targets/*.json seen.json; cp state/ready.json ready.json"
    program(bin_, "srun", f'printf "%s\\n" "$@" >arguments; env >environment; umask >mask; {keep}; exit 3')
    env = clean_environment(PATH=f"{bin_}:{os.environ['PATH']}", CABOOSE_DIR=str(state), CABOOSE_TARGETS=str(targets))
    env |= {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    env |= {"SLURM_CPUS_PER_TASK": "64"}
    mask = run("bash", "-c", "umask", env=env, cwd=tmp_path).stdout

    ended = run("bash", str(DEPLOY / "slurm" / "train.sbatch"), "train.py", "--lr", "1", env=env, cwd=tmp_path)

    assert ended.returncode == 3, f"the training's own exit code; {ended.stderr}"
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[-5:] == ["-m", "caboose", "train.py", "--lr", "1"]
    ready = json.loads((tmp_path / "ready.json").read_text())
    environment = (tmp_path / "environment").read_text()
    assert f"CABOOSE_ENDPOINT={ready['endpoint']}\n" in environment
    assert re.search(r"^CABOOSE_SERVER_KEY=.{40}$", environment, flags=re.MULTILINE)
    assert re.search(r"^CABOOSE_AGENT_KEY=.{40}$", environment, flags=re.MULTILINE)
    assert "SRUN_CPUS_PER_TASK=64\n" in environment
    assert (tmp_path / "mask").read_text() == mask, "files of the training keep the umask of the user"
    assert (state / "token").stat().st_mode & 0o077 == 0
    (target,) = json.loads((tmp_path / "seen.json").read_text())
    assert f"http://{target['targets'][0]}/" == ready["url"]
    assert list(targets.iterdir()) == [], "the target is removed"
    with pytest.raises(ProcessLookupError):
        os.kill(ready["pid"], 0)
    assert (state / "keys" / "daemon.key_secret").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_batch_script_starts_relays_with_the_keys_of_the_daemon(tmp_path: Path) -> None:
    """As above, with a real relay: the ranks' endpoint is its socket file, and it ends with the job."""
    bin_, state = tmp_path / "bin", tmp_path / "state"
    bin_.mkdir()
    program(bin_, "scontrol", "echo 127.0.0.1")
    program(bin_, "caboose", f'exec {shlex.quote(sys.executable)} -m caboose_daemon "${{@//0.0.0.0/127.0.0.1}}"')
    url = 'sed \'s/.*"url": "//; s/".*//\' state/ready.json'
    doctor = f"caboose doctor --daemon $({url}) --endpoint $CABOOSE_ENDPOINT --json >doctor.json || true"
    wait = "for _ in $(seq 100); do [ -S ${CABOOSE_ENDPOINT#ipc://} ] && break; sleep 0.1; done"
    relay = 'shift 4; echo $$ >relay.pid; exec "$@"'
    train = f"env >environment; {wait}; {doctor}; exit 3"
    program(bin_, "srun", f'case "$*" in *"caboose relay"*) {relay};; *) {train};; esac')
    env = clean_environment(PATH=f"{bin_}:{os.environ['PATH']}", CABOOSE_DIR=str(state), CABOOSE_RELAYS="1")
    job = str(os.getpid())  # its socket file is in /tmp
    env |= {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2"}

    ended = run("bash", str(DEPLOY / "slurm" / "train.sbatch"), "train.py", env=env, cwd=tmp_path)

    assert ended.returncode == 3, ended.stderr
    log = (state / "relays.log").read_text()
    assert f"CABOOSE_ENDPOINT=ipc:///tmp/caboose-{job}/relay.sock\n" in (tmp_path / "environment").read_text()
    answers = {check["name"]: check for check in json.loads((tmp_path / "doctor.json").read_text())["checks"]}
    assert answers["reports"]["state"] == "ok", (answers["reports"], log)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "relay.pid").read_text()), 0)


def test_a_cancelled_batch_script_removes_its_target(tmp_path: Path) -> None:
    """At the time limit and on scancel; its daemon may be killed before it has ended."""
    bin_, targets = tmp_path / "bin", tmp_path / "targets"
    bin_.mkdir()
    targets.mkdir()
    program(bin_, "scontrol", "echo 127.0.0.1")
    ready = '{"endpoint": "tcp://127.0.0.1:1", "url": "http://127.0.0.1:2/"}'
    lingers = "trap 'touch asked' TERM; until [ -e seen ]; do sleep 0.05; done"
    program(bin_, "caboose", f"[ $1 = keys ] || {{ echo '{ready}' >state/ready.json; {lingers}; }}")
    program(bin_, "srun", "trap 'sleep 0.3; exit 7' TERM; touch training; while :; do sleep 0.05; done")
    env = clean_environment(PATH=f"{bin_}:{os.environ['PATH']}", CABOOSE_DIR="state", CABOOSE_TARGETS=str(targets))
    env |= {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1"}
    command = ["bash", str(DEPLOY / "slurm" / "train.sbatch"), "train.py"]
    script = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        assert wait_until(lambda: (tmp_path / "training").exists(), 30)
        assert [path.name for path in targets.iterdir()] == ["caboose-42.json"]

        script.terminate()

        assert wait_until(lambda: (tmp_path / "asked").exists(), 30), "the daemon got the signal and has not ended yet"
        assert list(targets.iterdir()) == []
        (tmp_path / "seen").touch()
        assert script.wait(30) == 7, "the training's own exit code"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        script.wait(30)


# Dockerfile


def steps() -> Iterator[tuple[str, str]]:
    """The instructions with their arguments, lines joined."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def test_the_image_does_not_run_as_root_and_starts_the_daemon() -> None:
    last = dict(steps())

    assert last["USER"] == "65532:65532"
    assert accepted(json.loads(last["CMD"])) is not None
    assert json.loads(last["ENTRYPOINT"]) == ["caboose"]
    assert last["EXPOSE"] == "5757 9757"


def test_the_image_uses_pinned_versions() -> None:
    bases = [rest.split()[0] for word, rest in steps() if word == "FROM"]

    assert bases == ["python:3.12-slim-bookworm"] * 2
    assert any("-c requirements/constraints.txt" in rest for word, rest in steps() if word == "RUN")


def test_links_of_alerts_point_to_the_published_page() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    (target,) = prometheus["scrape_configs"][0]["static_configs"]

    assert f"{target['labels']['instance']}:9757" in compose["services"]["caboose"]["ports"]


def test_the_builder_gets_only_the_files_of_the_image() -> None:
    sent = {
        line.removeprefix("!")
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = [rest.split()[:-1] for word, rest in steps() if word == "COPY" and "--from" not in rest]

    assert {name for names in copied for name in names} == sent
    assert [name for name in sent if not (ROOT / name).exists()] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_steps_of_the_dockerfile_build_a_daemon_that_starts(tmp_path: Path) -> None:
    """COPY and RUN of the build stage, in a directory instead of an image."""
    place = {"/src": tmp_path / "src", "/opt/caboose": tmp_path / "opt", "/data": tmp_path / "data"}
    variables: dict[str, str] = {}
    env = clean_environment(PIP_DISABLE_PIP_VERSION_CHECK="1")
    env.pop("PYTHONPATH", None)
    cwd, num_stages, num_runs = tmp_path, 0, 0
    for word, rest in steps():
        num_stages += word == "FROM"
        if num_stages > 1:
            break
        if word == "ARG":
            name, _, value = rest.partition("=")
            variables[name] = value
        elif word == "WORKDIR":
            cwd = place[rest]
            cwd.mkdir()
        elif word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copy(ROOT / source, cwd / target if target != "./" else cwd / source)
        elif word == "RUN":
            if num_runs == 0:  # files that are in no checkout, to prove that the installed ones come from here
                for folder, name in (("grafana", "sample.json"), ("alerts", "sample.yml")):
                    (cwd / "dashboards" / folder).mkdir(exist_ok=True)
                    (cwd / "dashboards" / folder / name).write_text("{}")
            num_runs += 1
            for path, real in place.items():
                rest = rest.replace(path, str(real))
            rest = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", rest)
            ended = subprocess.run(
                ["sh", "-ec", rest], cwd=cwd, env={**env, **variables}, capture_output=True, text=True, timeout=500
            )
            assert ended.returncode == 0, f"RUN {rest}\n{ended.stdout}{ended.stderr}"
    assert num_runs >= 2

    python = place["/opt/caboose"] / "bin" / "python"
    code = (
        "import json, caboose_daemon.assets as a, importlib.util as u\n"
        "print(json.dumps([[p.name for p in a.dashboards()], [p.name for p in a.alerts()],"
        " a.__file__, u.find_spec('torch') is None]))"
    )
    listed = run(str(python), "-c", code, cwd=tmp_path, env=env)
    dashboards, alerts, where, has_no_torch = json.loads(succeeded(listed))
    assert dashboards == sorted([*(path.name for path in assets.dashboards()), "sample.json"])
    assert alerts == sorted([*(path.name for path in assets.alerts()), "sample.yml"])
    assert where.startswith(str(place["/opt/caboose"]))
    assert has_no_torch, "the daemon's image is small"
    caboose = str(place["/opt/caboose"] / "bin" / "caboose")
    assert "Run the daemon" in succeeded(run(caboose, "daemon", "--help", cwd=tmp_path, env=env))
    assert "Create or update folder" in succeeded(run(caboose, "grafana", "push", "--help", cwd=tmp_path, env=env))


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)  # as COPY does
        shutil.copy(source, target)
