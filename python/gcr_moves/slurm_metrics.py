"""What the service tells Prometheus (docs/metrics.md)."""

import os
import time

# In seconds; as the agents have them.
DOWNTIME_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)


class Metrics:
    """No address was given for them."""

    def looked(self, slurm):
        """Slurm has told which nodes are being drained."""

    def slurm_failed(self):
        """One of its commands did."""

    def trigger(self, registered):
        """Whether Slurm wakes us."""

    def drain_began(self):
        """One that is under way."""

    def drain_ended(self, status, processes):
        """With this exit status, and what its report says of the processes."""


class Served(Metrics):
    """Over HTTP; the main thread counts."""

    def __init__(self, address, port):
        """ImportError without Debian's python3-prometheus-client; OSError if it cannot listen there."""
        os.environ["PROMETHEUS_DISABLE_CREATED_SERIES"] = "true"
        import prometheus_client as prometheus  # pylint: disable=import-outside-toplevel

        registry = prometheus.CollectorRegistry()
        mine = {"namespace": "gcr", "subsystem": "slurm", "registry": registry}
        self._drains = prometheus.Gauge("drains_in_progress", "Drains of nodes now.", **mine)
        self._ended = prometheus.Counter("drains", "Drains that have ended.", ["status"], **mine)
        self._jobs = prometheus.Counter("jobs", "What became of jobs in drains.", ["outcome"], **mine)
        self._failed = prometheus.Counter("failed_tries", "Tries to move a job that failed.", **mine)
        self._waiting = prometheus.Gauge("placeholders_waiting", "Placeholders in the queue.", **mine)
        self._downtime = prometheus.Histogram("downtime_seconds", "Downtime of jobs that moved.",
                                              buckets=DOWNTIME_BUCKETS, **mine)  # fmt: skip
        self._errors = prometheus.Counter("errors", "Slurm commands that failed.", **mine)
        self._last_look = prometheus.Gauge("last_look_timestamp_seconds",
                                           "When Slurm last said which nodes are being drained.", **mine)  # fmt: skip
        self._trigger = prometheus.Gauge("trigger_registered", "Whether Slurm has the trigger.", **mine)
        prometheus.start_http_server(port, address, registry)

    def looked(self, slurm):
        self._last_look.set(time.time())
        self._waiting.set(slurm.waiting_placeholders())

    def slurm_failed(self):
        self._errors.inc()

    def trigger(self, registered):
        self._trigger.set(registered)

    def drain_began(self):
        self._drains.inc()

    def drain_ended(self, status, processes):
        self._drains.dec()
        self._ended.labels(str(status)).inc()
        for process in processes:
            self._jobs.labels(process["outcome"]).inc()
            self._failed.inc(len(process["tries"]))
            if process["downtime_ms"]:
                self._downtime.observe(process["downtime_ms"] / 1000)
