"""The metrics of a running node, read as Prometheus would."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


class Figures:
    """What one scrape found."""

    def __init__(self, text: str) -> None:
        self._samples = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def all(self, name: str, **labels: str) -> list[float]:
        """The values of each sample of that name that has these labels."""
        return [
            value
            for found, having, value in self._samples
            if found == name and labels.items() <= having.items()
        ]

    def sum(self, name: str, **labels: str) -> float:
        """Added up; 0 if there is none."""
        return sum(self.all(name, **labels))

    def label(self, name: str, label: str) -> str:
        """Of the one sample of that name that is 1."""
        [found] = [having[label] for sample, having, value in self._samples if sample == name]
        return found


def scrape(port: int) -> Figures:
    """`GET /metrics` of the node whose admin port this is."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return Figures(answer.read().decode())
