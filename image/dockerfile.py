"""Reads a Dockerfile: its instructions, and the configuration that a stage of it gives an image.

Not here: what only BuildKit knows (heredocs, mounts), and variables other than ${NAME}.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

NS_OF_SECOND: Final = 1_000_000_000


class Step(NamedTuple):
    """An instruction; `stage` is 0 before the first FROM."""

    stage: int
    name: str
    text: str


def steps_of(dockerfile: str) -> list[Step]:
    """All instructions, each on one line, without comments."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    steps: list[Step] = []
    stage = 0
    for line in filter(str.strip, joined.splitlines()):
        name, _, text = line.partition(" ")
        stage += name == "FROM"
        steps.append(Step(stage, name, text.strip()))
    return steps


def stage_of(steps: Iterable[Step], name: str) -> int:
    """The number of the stage of that name."""
    [number] = [s.stage for s in steps if s.name == "FROM" and s.text.endswith(f" AS {name}")]
    return number


def config_of(
    steps: Iterable[Step], arguments: Mapping[str, str], path: str, target: str = "node"
) -> dict[str, Any]:
    """The `config` of an image by that stage, which builds on no other; `arguments` replace its
    ARGs, `path` is the base's PATH."""
    steps = list(steps)
    known: dict[str, str] = {}
    variables = {"PATH": path}
    config: dict[str, Any] = {"Labels": {}, "Volumes": {}, "ExposedPorts": {}}
    stage = stage_of(steps, target)
    for step in (step for step in steps if step.stage == stage):
        text = _filled(step.text, known | variables)
        match step.name:
            case "ARG":
                name, _, default = text.partition("=")
                known[name] = arguments.get(name, default)
            case "ENV":
                variables |= _pairs(text)
            case "LABEL":
                config["Labels"] |= _pairs(text)
            case "USER":
                config["User"] = text
            case "VOLUME":
                config["Volumes"][text] = {}
            case "EXPOSE":
                config["ExposedPorts"][f"{text}/tcp"] = {}
            case "STOPSIGNAL":
                config["StopSignal"] = text
            case "ENTRYPOINT" | "CMD":
                config[step.name.capitalize()] = json.loads(text)
            case "HEALTHCHECK":
                config["Healthcheck"] = _healthcheck(step.text)
    config["Env"] = [f"{name}={value}" for name, value in variables.items()]
    return config


def _filled(text: str, values: Mapping[str, str]) -> str:
    """With ${NAME} and $NAME replaced where they are known."""
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda m: values.get(m[1] or m[2], m[0]), text)


def _pairs(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(text))


def _healthcheck(text: str) -> dict[str, Any]:
    options, _, command = text.partition("CMD ")
    told = {name: value.removesuffix("s") for name, value in _pairs(options).items()}
    times = {"Interval": "--interval", "Timeout": "--timeout", "StartPeriod": "--start-period"}
    return {
        "Test": ["CMD", *json.loads(command)],
        **{name: int(told[option]) * NS_OF_SECOND for name, option in times.items()},
        "Retries": int(told["--retries"]),
    }
