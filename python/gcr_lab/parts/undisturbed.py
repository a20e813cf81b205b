"""Programs that are moved and compared with an undisturbed run. Each result is in a few words for the table."""

from gcr_lab.base import Failure
from gcr_lab.parts.needs import first_gpus

STEPS = "step="

def same_first_lines(program, other, count, pattern):
    if program.lines(pattern)[:count] != other.lines(pattern)[:count]:
        raise Failure("it prints other lines than an undisturbed run")

def as_undisturbed(two, program, command, count, pattern=STEPS):
    """Ends the program. Its first `count` lines with the pattern are those that `command` prints on host b, where
    nothing else uses the GPU any more."""
    program.end()
    other = two.start("b", "undisturbed", command, count, pattern, library=False)
    other.end()
    same_first_lines(program, other, count, pattern)
    return f"{count} lines as undisturbed"

def moved_once(two, command, library=True):
    """Starts it, moves it, and waits for lines well beyond the move; and it prints what an undisturbed run prints."""
    program = two.start("a", "app", command, 5, STEPS, library)
    migration = two.migrate("a", "b", program, *([] if library else ["--allow-slow"]))
    count = program.wait_for_more(10, STEPS)
    return migration, as_undisturbed(two, program, command, count)

def once(lab, command, vram=None):
    with lab.hosts(vram=vram) as two:
        migration, compared = moved_once(two, command)
    return f"{compared}; {migration.vram_bytes} bytes tracked; {migration.times()}"

def downtimes(migrations):
    return " ".join(f"{migration.downtime_ms:.1f}" for migration in migrations)

def moved_five_times(two, command, pace, pattern=STEPS, swapped=()):
    """Five moves to and fro; the lines with `pattern` are those of an undisturbed run at full speed, where the value of
    the option `pace` is 0. With two GPUs in `swapped` each takes the place of the other at every move."""
    mapping = ["--device-map", f"{swapped[0]}={swapped[1]},{swapped[1]}={swapped[0]}"] if swapped else []
    program = two.start("a", "app", f"{command} {pace}", 3, pattern)
    places = [two.places("a")]
    def arrived(host):
        places.append(two.places(host))
        if swapped and places[-1] == places[-2]:
            raise Failure(f"it is on the same GPUs: {places[-1]}")
        program.wait_for_more(3, pattern)
    migrations = two.to_and_fro(program, 5, arrived, *mapping)
    compared = as_undisturbed(two, program, f"{command} {pace.split()[0]} 0", len(program.lines(pattern)), pattern)
    return migrations, f"{compared}; downtimes in ms: {downtimes(migrations)}", " then ".join(places)

def five(lab, command, swap=False):
    with lab.hosts() as two:
        swapped = first_gpus(lab) if swap else ()
        migrations, compared, places = moved_five_times(two, command, "--pace 0.3", swapped=swapped)
    last = migrations[-1]
    return f"five moves of {last.processes} processes, {last.vram_bytes} bytes of VRAM, {compared}; rank and GPU: {places}"
