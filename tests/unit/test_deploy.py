"""The files in `deploy` against the servers that they start, and against the page about production.

Each setting is one that the server knows, each port the one that it listens on, each path that is asked for one that it
has; and the settings on Kubernetes and in the compose file are those of the page.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from broker.settings.config import load_broker_config
from magnetar.cli.main import main
from magnetar.processes.bookies.settings import read_auto_recovery_settings, read_bookie_settings
from magnetar_core.runtime.types import ConfigurationError
from tests.support.pages import blocks_of

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = DEPLOY / "kubernetes"
COMPOSE: Final = DEPLOY / "production.compose.yaml"
PREFIX: Final = "PULSAR_PREFIX_"
KUBERNETES_VERSION: Final = "1.36"
CONFIGS: Final = ("bookie", "broker")

# Told to each pod by its own name.
_OWN: Final = "advertisedAddress"
# On Kubernetes other than on machines: names of the other servers; volumes have a lost+found of their own, so that what
# is to be empty at the first start stands one folder deeper.
_DIFFERENT: Final = {"metadataServiceUri", "metadataStoreUrl", "journalDirectories", "ledgerDirectories", _OWN}


def page() -> dict[str, dict[str, str]]:
    """File on the page about production → its settings."""
    blocks = {block.file: block.text for block in blocks_of((ROOT / "docs/production.md").read_text()) if block.file}
    return {name: settings_of(text) for name, text in blocks.items()}


def settings_of(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def manifests() -> Iterator[dict[str, Any]]:
    told = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    for name in told["resources"]:
        yield from yaml.safe_load_all((KUBERNETES / name).read_text())


def named(kind: str, name: str) -> dict[str, Any]:
    return next(one for one in manifests() if one["kind"] == kind and one["metadata"]["name"] == name)


def workload(name: str) -> dict[str, Any]:
    return named("StatefulSet", name)


def container(name: str) -> dict[str, Any]:
    (found,) = workload(name)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def given(name: str) -> dict[str, str]:
    """The environment of a server's container: that of the file, and what each pod is told."""
    found = settings_of((KUBERNETES / f"{name}.env").read_text())
    own = {one["name"]: one.get("value", f"{name}-0") for one in container(name)["env"]}
    return found | {key: value.replace("$(POD_NAME)", own["POD_NAME"]) for key, value in own.items()}


def files_of(folder: Path, settings: dict[str, str]) -> dict[str, str]:
    """The settings with files that are there, so that they can be checked."""
    return {key: re.sub(r"/(etc|var/lib)/magnetar", str(folder), value) for key, value in settings.items()}


# -------------------------------------------------------------------------------- settings


def check(name: str, file: Path | None) -> None:
    """Read settings as the server does. Raises ConfigurationError."""
    if name == "broker":
        load_broker_config({} if file is None else settings_of(file.read_text()), os.environ)
    else:
        read_bookie_settings(file)
        read_auto_recovery_settings(file)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_servers_take_the_settings_of_the_page_as_they_stand(name: str, tmp_path: Path) -> None:
    settings = files_of(tmp_path, page()[f"{name}.conf"] | {_OWN: "m1.example.com"})
    file = tmp_path / f"{name}.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    check(name, file)
    with file.open("a") as more:
        more.write("notASetting=1\n")
    with pytest.raises(ConfigurationError, match="notASetting"):
        check(name, file)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_servers_take_their_settings_on_kubernetes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in files_of(tmp_path, given(name)).items():
        monkeypatch.setenv(key, value)
    check(name, None)
    monkeypatch.setenv(PREFIX + "notASetting", "1")
    with pytest.raises(ConfigurationError, match="notASetting"):
        check(name, None)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_settings_on_kubernetes_are_those_of_the_page(name: str) -> None:
    here = {key.removeprefix(PREFIX): value for key, value in given(name).items() if key.startswith(PREFIX)}
    there = page()[f"{name}.conf"]
    assert here.keys() == there.keys()
    assert {key for key in here if here[key] != there[key]} <= _DIFFERENT


# -------------------------------------------------------------------------------- Kubernetes


