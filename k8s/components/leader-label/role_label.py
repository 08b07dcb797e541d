"""Labels the pod that it runs in with what its node is: `delayd.io/role: master` or `follower`.

A sidecar of the node. It asks the node beside it and changes the label of its own pod, when that
changes, and nothing else. The label follows by a second or two, so it is for people's eyes
(`kubectl get pods -L delayd.io/role`): no service may route by it, and a pod whose host is dead
keeps the one it had.
"""

import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

LABEL: Final = "delayd.io/role"
POLL_S: Final = 1.0
RETRY_S: Final = 5.0
TIMEOUT_S: Final = 5.0
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_DIRECT: Final = urllib.request.ProxyHandler({})


def role_of(node: str) -> str | None:
    """`master` or `follower`; None if the node does not say."""
    try:
        opener = urllib.request.build_opener(_DIRECT)
        with opener.open(f"{node}/leader", timeout=TIMEOUT_S):
            return "master"
    except urllib.error.HTTPError as error:
        with error:
            return "follower" if error.code == 503 else None
    except OSError:
        return None


def set_label(api: str, namespace: str, pod: str, role: str | None, account: Path) -> None:
    """OSError if the API does not take it. None takes the label away."""
    body = json.dumps({"metadata": {"labels": {LABEL: role}}}).encode()
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
    # Not a role: whatever label the pod has had before, the first answer is written.
    said: str | None = ""
    while True:
        role = role_of(node)
        if role != said:
            try:
                set_label(api, environ["NAMESPACE"], environ["POD"], role, ACCOUNT)
                said = role
            except OSError as error:
                print(f"role-label: {error}", file=sys.stderr, flush=True)
                time.sleep(RETRY_S)
        time.sleep(POLL_S)


if __name__ == "__main__":
    main(os.environ)
