"""Experiments: what is run to check and to measure the product, not a part of it. Standard library only, Python 3.11.

    base, registry, hosts    processes and failures; parts with their needs; the hosts of scripts/hosts, programs on them
    e2e, bench, parts        scripts/e2e-real and scripts/bench, and their parts
    compare_by_hand, compare_checkpoints, launch, transport, rdma    the other experiments
    driver, sampling         the way by hand; what is sampled while a program moves
    figures, tables          JSON lines; the tables and drawings that are made of them
"""
