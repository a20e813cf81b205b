"""Man pages, completions and the shipped configuration, compared with the programs that they describe.

Usage: documents_test.py SOURCE_DIR GCR_MIGRATE MIGRATE_AGENT
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE, CLI, AGENT = (os.path.abspath(path) for path in sys.argv[1:4])
PAGES = ["gcr-migrate.1", "gcr-container.1", "gcr-drain.1", "gcr-slurm.1", "gcr-turns.1", "gcr-migrate-hosts.5", "agent.toml.5",
         "migrate-agent.8", "gcr-runtime.8"]
COMPLETIONS = os.path.join(SOURCE, "cmake/packaging/completions")


def output(*command, **options):
    """Standard output and error of a command that succeeds."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}: {done.stdout}"
    return done.stdout


def read(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        return file.read()


def page_path(page):
    return os.path.join(SOURCE, "docs/man", page)


def page_text(page):
    """The page as displayed, without overstriking."""
    return re.sub(".\b", "", output("mandoc", "-Tascii", page_path(page)))


def options_of(*command):
    """The long options in --help, and the values of those that have a choice."""
    text = output(*command, "--help")
    found = re.findall(r"^  (?:-[a-z],)?(--[a-z-]+)(?: ((?:[a-z0-9]+\|)+[a-z0-9]+))?", text, re.M)
    assert ("--help", "") in found
    return {option: values.split("|") if values else [] for option, values in found}


def subcommands():
    section = output(CLI, "--help").split("\nSubcommands:\n")[1].split("\n\n")[0]
    return re.findall(r"^  ([a-z]+) ", section, re.M)


class ManPages(unittest.TestCase):
    def test_man_pages_have_no_warnings(self):
        for page in PAGES:
            self.assertEqual(output("mandoc", "-Tlint", "-Wwarning", page_path(page)), "")
            self.assertEqual(output("groff", "-ww", "-mandoc", "-Tutf8", "-z", page_path(page)), "")

    def test_man_pages_are_found_by_man(self):
        with tempfile.TemporaryDirectory() as folder:
            for page in PAGES:
                section = os.path.join(folder, "man" + page[-1])
                os.makedirs(section, exist_ok=True)
                os.symlink(page_path(page), os.path.join(section, page))
            for name in ("agent.toml", "gcr-migrate-hosts"):
                self.assertIn(name.upper(), output("man", "-M", folder, name, env={**os.environ, "MANPAGER": "cat"}))

    def test_man_page_has_every_option_and_command(self):
        text = page_text("gcr-migrate.1")
        for option in options_of(CLI):
            self.assertIn(option, text)
        self.assertGreater(len(subcommands()), 8)
        for subcommand in subcommands():
            self.assertRegex(text, rf"\n +{subcommand} ")
            for option in options_of(CLI, subcommand):
                self.assertIn(option, text)

    def test_man_page_has_every_option_of_the_agent(self):
        text = page_text("migrate-agent.8")
        for option in options_of(AGENT):
            self.assertIn(option, text)

    def test_man_pages_have_no_unknown_option(self):
        known = set(options_of(CLI))
        for subcommand in subcommands():
            known |= set(options_of(CLI, subcommand))
        self.assertLessEqual(set(re.findall(r"--[a-z][a-z-]*[a-z]", page_text("gcr-migrate.1"))), known)

    def script_help(self, script, *command):
        program = os.path.join(SOURCE, "scripts", script)
        return output(sys.executable, program, *command, "--help", env={"COLUMNS": "500"})

    def assert_has_just_the_options(self, page, commands, one):
        known = set()
        for command in commands:
            known |= set(re.findall(r"(?<![\w-])--[a-z-]+[a-z]", self.script_help(*command)))
        self.assertIn(one, known)
        of_sbatch = {"--migratable"}
        self.assertEqual(set(re.findall(r"--[a-z][a-z-]*[a-z]", page_text(page))) - of_sbatch, known)

    def test_man_pages_have_the_options_of_drain_and_rebalance(self):
        self.assert_has_just_the_options("gcr-drain.1", (["drain"], ["rebalance"]), "--least-gain")

    def test_man_page_has_the_options_of_slurm_commands(self):
        self.assert_has_just_the_options("gcr-slurm.1", (["slurm", "migrate"], ["slurm", "serve"]), "--wake-socket")

    def test_man_page_has_the_options_of_container(self):
        commands = [["container", verb] for verb in ("migrate", "preflight", "run")]
        self.assert_has_just_the_options("gcr-container.1", commands, "--shell")
        statuses = re.findall(r"^  ([0-9]+)  ", self.script_help("container"), re.M)
        self.assertGreater(len(statuses), 5)
        page = page_text("gcr-container.1").split("\nEXIT STATUS\n")[1].split("\nEXAMPLES\n")[0]
        self.assertEqual(re.findall(r"(?m)^ +([0-9]+) ", page), statuses)

    def test_man_page_has_the_options_of_turns(self):
        self.assert_has_just_the_options("gcr-turns.1", (["turns"],), "--turn")

    def test_man_page_has_every_exit_status_of_slurm_migrate(self):
        statuses = re.findall(r"^  ([0-9]+)  ", self.script_help("slurm"), re.M)
        self.assertGreater(len(statuses), 5)
        page = page_text("gcr-slurm.1").split("\nEXIT STATUS\n")[1].split("Of serve")[0]
        self.assertEqual(re.findall(r"(?m)^ +([0-9]+) ", page), statuses)

    def test_man_page_has_every_exit_status(self):
        table = output(CLI, "--help").split("\nExit status:\n")[1].split("\n\n")[0]
        statuses = re.findall(r"^  ([0-9]+) ", table, re.M)
        self.assertGreater(len(statuses), 7)
        page = page_text("gcr-migrate.1").split("\nEXIT STATUS\n")[1]
        for status in statuses:
            self.assertRegex(page, rf"(?m)^ +{status} ")


class Configuration(unittest.TestCase):
    def keys(self):
        """The keys that the parser reads."""
        source = read("migrate-agent/worker/config/config.cc")
        return set(re.findall(r'(?:table|root)\.(?!sections?\b)(?:\w+)\(\s*"(\w+)"', source))

    def test_keys_are_found_in_the_parser(self):
        self.assertIn("listen", self.keys())
        self.assertIn("revoked", self.keys())
        self.assertGreater(len(self.keys()), 25)

    def test_shipped_file_has_exactly_the_keys(self):
        shipped = read("cmake/packaging/agent.toml")
        self.assertEqual(set(re.findall(r"^#?(\w+) = ", shipped, re.M)), self.keys())

    def test_man_page_has_every_key_with_its_default(self):
        page = page_text("agent.toml.5")
        for key, value in re.findall(r"^#?(\w+) = (.*)$", read("cmake/packaging/agent.toml"), re.M):
            if key in ("name", "users"):
                self.assertRegex(page, rf"\n +{key}\b")
            else:
                self.assertIn(f"{key} = {value}", page)

    def test_every_key_is_documented_in_the_config_header(self):
        comment = read("migrate-agent/worker/config/config.h").split("#pragma once")[0]
        for key in self.keys():
            self.assertRegex(comment, rf"//   {key} +=")


class RuntimeConfiguration(unittest.TestCase):
    """That the shipped file has just the keys of the parser is tested with the parser."""

    def test_man_page_has_every_key_with_its_default(self):
        page = page_text("gcr-runtime.8")
        keys = re.findall(r"^#(\w+) = (.*)$", read("cmake/packaging/containers/runtime.toml"), re.M)
        self.assertGreater(len(keys), 4)
        for key, value in keys:
            self.assertIn(f"{key} = {value}", page)


class Completions(unittest.TestCase):
    def setUp(self):
        self.environment = dict(os.environ, PATH=os.path.dirname(CLI) + ":" + os.environ["PATH"])

    def shell(self, *command):
        return output(*command, env=self.environment)

    def bash(self, *words):
        script = (f'source {COMPLETIONS}/gcr-migrate.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  '_gcr_migrate; printf "%s\\n" "${COMPREPLY[@]}"')
        return set(self.shell("bash", "--norc", "-c", script, "bash", "gcr-migrate", *words).split())

    def fish(self, line):
        script = f"source {COMPLETIONS}/gcr-migrate.fish; complete -C '{line}'"
        return {word.split("\t")[0] for word in self.shell("fish", "--no-config", "-c", script).splitlines()}

    def zsh(self, *words):
        """The arguments of _arguments, options without their values."""
        script = (f"_call_program() {{ shift; eval $* }}; _arguments() {{ print -l -- $@ }}; "
                  f"words=(gcr-migrate $@); CURRENT=$#words; source {COMPLETIONS}/_gcr-migrate")
        return set(self.shell("zsh", "-f", "-c", script, "zsh", *words).splitlines())

    def test_every_option_is_offered(self):
        for command in [[]] + [[name] for name in subcommands() if name != "run"]:
            options = set(options_of(CLI, *command))
            line = " ".join(["gcr-migrate", *command, "--"])
            self.assertEqual(self.bash(*command, "--"), options)
            self.assertEqual(self.fish(line) & options, options)
            specs = {spec.split(":")[0] for spec in self.zsh(*command, "--")}
            self.assertEqual(specs & options, options)

    def test_choices_are_offered(self):
        chosen = {option: values for option, values in options_of(CLI).items() if values}
        self.assertIn("--transport", chosen)
        for option, values in chosen.items():
            self.assertEqual(self.bash(option, ""), set(values))
            self.assertEqual(self.fish(f"gcr-migrate {option} "), set(values))
            self.assertIn(f"{option}:value:({' '.join(values)})", self.zsh(option))

    def test_commands_and_hosts_are_offered_first(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "gcr-migrate"))
            with open(os.path.join(folder, "gcr-migrate", "hosts.toml"), "w", encoding="utf-8") as file:
                file.write('near1 = "10.0.0.1"\n[far1]\nagent = "10.0.0.2"\n')
            self.environment["XDG_CONFIG_HOME"] = folder
            everything = set(subcommands()) | {"near1", "far1", "local"}
            self.assertEqual(self.bash(""), everything)
            self.assertEqual(self.bash("near1", "f"), {"far1"})
            self.assertEqual(self.bash("status", "n"), {"near1"})
            self.assertEqual(self.bash("container", "p"), {"preflight"})
            self.assertIn("preflight", self.fish("gcr-migrate container p"))
            self.assertEqual(self.fish("gcr-migrate ") & everything, everything)

    def test_numbers_and_rates_are_not_completed(self):
        self.assertEqual(self.bash("--max-rounds", ""), set())
        self.assertEqual(self.bash("--lanes", ""), set())

    def test_zsh_accepts_its_file(self):
        self.assertEqual(self.shell("zsh", "-n", f"{COMPLETIONS}/_gcr-migrate"), "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
