"""What a drain and a rebalancing of Slurm nodes have in common: a job's processes move into a placeholder, a job
that Slurm has started for them elsewhere."""

import time

from gcr_moves import cli as program
from gcr_moves import text
from gcr_moves.course import Course
from gcr_moves.slurm import PLACEHOLDER, SUCCESSOR, SlurmError
from gcr_moves.tasks import State

# What may be between slurmstepd and the processes that move: it stays behind, and then ends.
STAYS_BEHIND = ("gcr-slurm-wait", "gcr-reaper")


def obstacle(job, picture, slurm_jobs):
    """Why Slurm cannot let the job move away from its host, whose picture this is; empty if it can."""
    number, owner = job.slurm_job, slurm_jobs.get(job.slurm_job)
    if owner is None:
        return f"Slurm knows no job {number}" if number else "it is in no Slurm job"
    if job.suspended:
        return "it is suspended: no suspended job can move into a Slurm job"
    if job.container_init:
        return "it is in a container, and no container can move into a Slurm job"
    trees = sum(other.slurm_job == number for other in picture.jobs)
    if job.slurm_step not in ("batch", "extern"):
        return f"srun has started it, as step {number}.{job.slurm_step}"
    if job.slurm_parent not in STAYS_BEHIND:
        return f"job {number} was not submitted with --migratable"
    if trees > 1:
        return f"job {number} has {trees} trees of processes"
    if owner.array and any(str(owner.array) in each.dependency for each in slurm_jobs.values()):
        return f"other jobs wait for the array {owner.array}, of which job {number} is a task"
    return owner.obstacle()


