"""The objects that kustomize renders from k8s/: each overlay, alone and with components."""

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
    """Return whether kubectl, which includes kustomize, is here."""
    return shutil.which("kubectl") is not None


def components_for(overlay: str) -> tuple[str, ...]:
    """Return all components except those that the overlay includes."""
    there = yaml.safe_load((K8S / "overlays" / overlay / "kustomization.yaml").read_text())
    taken = {Path(path).name for path in there.get("components", ())}
    return tuple(sorted({path.name for path in (K8S / "components").iterdir()} - taken))


def namespace_of(overlay: str) -> str:
    """Return the namespace that the overlay names."""
    said = yaml.safe_load((K8S / "overlays" / overlay / "kustomization.yaml").read_text())
    return str(said["namespace"])


def choices(overlay: str, *, all_sets: bool) -> Iterator[tuple[str, ...]]:
    """Yield sets of components: every set, or none, each one, each pair and all."""
    components = components_for(overlay)
    for count in range(len(components) + 1):
        if all_sets or count <= 2 or count == len(components):
            yield from combinations(components, count)


@cache
def render(overlay: str, components: tuple[str, ...] = ()) -> Rendered:
    """Return the objects that `kubectl apply -k` would send; AssertionError with its message."""
    with tempfile.TemporaryDirectory() as folder:
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            # Components apply after the overlay's own objects.
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
    """Return the objects by overlay and components, rendered two at a time."""
    wanted = [
        (overlay, choice) for overlay in OVERLAYS for choice in choices(overlay, all_sets=all_sets)
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(wanted, pool.map(lambda each: render(*each), wanted), strict=True))


def _path(folder: str, name: str) -> str:
    # kustomize takes no absolute paths.
    return os.path.relpath(K8S / name, Path(folder).resolve())
