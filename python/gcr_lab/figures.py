"""Figures as JSON lines, one for each measurement."""

import dataclasses
import json
import pathlib


@dataclasses.dataclass(frozen=True)
class Record:
    """Adds lines to the file `path`, each with the figures that all of them have; without a path it adds none."""

    path: pathlib.Path | None
    common: dict

    def add(self, migration=None, **figures):
        """One line; of a migration, what it reports too."""
        if self.path is None:
            return
        of_migration = migration.figures() if migration else {}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**self.common, **figures, **of_migration}) + "\n")

    def collect(self, text, **figures):
        """Each JSON object among the lines that a program printed."""
        for line in text.splitlines():
            if line.startswith("{"):
                self.add(**{**figures, **{name: value for name, value in json.loads(line).items() if name != "bench"}})

    def but(self, **figures):
        """The same file, with other common figures."""
        return dataclasses.replace(self, common={**self.common, **figures})


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def of(lines, **wanted):
    """Those lines that have all these figures."""
    return [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]
