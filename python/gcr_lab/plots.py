"""Drawings of figures, by gnuplot."""

import shutil, subprocess
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
        draw(folder / f"{name}.svg", over_memory(downtime, name), f"{title} over GPU memory", "GPU memory (GiB)", "seconds",
             "logscale xy 2", "key left top")
    curves = {f"{'TLS' if tls else 'plain'}, {n} connection{'s' if n > 1 else ''}": points
              for (tls, n), points in transport_size_curves(transport).items()}
    draw(folder / "transport.svg", curves, "TCP transport over bytes per write", "KiB per write", "GB/s", "yrange [0:*]",
         "logscale x 2", "key outside")

def over_memory(lines, name):
    """{way: [(GiB, seconds), …]}. By hand the program is stopped all the time: total and downtime are one."""
    curves = {way: sorted((line["asked_bytes"] / GIB, line.get(f"{name}_ms", line["downtime_ms"]) / 1e3)
                          for line in figures.of(lines, way=way)) for way in ("gcr-migrate", "by-hand")}
    return {way: points for way, points in curves.items() if points}

def draw(target, curves, title, x, y, *settings):
    """Draws curves, {title: [(x, y), …]}; nothing if there are none."""
    if not curves:
        return
    settings = [f"title '{title}'", f"xlabel '{x}'", f"ylabel '{y}'", *settings, "grid",
                "terminal svg size 720,440 background 'white'", f"output '{target}'"]
    data = [f"$c{i} << EOD\n" + "".join(f"{x} {y}\n" for x, y in points) + "EOD" for i, points in enumerate(curves.values())]
    lines = ", ".join(f"$c{i} with linespoints lw 2 pt 7 title '{title}'" for i, title in enumerate(curves))
    script = "\n".join([*(f"set {each}" for each in settings), *data, f"plot {lines}\n"])
    subprocess.run(["gnuplot"], input=script, text=True, check=True)
    print(f"plot: {target}")
