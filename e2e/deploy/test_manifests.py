"""The shipped Kubernetes manifests, compose file and Containerfile: valid by their schemas, and safe.

Neither a cluster nor a builder is needed.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from volcano_locks_server.runtime.settings import SETTINGS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OBJECTS = [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]
DEPLOYMENTS = {one["metadata"]["name"]: one for one in OBJECTS if one["kind"] == "Deployment"}
SERVER = DEPLOYMENTS["volcano-locks"]["spec"]["template"]["spec"]
VERSIONS = ("1.29", "1.37")
BIN = Path(sys.executable).parent


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_every_object_is_valid(one: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(one, version, strict=True)


def test_an_unknown_field_is_found() -> None:
    """The test before this one would see it."""
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**OBJECTS[0], "specs": {}}, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_pods_are_restricted(name: str) -> None:
    """As the pod security standard `restricted` demands, with a read-only file system beside."""
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_secrets_are_mounted_for_the_group_alone(name: str) -> None:
    """The server refuses a TLS key that every user can read (HTTP-31)."""
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    modes = [volume["secret"]["defaultMode"] for volume in pod["volumes"] if "secret" in volume]
    assert modes
    assert all(mode in (0o440, 0o400) for mode in modes)
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_probes_ask_addresses_that_exist_and_fit_the_time_limits() -> None:
    """OPS-12: a hung store is reported within 3 seconds. Liveness does not depend on the store."""
    (container,) = SERVER["containers"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert probes["readiness"]["timeoutSeconds"] > 3
    assert probes["liveness"]["periodSeconds"] * probes["liveness"]["failureThreshold"] >= 30


def test_the_grace_period_covers_the_pause_and_the_drain() -> None:
    """HTTP-23: at most 15 s for requests and 10 s for the store, after preStop."""
    (container,) = SERVER["containers"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert SERVER["terminationGracePeriodSeconds"] >= pause + 15 + 10


def test_the_selectors_match_the_pods() -> None:
    labels = DEPLOYMENTS["volcano-locks"]["spec"]["template"]["metadata"]["labels"]
    kinds = {one["kind"]: one for one in OBJECTS if one["metadata"]["name"] == "volcano-locks"}
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["PodDisruptionBudget"]["spec"]["minAvailable"] < DEPLOYMENTS["volcano-locks"]["spec"]["replicas"]
    assert kinds["Service"]["spec"]["selector"] == labels
    assert kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels


def test_the_standby_waits_in_the_queue() -> None:
    (container,) = DEPLOYMENTS["queue-consumer"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["volcano-locks", "run", "--wait"]
    assert container["args"][:2] == ["queue-consumer", "--"]
    assert DEPLOYMENTS["queue-consumer"]["spec"]["replicas"] == 2


def test_variables_are_settings_of_the_server() -> None:
    names = {one["name"] for one in SERVER["containers"][0]["env"]}
    compose = (DEPLOY / "container/compose.yaml").read_text()
    containerfile = (DEPLOY / "container/Containerfile").read_text()
    names |= set(re.findall(r"\bVOLCANO_LOCKS_[A-Z_]+(?=:| *=)", compose + containerfile))
    assert len(names) > 5
    assert sorted(names - {setting.variable for setting in SETTINGS}) == []


def test_the_compose_file_is_valid() -> None:
    result = run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "container/compose.yaml")
    assert result.returncode == 0, result.stdout
    compose = yaml.safe_load((DEPLOY / "container/compose.yaml").read_text())
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("../"):
                assert (DEPLOY / "container" / source).is_file()
            assert source.startswith(("./secrets/", "../")) or source in compose["volumes"]


def test_the_containerfile_passes_its_linter_and_copies_what_exists() -> None:
    containerfile = DEPLOY / "container/Containerfile"
    result = run(BIN / "hadolint", containerfile)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout
    copied = re.findall(r"^COPY (\S+) ", containerfile.read_text(), re.MULTILINE)
    sources = [source for source in copied if not source.startswith("--")]
    assert sources
    assert all((ROOT / source).exists() for source in sources)
    assert "USER 10001" in containerfile.read_text()