@pytest.mark.parametrize("name", CONFIGS)
def test_a_container_runs_a_command_of_ours_from_the_image_that_is_built(name: str) -> None:
    found = container(name)
    assert found["args"][0] in main.commands
    assert found["image"] in {one["name"] for one in kustomization()["images"]}
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["magnetar"]' in dockerfile
    user = workload(name)["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"--uid {user} " in dockerfile


def kustomization() -> dict[str, Any]:
    found = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("name", "settings"),
    [("bookie", ("bookiePort", "httpServerPort")), ("broker", ("brokerServicePortTls", "webServicePortTls"))],
)
def test_the_ports_of_containers_and_services_are_those_that_servers_listen_on(
    name: str, settings: tuple[str, ...]
) -> None:
    listened = {int(given(name)[PREFIX + setting]) for setting in settings}
    ports = {one["name"]: one["containerPort"] for one in container(name)["ports"]}
    assert set(ports.values()) == listened
    services = [one for one in manifests() if one["kind"] == "Service" and one["spec"]["selector"] == {"app": name}]
    assert services
    for service in services:
        for port in service["spec"]["ports"]:
            assert port["port"] in listened
            assert port.get("targetPort", port["port"]) in {*ports, *ports.values()}
    probes = [probe for key, probe in container(name).items() if key.endswith("Probe")]
    assert probes
    for probe in probes:
        asked = probe.get("httpGet") or probe["tcpSocket"]
        assert asked["port"] in ports
        if "httpGet" in probe:
            assert asked["path"] == {"bookie": "/heartbeat", "broker": "/status.html"}[name]
            assert (asked.get("scheme") == "HTTPS") == (name == "broker")


