"""Drawings of figures, by gnuplot."""

import shutil
import subprocess

from gcr_lab import figures
from gcr_lab.base import GIB, Failure
from gcr_lab.tables import transport_size_curves


def plot(path, folder):
    """Draws downtime.svg, total.svg and transport.svg into `folder`, as far as the file has lines for them."""
    lines = figures.read(path)
    downtime, transport = (figures.of(lines, part=part) for part in ("downtime", "transport"))
    if not downtime and not transport:
        print("plots: none; they are of the parts downtime and transport")
        return
    if shutil.which("gnuplot") is None:
        raise Failure("plots: not drawn, as gnuplot is not installed (Debian: gnuplot-nox)")
    folder.mkdir(parents=True, exist_ok=True)
    for name, title in (("downtime", "downtime"), ("total", "total time")):
        draw(folder / f"{name}.svg", over_memory(downtime, name),
             f"set title '{title} over GPU memory'\nset xlabel 'GPU memory (GiB)'\n"
             "set ylabel 'seconds'\nset logscale xy 2\nset key left top\n")  # fmt: skip
    curves = {f"{'TLS' if tls else 'plain'}, {n} connection{'s' if n > 1 else ''}": points
              for (tls, n), points in transport_size_curves(transport).items()}  # fmt: skip
    draw(folder / "transport.svg", curves,
         "set title 'TCP transport over bytes per write'\nset xlabel 'KiB per write'\n"
         "set ylabel 'GB/s'\nset yrange [0:*]\nset logscale x 2\nset key outside\n")  # fmt: skip


def over_memory(lines, name):
    """{way: [(GiB, seconds), …]}. By hand the program is stopped all the time: total and downtime are one."""
    curves = {}
    for way in ("gcr-migrate", "by-hand"):
        points = sorted((line["asked_bytes"] / GIB, line.get(f"{name}_ms", line["downtime_ms"]) / 1e3)
                        for line in figures.of(lines, way=way))  # fmt: skip
        if points:
            curves[way] = points
    return curves


def draw(target, curves, settings):
    """Draws curves, {title: [(x, y), …]}; nothing if there are none."""
    if not curves:
        return
    data = "".join(f"$c{i} << EOD\n" + "".join(f"{x} {y}\n" for x, y in points) + "EOD\n"
                   for i, points in enumerate(curves.values()))  # fmt: skip
    lines = ", ".join(f"$c{i} with linespoints lw 2 pt 7 title '{title}'" for i, title in enumerate(curves))
    script = (f"set terminal svg size 720,440 background 'white'\nset output '{target}'\n"
              f"{settings}set grid\n{data}plot {lines}\n")  # fmt: skip
    subprocess.run(["gnuplot"], input=script, text=True, check=True)
    print(f"plot: {target}")
