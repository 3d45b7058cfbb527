"""Tests of the Helm chart: rendered by helm and checked against the schemas of Kubernetes and of the operators.

helm and kubeconform are built from their Go modules. The schemas of Kubernetes are those of the package
kubernetes-validate, those of ServiceMonitor and ScheduledSparkApplication the CRDs in their operators' modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packages.environments import ROOT, environ, make_venv, run

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(2400)]

CHART = ROOT / "deploy" / "helm" / "lakestream"
KUBERNETES = "1.33.0"
HELM = "helm.sh/helm/v3/cmd/helm@v3.18.6"
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0"
CRDS = {
    "github.com/kubeflow/spark-operator/v2@v2.3.0": (
        "config/crd/bases/sparkoperator.k8s.io_scheduledsparkapplications.yaml"
    ),
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"
    ),
}
THREE = ["--set", "replicas=3,lake.url=s3://my-bucket/lake"]
CASES = {
    "one": [],
    "three, deployment": [*THREE, "--set", "compactor.mode=deployment,serviceMonitor.enabled=true,envFromSecret=s3"],
    "three, scheduled": [*THREE, "--set", "compactor.mode=scheduled,envFromSecret=s3,env[0].name=A,env[0].value=b"],
    "three, none": [
        *THREE,
        "--set",
        "compactor.mode=none,cluster.existingSecret=mine,podDisruptionBudget.enabled=false",
    ],
}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with helm and kubeconform."""
    place = tmp_path_factory.mktemp("tools")
    for module in (HELM, KUBECONFORM):
        run(["go", "install", module], {**os.environ, "GOBIN": str(place), "GOFLAGS": "-mod=mod"}, 1800)
    return place


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with schemas as kubeconform reads them."""
    place = tmp_path_factory.mktemp("schemas")
    programs = make_venv(place / "venv", environ(place / "home"), "kubernetes-validate==1.37.0")
    where = "import kubernetes_validate as k, pathlib; print(pathlib.Path(k.__file__).parent)"
    package = Path(run([programs / "python", "-c", where], environ(place / "home")).split()[-1])
    for path in (package / "kubernetes-json-schema" / f"v{KUBERNETES}-local-strict").glob("*.json"):
        # Its references and ids are addresses of a server.
        schema = json.loads(path.read_text().replace("/api/_definitions.json", "_definitions.json"))
        schema.pop("$id", None)
        (place / path.name).write_text(json.dumps(schema))
    (place / "go").mkdir()
    for module, file in CRDS.items():
        downloaded = run(
            ["go", "mod", "download", "-json", module], {**os.environ, "GOFLAGS": "-mod=mod"}, 600, place / "go"
        )
        crd = yaml.safe_load(Path(json.loads(downloaded)["Dir"], file).read_text())["spec"]
        for version in crd["versions"]:
            name = f"{crd['names']['kind']}-{crd['group'].split('.')[0]}-{version['name']}.json".lower()
            (place / name).write_text(json.dumps(strict(version["schema"]["openAPIV3Schema"])))
    return place


def strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, as the API server does with a warning."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(value) for name, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


def render(tools: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(tools / "helm"), "template", "lakestream", str(CHART), "--kube-version", f"v{KUBERNETES}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def check(tools: Path, schemas: Path, text: str) -> subprocess.CompletedProcess[str]:
    location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = [str(tools / "kubeconform"), "-strict", "-summary", "-schema-location", location]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("case", CASES)
def test_the_rendered_chart_fits_the_schemas(tools: Path, schemas: Path, case: str) -> None:
    rendered = render(tools, *CASES[case])
    assert rendered.returncode == 0, rendered.stderr
    checked = check(tools, schemas, rendered.stdout)
    assert checked.returncode == 0, checked.stdout
    assert "Skipped: 0" in checked.stdout
    kinds = {each["kind"] for each in yaml.safe_load_all(rendered.stdout) if each}
    assert {"StatefulSet", "Service", "ConfigMap"} <= kinds
    assert ("PodDisruptionBudget" in kinds) == ("podDisruptionBudget" not in " ".join(CASES[case]))
    assert ("ServiceMonitor" in kinds) == ("serviceMonitor" in " ".join(CASES[case]))
    assert ("ScheduledSparkApplication" in kinds) == ("scheduled" in case)


def test_a_wrong_field_is_found(tools: Path, schemas: Path) -> None:
    rendered = render(tools, *CASES["three, scheduled"]).stdout
    for right, wrong in (("serviceName:", "serviceNames:"), ("mainApplicationFile:", "mainFile:")):
        assert check(tools, schemas, rendered.replace(right, wrong)).returncode != 0, wrong


def test_helm_has_nothing_to_complain_about(tools: Path) -> None:
    run([tools / "helm", "lint", CHART, "--strict", "--kube-version", KUBERNETES], dict(os.environ))


def test_a_rolling_restart_waits_for_lame_duck_mode(tools: Path) -> None:
    objects = [each for each in yaml.safe_load_all(render(tools, *CASES["three, none"]).stdout) if each]
    [stateful] = [each for each in objects if each["kind"] == "StatefulSet"]
    pod = stateful["spec"]["template"]["spec"]
    [server] = pod["containers"]
    assert "ldm=" in server["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert pod["terminationGracePeriodSeconds"] > 40  # lame duck mode: 10 s, then 30 s
    assert stateful["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
    assert server["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("case", CASES)
def test_the_servers_configuration_is_valid(tools: Path, tmp_path: Path, case: str) -> None:
    objects = [each for each in yaml.safe_load_all(render(tools, *CASES[case]).stdout) if each]
    [config] = [each for each in objects if each["kind"] == "ConfigMap"]
    path = tmp_path / "nats.conf"
    path.write_text(config["data"]["nats.conf"])
    variables = {**os.environ, "POD_NAME": "lakestream-0", "CLUSTER_PASSWORD": "secret"}
    run([sys.executable, "-m", "lakestream.cli.main", "serve", "-t", "-c", path], variables)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--set", "replicas=3"], "need a lake in an object store"),
        (THREE, "the compactor is no sidecar"),
        (["--set", "compactor.mode=deployment"], "needs a lake in an object store"),
        (["--set", "compactor.mode=other"], "compactor.mode is sidecar"),
    ],
)
def test_values_that_cannot_work_are_refused(tools: Path, options: list[str], text: str) -> None:
    done = render(tools, *options)
    assert done.returncode != 0
    assert text in done.stderr


def test_the_file_for_sparks_operator_is_what_the_chart_makes(tools: Path, schemas: Path) -> None:
    path = ROOT / "deploy" / "schedulers" / "spark-operator.yaml"
    options = [*THREE, "--set", "compactor.mode=scheduled,envFromSecret=lakestream-s3"]
    rendered = render(tools, *options, "--show-only", "templates/scheduledsparkapplication.yaml").stdout
    made, written = ([each for each in yaml.safe_load_all(text) if each] for text in (rendered, path.read_text()))
    for each in made:
        del each["metadata"]["labels"]
    assert written == made
    assert check(tools, schemas, path.read_text()).returncode == 0