class SlurmCourse(Course):
    """Comes before the kind of course among the bases. Tasks wait until Slurm has started their placeholder.
    Each ends as the owner of nothing: either the placeholder is cancelled, or the job that the processes have
    left is."""

    def __init__(self, slurm, *arguments):
        """`arguments`: those of the kind of course."""
        super().__init__(*arguments)
        self._slurm = slurm
        self._jobs = {}  # of Slurm, at the last look
        self._nodes = {}
        self._asked_at = 0.0
        self._may_requeue = set()  # those whose Requeue was taken from them

    # ---- of a kind of course ----

    def _source_nodes(self):
        """The nodes that it moves jobs away from, as Slurm calls them."""
        raise NotImplementedError

    # ---- what Slurm says ----

    def update(self):
        self._ask()
        super().update()
        if self._asked_at:
            for task in self.tasks:
                self._attend(task)
            self._hand_over_earlier()

    def _ask(self):
        try:
            self._nodes = self._slurm.nodes()
            self._jobs = self._slurm.jobs()
            self._asked_at = time.monotonic()
        except SlurmError as error:
            self.say(f"Slurm does not answer: {error}")
            self._asked_at = 0.0

    def _attend(self, task):
        """What its state asks to be done with its placeholder."""
        if task.state in (State.WAITING, State.UNSETTLED) and not task.placeholder:
            self._wait_for(task, self._earlier_placeholder(task))
        place = self._jobs.get(task.placeholder)
        if not task.placeholder:
            return
        if place is not None and place.mark == SUCCESSOR and task.state in (State.WAITING, State.LEFT):
            self._has_gone(task, place)
        elif task.state is State.MOVED and not (place is not None and place.pending):
            self._finish(task, place)
        elif task.state is State.MOVING and place is not None and place.ended:
            self.runner.cancel(task)
        elif task.state is State.LEFT or (task.state is State.WAITING and task.options):
            self._give_up(task)
        elif task.state in (State.ENDED, State.MOVED):  # moved by another course, into its own placeholder
            self._leave(task, place)

    def _earlier_placeholder(self, task):
        """Of a drain that was interrupted."""
        job = self._jobs.get(task.job.slurm_job)
        for each in self._jobs.values():
            if job and each.mark == PLACEHOLDER and not each.ended and each.is_for(job):
                return each.id
        return 0

    @staticmethod
    def _wait_for(task, placeholder):
        task.placeholder, task.placeholder_since = placeholder, time.monotonic()

    # ---- before the move ----

    def destinations(self, task):
        """The hosts that answer and that Slurm knows."""
        return [
            name
            for name in super().destinations(task)
            if self.cluster.hosts[name].up
            and self.cluster.hosts[name].picture.slurm_node in self._nodes
        ]

    def _begin_one(self, task, _source):
        if not self._asked_at or (task.placeholder and self._asked_at <= task.since):
            return
        if task.options:  # those of a try that has failed, whose placeholder is not given up yet
            return
        job = self._jobs.get(task.job.slurm_job)
        if job and job.ended:  # its processes are ending
            if task.placeholder:
                self._give_up(task)
            return
        reason = self._obstacle(task)
        if reason:
            self._stay(task, reason)
        elif len(task.tries) >= self.limits.tries:
            task.enter(State.LEFT, time.monotonic(), task.reason)
        elif not task.placeholder:
            self._submit(task)
        else:
            self._begin_in(task, self._jobs.get(task.placeholder))

    def _obstacle(self, task):
        if not self._asked_at:
            return "Slurm does not answer"
        return obstacle(task.job, self.source_of(task), self._jobs)

    def _stay(self, task, reason):
        """It is left, and the reason is not that its tries have failed."""
        self.say(f"{text.name(task)} is left at {task.source}: {reason}")
        task.enter(State.LEFT, time.monotonic(), reason)
        self._attend(task)

    def _submit(self, task):
        job = self._jobs[task.job.slurm_job]
        names = [name for name in self.destinations(task) if task.may_try(name)]
        allowed = {self.cluster.hosts[name].picture.slurm_node for name in names}
        if not allowed and task.tried:
            self.pause(task, time.monotonic())
            return
        if not allowed:
            self._failed(task, "Slurm has no node that it may go to and whose agent answers")
            return
        blocked = self._blocked_at_source(task, names[0])
        if blocked:
            self._failed(task, blocked)
            return
        excluded = sorted(set(self._nodes) - allowed)
        try:
            self._wait_for(task, self._slurm.submit_placeholder(job, excluded))
        except SlurmError as error:
            self._failed(task, str(error))
            return
        task.enter(State.WAITING, time.monotonic())
        self.say(f"job {job.id}: placeholder {task.placeholder} for {text.name(task)}")

    def _blocked_at_source(self, task, destination):
        """Why it cannot go anywhere; empty if nothing is known to stand in its way."""
        try:
            findings = self.cluster.cli.preflight(
                task.source, destination, task.job.pid, self.runner.preflight_options)  # fmt: skip
        except program.CliError as error:
            return str(error)
        return text.blockers(each for each in findings if each["host"] == "source")

    def _begin_in(self, task, place):
        """Once Slurm has started the placeholder."""
        if place is None or place.ended:
            self._failed(task, f"placeholder {task.placeholder} has ended before the move")
            return
        if not place.running:
            return
        job = self._jobs[task.job.slurm_job]
        host = self._host_of(place.node)
        if host is None:
            self._failed(task, f"the agent of node {place.node} does not answer")
            return
        if len(job.gpus) != len(place.gpus):  # its user has changed it
            self._failed(task, f"placeholder {place.id} has {len(place.gpus)} GPUs, job {job.id} has {len(job.gpus)}")
            return
        if not self.runner.has_slot(task.source, host.name):
            return
        try:
            self._keep_from_requeue(job)
        except SlurmError as error:
            self._failed(task, str(error))
            return
        task.options = ["--slurm-job", str(place.id), *self._device_map(self.source_of(task), job, place, host)]
        self.runner.start(task, host.name)

    def _host_of(self, node):
        for host in self.cluster.hosts.values():
            if host.up and host.picture.slurm_node == node:
                return host
        return None

    def _keep_from_requeue(self, job):
        if job.number("requeue"):
            self._slurm.set_requeue(job.id, False)
            self._may_requeue.add(job.id)

    @staticmethod
    def _device_map(source, job, place, host):
        """From the GPUs that Slurm has given to the one to those that it has given to the other."""
        pairs = [
            f"{_uuid_of(source, here)}={_uuid_of(host.picture, there)}"
            for here, there in zip(job.gpus, place.gpus, strict=True)
        ]
        return ["--device-map", ",".join(pairs)] if pairs else []

    # ---- how it ends ----

    def _failed(self, task, reason):
        now = time.monotonic()
        self.say(f"{text.name(task)} stays at {task.source} for now: {reason}")
        task.failed(reason, now)
        self._give_up(task)
        self.pause(task, now)

    def _is_here(self, task):
        """Whether it is known that its processes are not in its placeholder, nor moving there: another
        course may have begun to move them."""
        place, job = self._jobs.get(task.placeholder), self._jobs.get(task.job.slurm_job)
        if place is None or not place.running:
            return True
        if place.mark == SUCCESSOR or place.id in self._arrived():
            return False
        if job and job.ended:
            return True
        source = self.cluster.hosts[task.source]
        shown = {each.key: each for each in source.picture.jobs}.get(task.job.key)
        return source.asked_at > task.since and shown is not None and not shown.migration_id

    def _arrived(self):
        """The Slurm jobs that have processes, none of which is being moved."""
        pictures = [host.picture for host in self.cluster.hosts.values() if host.up]
        return {job.slurm_job for picture in pictures for job in picture.jobs if not job.migration_id}

    def _give_up(self, task):
        """The placeholder goes, and the job is as it was: now, or at the next look."""
        if not self._is_here(task):
            return
        try:
            if task.placeholder:
                self._slurm.cancel(task.placeholder)
            if task.job.slurm_job in self._may_requeue:
                self._slurm.set_requeue(task.job.slurm_job, True)
        except SlurmError as error:
            self.say(f"job {task.job.slurm_job}: {error}")
            return
        self._may_requeue.discard(task.job.slurm_job)
        task.placeholder, task.options = 0, []

    def _has_gone(self, task, place):
        """Another course has moved it into the placeholder, and has told Slurm."""
        task.placeholder = 0
        task.enter(State.ENDED, time.monotonic(), f"another drain has moved it into job {place.id}")

    def _leave(self, task, place):
        """It is gone from its source, and it is not known how: it has ended, or another course has moved it. A
        placeholder that Slurm has not started has nothing of it, and neither has one that is still empty when
        Slurm says that the job has ended; until then of any other that is not known."""
        job = self._jobs.get(task.job.slurm_job)
        has_it = place is None or place.mark == SUCCESSOR or place.id in self._arrived()
        if not has_it and (place.pending or (job and job.ended)):
            self._give_up(task)
        elif has_it or time.monotonic() - task.since > self.limits.patience_seconds:
            self.say(f"job {task.job.slurm_job}: placeholder {task.placeholder} is left as it is")
            task.placeholder = 0

    def _finish(self, task, place):
        if self._hand_over(self._jobs.get(task.job.slurm_job), place):
            node = place.node if place else "a node that Slurm has forgotten, as it has the job"
            self.say(f"job {task.job.slurm_job} goes on as job {task.placeholder} on {node}")
            task.successor, task.placeholder = task.placeholder, 0

    def _hand_over(self, job, successor):
        """True once the successor alone has the processes, for Slurm too."""
        if job is None or job.ended:
            return True
        try:
            if successor is not None:
                self._slurm.hand_over(job, successor, self._jobs)
            self._slurm.release(job.id)
        except SlurmError as error:
            self.say(f"job {job.id} has moved, which Slurm does not take yet: {error}")
            return False
        return True

    def _hand_over_earlier(self):
        """What courses have moved that ended before they could say so to Slurm."""
        arrived, sources = self._arrived(), self._source_nodes()
        ours = {task.job.slurm_job for task in self.tasks}
        for place in self._jobs.values():
            job = self._jobs.get(place.marked_id)
            if not job or job.id in ours or job.node not in sources:
                continue
            if place.id in arrived and place.is_for(job):
                self._hand_over(job, place)

    def run(self):
        """Where it was interrupted, nothing that it has asked of Slurm stays."""
        super().run()
        for task in self.tasks:
            if task.state in (State.WAITING, State.LEFT) and task.placeholder:
                self._give_up(task)
            if task.placeholder:
                self.say(f"job {task.job.slurm_job}: placeholder {task.placeholder} is left as it is")

    def finished(self):
        """When Slurm, too, knows where everything is."""
        return super().finished() and not any(task.placeholder for task in self.tasks)


def _uuid_of(picture, index):
    """Of the GPU that Slurm counts so: by its device file, where it has one, else by its place."""
    by_file = [gpu.uuid for gpu in picture.gpus if gpu.device_file == f"/dev/nvidia{index}"]
    return by_file[0] if by_file else picture.gpus[index].uuid