@pytest.mark.parametrize("name", ["zookeeper", *CONFIGS])
def test_a_set_of_pods_is_found_by_its_labels_and_spread_over_nodes(name: str) -> None:
    spec = workload(name)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == {"app": name}
    assert spec["replicas"] == 3
    headless = named("Service", spec["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"
    apart = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart[0]["labelSelector"]["matchLabels"] == labels
    budget = named("PodDisruptionBudget", name)
    assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_file_that_settings_name_comes_out_of_a_volume(name: str) -> None:
    spec = workload(name)["spec"]
    mounts = {one["mountPath"]: one["name"] for one in container(name)["volumeMounts"]}
    volumes = {one["name"] for one in spec["template"]["spec"]["volumes"]}
    volumes |= {one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", ())}
    assert set(mounts.values()) == volumes
    (keys,) = (one["secret"]["items"] for one in spec["template"]["spec"]["volumes"])
    for value in given(name).values():
        for path in re.findall(r"(?<!\w)/(?:etc|var/lib)/magnetar/[\w./-]+", value):
            mount = next(one for one in mounts if path.startswith(one + "/"))
            if mount == "/etc/magnetar":
                assert path.removeprefix(mount + "/") in {one["path"] for one in keys}
    command = re.search(r"create secret generic magnetar-keys (.*)", (ROOT / "docs/production.md").read_text())
    assert command is not None
    made = set(re.findall(r"--from-file=([^\s=]+)", command[1]))
    assert {one["key"] for one in keys} <= made


def test_the_zookeepers_are_called_as_they_are_asked_for() -> None:
    env = {one["name"]: one["value"] for one in container("zookeeper")["env"]}
    servers = re.findall(r"server\.\d=([\w.-]+):2888:3888;(\d+)", env["ZOO_SERVERS"])
    asked = ",".join(f"{host}:{port}" for host, port in servers)
    assert given("broker")[PREFIX + "metadataStoreUrl"] == f"zk:{asked}"
    assert given("bookie")[PREFIX + "metadataServiceUri"] == f"zk://{asked.replace(',', ';')}/ledgers"


def check_manifest(manifest: dict[str, Any]) -> None:
    """Raises ValidationError."""
    kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_the_manifests_are_what_kubernetes_takes() -> None:
    """Against its own schemas, without members that they do not have."""
    found = list(manifests())
    assert len(found) > 10
    for manifest in found:
        check_manifest(manifest)
    wrong = workload("bookie")
    wrong["spec"]["serviceNam"] = wrong["spec"].pop("serviceName")
    with pytest.raises(kubernetes_validate.ValidationError, match="serviceNam"):
        check_manifest(wrong)


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    """Kubernetes' schemas, as kubeconform reads them: what they refer to is a file, not a page."""
    (package,) = kubernetes_validate.__path__
    folder = tmp_path / "schemas"
    shutil.copytree(Path(package) / f"kubernetes-json-schema/v{KUBERNETES_VERSION}.0-local-strict", folder)
    for file in folder.iterdir():
        text = file.read_text()
        file.write_text(text.replace('"/api/_definitions.json#', f'"{folder.as_uri()}/_definitions.json#'))
    return folder


@pytest.mark.process
@pytest.mark.skipif(shutil.which("kubeconform") is None, reason="no kubeconform here")
def test_kubeconform_accepts_the_manifests(schemas: Path, tmp_path: Path) -> None:
    files = [KUBERNETES / name for name in kustomization()["resources"]]
    location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = ["kubeconform", "-strict", "-summary", "-schema-location", location]
    found = subprocess.run([*command, *files], check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    assert f"Valid: {len(list(manifests()))}, Invalid: 0, Errors: 0, Skipped: 0" in found.stdout
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((KUBERNETES / "bookie.yaml").read_text().replace("serviceName:", "serviceNam:"))
    assert subprocess.run([*command, wrong], check=False, capture_output=True).returncode == 1


@pytest.mark.process
@pytest.mark.skipif(shutil.which("kustomize") is None, reason="no kustomize here")
def test_kustomize_builds_what_stands_here() -> None:
    built = subprocess.run(["kustomize", "build", KUBERNETES], check=True, capture_output=True, text=True).stdout
    found = list(yaml.safe_load_all(built))
    kinds = [one["kind"] for one in found]
    assert kinds.count("StatefulSet") == 3
    assert kinds.count("ConfigMap") == 2
    for manifest in found:
        check_manifest(manifest)


# -------------------------------------------------------------------------------- compose


def services() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load(COMPOSE.read_text())["services"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_machine_of_the_compose_file_has_the_three_servers_of_the_page(number: int) -> None:
    machine = services()[f"m{number}"]
    host = f"m{number}.example.com"
    assert machine["hostname"] == host
    assert machine["networks"]["cluster"]["aliases"] == [host]
    assert host in page()["zoo.cfg"][f"server.{number}"]
    for name in ("zookeeper", "bookie", "broker"):
        found = services()[f"{name}-{number}"]
        assert found["network_mode"] == f"service:m{number}"
        mounted = [volume.split(":")[:2] for volume in found["volumes"]]
        for outside, inside in mounted:
            assert outside == f"../m{number}{inside}"
        paths = [inside for _, inside in mounted]
        # ZooKeeper's image writes a zoo.cfg of its own at its entry point, as another user than the folders belong to.
        started = found["entrypoint" if name == "zookeeper" else "command"]
        config = next(one for one in started if one.startswith("/etc/"))
        assert any(config.startswith(path + "/") for path in paths)
        if name in CONFIGS:
            assert found["command"][0] in main.commands
            assert found["command"][1:] == ["--config", f"/etc/magnetar/{name}.conf"]
            assert (ROOT / "deploy" / found["build"]["context"]).resolve() == ROOT
            assert (ROOT / found["build"]["dockerfile"]).exists()
            named = re.findall(r"/(?:etc|var/lib)/magnetar", " ".join(page()[f"{name}.conf"].values()))
            assert set(named) <= set(paths)


def test_the_ports_of_the_compose_file_are_those_of_the_page_on_loopback_addresses() -> None:
    told = page()
    wanted = {
        int(told["zoo.cfg"]["clientPort"]),
        *(int(told["bookie.conf"][name]) for name in ("bookiePort", "httpServerPort")),
        *(int(told["broker.conf"][name]) for name in ("brokerServicePortTls", "webServicePortTls")),
    }
    for number in (1, 2, 3):
        ports = [text.split(":") for text in services()[f"m{number}"]["ports"]]
        assert {int(inside) for _, _, inside in ports} == wanted
        assert all(host == f"127.0.0.{number}" and outside == inside for host, outside, inside in ports)


UNITS: Final = sorted(DEPLOY.glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_there_is_and_gives_it_time_to_end(unit: Path, tmp_path: Path) -> None:
    lines = unit.read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    program, name, *arguments = settings["ExecStart"].split()
    assert program == "/opt/magnetar/bin/magnetar"
    assert unit.stem == f"magnetar-{name}"
    command = main.commands[name]
    configuration = tmp_path / "empty.conf"
    configuration.write_text("")
    given = [str(configuration) if argument.startswith("/etc/") else argument for argument in arguments]
    command.make_context(name, given)  # raises for an option that there is not
    assert int(settings["TimeoutStopSec"]) >= 60
    assert int(settings["LimitNOFILE"]) >= 65_536
    if (tool := shutil.which("systemd-analyze")) is None:
        return
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(program, "/bin/true"))
    said = subprocess.run([tool, "verify", "--man=no", copy], capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in said.stderr.splitlines() if unit.name in line] == []


def test_each_server_has_a_unit() -> None:
    assert [unit.stem for unit in UNITS] == [
        f"magnetar-{name}" for name in ("autorecovery", "bookie", "broker", "standalone")
    ]


def test_logrotate_takes_the_files_that_the_page_names() -> None:
    text = (DEPLOY / "logrotate.conf").read_text()
    assert "/var/log/magnetar/*.log {" in text
    assert "MAGNETAR_LOG_FILE=/var/log/magnetar/" in (ROOT / "docs/production.md").read_text()
    if (tool := shutil.which("logrotate")) is not None:
        done = subprocess.run([tool, "--debug", DEPLOY / "logrotate.conf"], capture_output=True, text=True, check=False)
        assert "error" not in done.stderr.lower().replace("user magnetar", "")
