"""Every value in `deploy/` is one that this version knows."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from multitap.cli.app import COMMANDS
from multitap.cli.serve.serve import serve

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = [path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"]
BASE_CONFIG = KUBERNETES / "base/multitap.toml"
OPTIONS = {option for parameter in serve.params for option in parameter.opts}


def read(path):
    return [*YAML(typ="safe").load_all(path.read_text())]


def named(path):
    return str(path.relative_to(DEPLOY))


@pytest.mark.parametrize("path", MANIFESTS, ids=named)
def test_manifests_fit_the_published_schemas(path):
    for manifest in read(path):
        if path.name == "replicas.yaml":  # a patch: the rest is in the base
            manifest["spec"]["selector"] = {"matchLabels": {"a": "b"}}
            manifest["spec"]["serviceName"] = "multitap"
            manifest["spec"]["template"]["metadata"] = {"labels": {"a": "b"}}
        elif manifest["kind"] == "StatefulSet":  # the labels are kustomize's
            manifest["spec"]["selector"] = {"matchLabels": {"a": "b"}}
            manifest["spec"]["template"]["metadata"]["labels"] = {"a": "b"}
        kubernetes_validate.validate(manifest, "1.31", strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("overlay", ["single", "cluster"])
def test_an_overlay_makes_complete_manifests(overlay):
    made = subprocess.run(
        ["kubectl", "kustomize", KUBERNETES / "overlays" / overlay], capture_output=True, check=True
    )
    manifests = [*YAML(typ="safe").load_all(made.stdout)]

    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.31", strict=True)
    kinds = {manifest["kind"] for manifest in manifests}
    assert kinds >= {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap"}
    assert ("HorizontalPodAutoscaler" in kinds) is (overlay == "cluster")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", ["multitap.service", "multitap@.service"])
def test_systemd_accepts_a_unit(name, tmp_path):
    unit = tmp_path / name.replace("@", "@3001")
    # it looks for the program, which is not installed there
    text = (DEPLOY / name).read_text().replace("%h/.local/bin/multitap", sys.executable)
    unit.write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--user", unit],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.parametrize("path", [*KUBERNETES.rglob("kustomization.yaml")], ids=named)
def test_what_a_kustomization_names_exists(path):
    (kustomization,) = read(path)
    patches = [patch["path"] for patch in kustomization.get("patches", [])]
    maps = [file for made in kustomization.get("configMapGenerator", []) for file in made["files"]]

    for name in (*kustomization["resources"], *patches, *maps):
        assert (path.parent / name).exists()


def commands():
    """The arguments of `multitap serve` in each file."""
    base = read(KUBERNETES / "base/statefulset.yaml")[0]["spec"]["template"]["spec"]
    yield "kubernetes", base["containers"][0]["args"]
    for unit in DEPLOY.glob("*.service"):
        line = re.search(r"^ExecStart=\S+/multitap (.*)", unit.read_text(), re.MULTILINE)
        yield unit.name, shlex.split(line[1])
    image = (DEPLOY / "Dockerfile").read_text()
    yield "Dockerfile", read_list(re.search(r"^CMD (\[.*\])", image, re.MULTILINE)[1])
    for compose in DEPLOY.glob("*compose.yaml"):
        for name, service in read(compose)[0]["services"].items():
            if "serve" in (command := service.get("command", [])):
                yield f"{compose.name} {name}", command


def read_list(text):
    return YAML(typ="safe").load(text)


@pytest.mark.parametrize("command", [pytest.param(words, id=name) for name, words in commands()])
def test_options_exist(command):
    verb, *words = command

    assert verb == "serve"
    assert {word for word in words if word.startswith("--")} <= OPTIONS


def test_settings_are_known():
    done = subprocess.run(
        [sys.executable, "-m", "multitap", "config", "check", "--config", BASE_CONFIG],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "unknown" not in done.stderr


def test_a_gateway_drains_before_it_is_killed():
    (base,) = read(KUBERNETES / "base/statefulset.yaml")
    text = (KUBERNETES / "base/multitap.toml").read_text()
    drain = int(re.search(r'^drain = "(\d+)s"', text, re.MULTILINE)[1])

    assert drain + 6 < base["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_no_image_of_others_is_chosen_for_the_user():
    (single,) = read(KUBERNETES / "base/statefulset.yaml")
    assert single["spec"]["template"]["spec"]["containers"][0]["image"] == "multitap"
    services = [
        service
        for path in DEPLOY.glob("*compose.yaml")
        for service in read(path)[0]["services"].values()
    ]
    images = [service["image"] for service in services if "image" in service]
    images += [
        service["build"]["args"]["PYTHON_IMAGE"] for service in services if "build" in service
    ]
    bases = re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)

    assert len(images) == 7
    assert all(re.fullmatch(r"\$\{[A-Z_]+:\?.+\}", image) for image in images)
    assert {*bases} == {"${PYTHON_IMAGE}"}


def test_a_gateway_runs_without_privileges():
    (base,) = read(KUBERNETES / "base/statefulset.yaml")
    pod = base["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    user = re.search(r"--uid (\d+)", (DEPLOY / "Dockerfile").read_text())[1]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_the_container_runs_without_root_and_asks_for_a_token():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    words = [line.split(maxsplit=1)[0] for line in lines if line[:1].isupper()]
    command = next(line for line in lines if line.startswith("CMD"))
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    copied = [name for names in copies for name in names if not names[0].startswith("--from")]

    assert words.index("USER") < words.index("CMD")
    assert "--token-file" in command
    assert copied
    assert all((DEPLOY.parent / name).exists() for name in copied)


def test_the_compose_file_builds_the_container_and_keeps_it_small():
    (content,) = read(DEPLOY / "compose.yaml")
    service = content["services"]["multitap"]

    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert {*service["secrets"]} == {*content["secrets"]}
    named = {volume.partition(":")[0] for volume in service["volumes"]}
    assert {name for name in named if not name.startswith(".")} == {*content["volumes"]}


def test_every_command_of_the_unit_is_one_of_ours():
    lines = (DEPLOY / "multitap.service").read_text().splitlines()
    run = [line.partition("=")[2].split()[1] for line in lines if line.startswith("Exec")]

    assert {*run} == {"serve", "reload"}
    assert {*run} <= {*COMMANDS}
