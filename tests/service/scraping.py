"""A page of /metrics, parsed by Prometheus' own parser."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}

    @property
    def names(self) -> set[str]:
        """Of all samples, with the suffixes that counters and histograms have."""
        return {sample.name for family in self.families.values() for sample in family.samples}

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """A sample's values by the values of its labels, in the order of the labels' names."""
        samples = [sample for family in self.families.values() for sample in family.samples if sample.name == name]
        assert samples, name
        return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in samples}

    def nonzero(self, name: str) -> dict[tuple[str, ...], float]:
        return {labels: value for labels, value in self.values(name).items() if value}

    def value(self, name: str, *labels: str) -> float:
        return self.values(name)[labels]

    def histograms(self) -> Iterator[tuple[str, list[float], float]]:
        """Name and labels, cumulated counts by bucket, and count, of each."""
        for family in self.families.values():
            if family.type == "histogram":
                counts = {tuple(s.labels.values()): s.value for s in family.samples if s.name.endswith("_count")}
                for labels, num in counts.items():
                    buckets = [
                        s.value
                        for s in family.samples
                        if s.name.endswith("_bucket") and tuple(v for k, v in s.labels.items() if k != "le") == labels
                    ]
                    yield f"{family.name}{labels}", buckets, num
