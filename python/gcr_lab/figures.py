"""Figures as JSON lines, one for each measurement; what gcr-migrate --json reports of a migration, a checkpoint or a restore."""

import contextlib, dataclasses, json, pathlib

FIGURES = (
    "downtime_ms", "total_ms", "sent_vram_bytes", "sent_image_bytes", "image_bytes", "vram_bytes", "buffers",
    "switchover_reason", "expected_downtime_ms", "downtime_limit_ms", "compression", "image_mode", "prefilled",
    "verified", "gate_closed_ms", "clock_offset_ms", "clock_error_ms", "stored_bytes", "shared_bytes",
)

def _numbers(fields):
    """Protobuf's JSON has 64-bit integers as strings."""
    return {name: _number(value) if isinstance(value, str) else value for name, value in fields.items()}

def _number(text):
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text

class Migration:
    """Times are in ms from the request on. `report` has all fields, also those without a name here."""
    def __init__(self, text):
        """From the last line of `text`. ValueError or KeyError if that is no report."""
        lines = text.strip().splitlines()
        report = json.loads(lines[-1]) if lines else None
        if not isinstance(report, dict) or "downtime_ms" not in report:
            raise ValueError(f"no report: {lines[-1:]}")
        self.report = _numbers(report)
        self.rounds = self.report["rounds"] = list(map(_numbers, report.get("rounds", [])))
        self.phases = report.get("phases", [])
        self.downtime_ms, self.total_ms, self.vram_bytes, self.verified = (
            self.report[name] for name in ("downtime_ms", "total_ms", "vram_bytes", "verified"))
        self.destination_pid, self.gate_closed_ms, self.processes = (
            self.report.get(name, 0) for name in ("destination_pid", "gate_closed_ms", "processes"))

    def figures(self):
        """What a line of bench.jsonl has of it."""
        return {**{name: self.report[name] for name in FIGURES if name in self.report}, "rounds": len(self.rounds),
                "sent_per_round_bytes": [each["sent_bytes"] for each in self.rounds], "phases": self.phases}

    def times(self):
        return f"downtime {self.downtime_ms:.1f} ms, total {self.total_ms:.1f} ms"

    def text(self):
        """For logs: times, phases, the whole report."""
        phases = ("  {start_ms:12.1f} {duration_ms:12.1f}  {host:12} {track:8} {name}".format(**phase) for phase in self.phases)
        return "\n".join([self.times(), *phases, json.dumps(self.report)])

@dataclasses.dataclass(frozen=True)
class Record:
    """Adds lines to the file `path`, each with the figures that all of them have; without a path it adds none."""
    path: pathlib.Path | None
    common: dict

    def add(self, migration=None, **figures):
        if self.path:
            line = {**self.common, **figures, **(migration.figures() if migration else {})}
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def collect(self, text, **figures):
        """Each JSON object among the lines that a program printed."""
        for line in text.splitlines():
            if line.startswith("{"):
                self.add(**{**figures, **{name: value for name, value in json.loads(line).items() if name != "bench"}})

    def but(self, **figures):
        """The same file, with other common figures."""
        return Record(self.path, {**self.common, **figures})

def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]

def of(lines, **wanted):
    return [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]
