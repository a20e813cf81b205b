"""What gcr-migrate --json reports of a migration, a checkpoint or a restore."""

import dataclasses
import json

FIGURES = (
    "downtime_ms", "total_ms", "sent_vram_bytes", "sent_image_bytes", "image_bytes", "vram_bytes", "buffers",
    "switchover_reason", "expected_downtime_ms", "downtime_limit_ms", "compression", "image_mode", "prefilled",
    "verified", "gate_closed_ms", "clock_offset_ms", "clock_error_ms", "stored_bytes", "shared_bytes",
)  # fmt: skip


def number(value):
    """A number where the text is one: Protobuf's JSON has 64-bit integers as strings."""
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            pass
    return value


@dataclasses.dataclass(frozen=True)
class Migration:
    """Times are in ms from the request on. `report` has all fields, also those without a name here."""

    report: dict
    destination_pid: int
    downtime_ms: float
    total_ms: float
    gate_closed_ms: float
    vram_bytes: int
    processes: int
    verified: bool
    message: str
    phases: list
    rounds: list

    @staticmethod
    def parse(text):
        """From the last line of `text`. ValueError if that is no report."""
        lines = text.strip().splitlines()
        report = json.loads(lines[-1]) if lines else None
        if not isinstance(report, dict) or "downtime_ms" not in report:
            raise ValueError(f"no report: {lines[-1:]}")
        report = {name: number(value) for name, value in report.items()}
        report["rounds"] = [{name: number(value) for name, value in each.items()} for each in report.get("rounds", [])]
        empty = {"destination_pid": 0, "gate_closed_ms": 0, "processes": 0, "message": "", "phases": []}
        return Migration(report, **{field.name: report[field.name] if field.name in report else empty[field.name]
                                    for field in dataclasses.fields(Migration)[1:]})  # fmt: skip

    def figures(self):
        """What a line of bench.jsonl has of it."""
        return {
            **{name: self.report[name] for name in FIGURES if name in self.report},
            "rounds": len(self.rounds),
            "sent_per_round_bytes": [each["sent_bytes"] for each in self.rounds],
            "phases": self.phases,
        }

    def times(self):
        return f"downtime {self.downtime_ms:.1f} ms, total {self.total_ms:.1f} ms"

    def text(self):
        """For logs: times, phases, the whole report."""
        phases = (f"  {phase['start_ms']:12.1f} {phase['duration_ms']:12.1f}  {phase['host']:12} {phase['track']:8} "
                  f"{phase['name']}" for phase in self.phases)  # fmt: skip
        return "\n".join([self.times(), *phases, json.dumps(self.report)])
