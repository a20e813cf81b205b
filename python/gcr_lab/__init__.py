"""Experiments: what is run to check and to measure the product, not a part of it. Standard library only, Python 3.11.

    base        where programs are; sizes, processes, failures; how a command begins and ends
    hosts       the hosts of scripts/hosts for the length of a block; gcr-migrate on them
    program     a program under migration: its output, its PID, its end
    migration   what gcr-migrate --json reports
    registry    parts with their limits and needs; one part in a process of its own
    parts       the parts of scripts/e2e-real and of scripts/bench
    e2e, bench  these two commands
    compare_by_hand, compare_checkpoints, launch, transport, rdma    the other experiments
    driver      the way by hand: checkpoint steps of the driver, CRIU, how long a program is silent
    sampling    what is sampled while a program moves; the page cache
    figures, tables, plots    JSON lines, and what is made of them
"""
