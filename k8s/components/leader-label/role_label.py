"""Labels the pod that it runs in with what its node is: `delayd.io/role: master` or `follower`, and
`delayd.io/shards: 0.3` with the shards that a master delivers: of several shards there are several
masters.

A sidecar of the node. It asks the node beside it and changes the labels of its own pod, when they
change, and nothing else. They follow by a second or two, so they are for people's eyes
(`kubectl get pods -L delayd.io/role,delayd.io/shards`): no service may route by them, and a pod
whose host is dead keeps those that it had.
"""

import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROLE: Final = "delayd.io/role"
SHARDS: Final = "delayd.io/shards"
VALUE_MAX: Final = 63
"""Characters: Kubernetes takes no longer value of a label."""
POLL_S: Final = 1.0
RETRY_S: Final = 5.0
TIMEOUT_S: Final = 5.0
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Labels = dict[str, str | None]
"""By name."""

_DIRECT: Final = urllib.request.ProxyHandler({})


def labels_of(node: str) -> Labels:
    """Role and shards; None for what the node does not say, or does not deliver."""
    try:
        opener = urllib.request.build_opener(_DIRECT)
        with opener.open(f"{node}/leader", timeout=TIMEOUT_S) as answer:
            return {ROLE: "master", SHARDS: shown(json.load(answer).get("shards", ()))}
    except urllib.error.HTTPError as error:
        with error:
            return {ROLE: "follower" if error.code == 503 else None, SHARDS: None}
    except (OSError, ValueError):
        return {ROLE: None, SHARDS: None}


def shown(shards: Sequence[int]) -> str | None:
    """The numbers of shards as the value of a label, or how many there are."""
    value = ".".join(map(str, shards))
    return (value if len(value) <= VALUE_MAX else f"{len(shards)}-of-them") or None


def set_labels(api: str, namespace: str, pod: str, labels: Labels, account: Path) -> None:
    """OSError if the API does not take them. None takes a label away."""
    body = json.dumps({"metadata": {"labels": labels}}).encode()
    request = urllib.request.Request(
        f"{api}/api/v1/namespaces/{namespace}/pods/{pod}",
        data=body,
        method="PATCH",
        headers={
            "Content-Type": "application/merge-patch+json",
            # Read each time: Kubernetes puts a new one there before the old one ends.
            "Authorization": f"Bearer {(account / 'token').read_text().strip()}",
        },
    )
    handlers: list[urllib.request.BaseHandler] = [_DIRECT]
    if api.startswith("https:"):
        trusted = ssl.create_default_context(cafile=account / "ca.crt")
        handlers.append(urllib.request.HTTPSHandler(context=trusted))
    with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S):
        return


def main(environ: Mapping[str, str]) -> None:
    """Until SIGTERM, which the first process of a container does not get unless it asks for it: the
    pod would wait for it to the end of its grace period."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    api = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    node = f"http://127.0.0.1:{environ.get('DELAYD_ADMIN_PORT', '7070')}"
    # Whatever labels the pod has had before, the first answer is written.
    said: Labels = {}
    while True:
        labels = labels_of(node)
        if labels != said:
            try:
                set_labels(api, environ["NAMESPACE"], environ["POD"], labels, ACCOUNT)
                said = labels
            except OSError as error:
                print(f"role-label: {error}", file=sys.stderr, flush=True)
                time.sleep(RETRY_S)
        time.sleep(POLL_S)


if __name__ == "__main__":
    main(os.environ)
