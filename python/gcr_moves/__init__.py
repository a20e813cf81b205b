"""The product's commands that move many jobs by gcr-migrate: scripts/drain, rebalance and slurm, which are
installed as gcr-drain, gcr-rebalance and gcr-slurm together with this package.

    cli       gcr-migrate as a program: questions, and migrations under way
    cluster   what the agents tell about their hosts
    plan      which job has room where, and where it goes
    tasks     a job that shall move, and what became of it
    runner    the migrations under way, within limits; outcomes that have to be found out; signals
    drain     empties a host
    rebalance evens out the use of VRAM
    container_jobs, containers: jobs that move with their containers
    engines, podman, docker, cri: what is asked of container engines
    own_network, jobs: jobs with a network of their own, and the same questions about them
    streams, cri_client: connections to engines through the shells of their hosts
    restores  brings back what a drain has taken checkpoints of
    slurm     Slurm by its commands
    slurm_course, slurm_drain, slurm_rebalance: the same where Slurm places
    slurm_service, slurm_trigger, slurm_metrics: the service on Slurm's controller
    text      lines and reports for people
"""
