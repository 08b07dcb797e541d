"""What kustomize makes of k8s/: each overlay alone, and with choices of components."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
K8S: Final = ROOT / "k8s"
OVERLAYS: Final = ("dev", "prod")
TIMEOUT_S: Final = 60

Object = dict[str, Any]
Rendered = tuple[Object, ...]


def has_kubectl() -> bool:
    """kubectl brings kustomize."""
    return shutil.which("kubectl") is not None


def components_for(overlay: str) -> tuple[str, ...]:
    """All but those that the overlay has anyway."""
    there = yaml.safe_load((K8S / "overlays" / overlay / "kustomization.yaml").read_text())
    taken = {Path(path).name for path in there.get("components", ())}
    return tuple(sorted({path.name for path in (K8S / "components").iterdir()} - taken))


def namespace_of(overlay: str) -> str:
    """The one that the overlay names."""
    said = yaml.safe_load((K8S / "overlays" / overlay / "kustomization.yaml").read_text())
    return str(said["namespace"])


def choices(overlay: str, *, all_sets: bool) -> Iterator[tuple[str, ...]]:
    """Sets of components: every one, or none, each, each two and all."""
    components = components_for(overlay)
    for count in range(len(components) + 1):
        if all_sets or count <= 2 or count == len(components):
            yield from combinations(components, count)


@cache
def render(overlay: str, components: tuple[str, ...] = ()) -> Rendered:
    """The objects that `kubectl apply -k` would send. AssertionError with what kustomize says."""
    with tempfile.TemporaryDirectory() as folder:
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            # What a component brings comes after the overlay has put its own there.
            "namespace": namespace_of(overlay),
            "resources": [_path(folder, f"overlays/{overlay}")],
            "components": [_path(folder, f"components/{name}") for name in components],
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(document))
        done = subprocess.run(
            ["kubectl", "kustomize", folder],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 0, f"{overlay} with {components}: {done.stderr}"
    return tuple(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))


def rendered(*, all_sets: bool) -> Mapping[tuple[str, tuple[str, ...]], Rendered]:
    """By overlay and components; two at a time."""
    wanted = [
        (overlay, choice) for overlay in OVERLAYS for choice in choices(overlay, all_sets=all_sets)
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(wanted, pool.map(lambda each: render(*each), wanted), strict=True))


def _path(folder: str, name: str) -> str:
    # kustomize takes no absolute paths.
    return os.path.relpath(K8S / name, Path(folder).resolve())
