"""The differences that two machines can have, a pair of machines each: a job is moved there and back, or preflight
names the reason. Prints a row for each. Long: scripts/two-machines --all."""
import os
import re
import subprocess
import tempfile
import textwrap
import unittest

from job import JobTest, machines_with_packages, value
from machines import NODES, ROOT

PRESENT = "max,-avx,-avx2,-erms,-fsrm"  # as scripts/two-machines has it by itself


class Row(JobTest):
    rows = []

    @classmethod
    def tearDownClass(cls):
        print(*cls.rows, sep="\n", flush=True)
        cls.rows.clear()

    def row(self, what, result):
        self.rows.append(f"| {what} | {result} |")

    def there(self, *options):
        """Moves it to the other machine: where, and its downtime."""
        said = self.move(*options)
        self.assert_one_copy()
        self.assert_progress()
        return f"to {self.node} {float(value('downtime_ms', said)):,.0f} ms"

    def there_and_back(self, what, *options):
        self.row(what, f"{self.there(*options)}, {self.there(*options)}")

    def refused(self, what, *wanted):
        """The migration, with this in its output; the job runs on."""
        said = self.machines.run("node1", f"gcr-migrate --quiet {self.node} {self.other()} {self.pid}", status=None)
        for words in wanted:
            self.assertIn(words, said)
        self.assert_one_copy()
        self.assert_progress()
        self.row(what, "refused: " + " ".join(said.split()))

    def on_both(self, script, **words):
        for node in NODES:
            self.machines.run(node, script.format(node=node, number=node[-1], other=3 - int(node[-1]), **words))


class Networks(Row):
    """One pair of machines, with differences between them and on their clocks."""
    CARD = "$(ip -o link | grep -o 'e[a-z0-9]*: .*52:54:00:00:01' | cut -d: -f1)"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.machines, _ = machines_with_packages(cls.addClassCleanup)

    def test_00_install_md(self):
        self.follow_install_md()

    def test_10_frames(self):
        self.there_and_back("frames of 1,500 bytes")
        self.on_both(f"ip link set {self.CARD} mtu 9000")
        self.there_and_back("jumbo frames")
        # As of a switch that silently drops frames that are too large.
        self.on_both(f"tc qdisc add dev {self.CARD} clsact && tc filter add dev {self.CARD} egress matchall "
                     "action police mtu 1514 rate 100gbit burst 100m conform-exceed drop/ok")
        self.on_both("! ping -c 2 -W 2 -M do -s 4000 node{other} && ping -c 1 -s 1000 node{other}")
        self.refused("jumbo frames, and a switch that drops them", "has not acknowledged")
        self.on_both(f"tc qdisc del dev {self.CARD} clsact; ip link set {self.CARD} mtu 1500")

    def test_11_slow_lossy_link(self):
        self.on_both(f"tc qdisc add dev {self.CARD} root netem rate 100mbit delay 40ms loss 0.1%")
        link = "100 Mbit/s, 40 ms each way, 0.1 % lost"
        self.there_and_back(link)
        self.there_and_back(f"{link}; --auto-converge", "--auto-converge")
        self.there_and_back(f"{link}; --max-bandwidth 4M", "--max-bandwidth", "4M")
        self.on_both(f"tc qdisc del dev {self.CARD} root")

    def test_20_clocks(self):
        self.machines.run("node2", "date -s '+2 seconds'")
        self.there_and_back("clocks 2 s apart")

    def test_21_boot_times(self):
        self.machines.age("node2", hours=9)
        self.machines.set_clocks()
        uptimes = [float(self.machines.run(node, "cat /proc/uptime").split()[0]) for node in NODES]
        self.assertGreater(uptimes[1] - uptimes[0], 8.5 * 3600)
        self.there_and_back("node2 was started nine hours before node1")

    def test_30_ipv6_only(self):
        self.on_both(f"ip addr flush dev {self.CARD} && ip addr add fd00:6::{{number}}/64 dev {self.CARD} nodad && "
                     "sed -i 's/192[.]0[.]2[.]/fd00:6::/' /etc/hosts && "
                     "sed -i 's/^#listen = .*/listen = \"[::]:7411\"/' /etc/gcr-migrate/agent.toml && "
                     "systemctl restart migrate-agent")
        self.there_and_back("IPv6 alone")

    def test_40_routers(self):
        """Each machine has a router before it, a namespace with its network card: MTU 9,000 on both sides, 1,500
        between."""
        self.on_both(f"""
            card={self.CARD}
            ip netns add router && ip link set $card netns router
            ip link add inside mtu 9000 type veth peer name outside mtu 9000 netns router
            ip addr add 192.0.2.{{number}}/24 dev inside && ip link set inside up
            sed -i 's/fd00:6::/192.0.2./' /etc/hosts
            ip netns exec router sh -ec "
              sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.proxy_arp=1
              ip link set lo up && ip link set outside up && ip link set $card mtu 1500 up
              ip addr add 198.51.100.{{number}}/32 dev lo
              ip route add 192.0.2.{{number}}/32 dev outside && ip route add 192.0.2.0/24 dev $card" """)
        self.on_both("! ping -c 2 -W 2 -M do -s 4000 node{other} && ping -c 1 -s 1000 node{other}")
        self.there_and_back("jumbo frames, routers with 1,500 bytes between")


class Machines(Row):
    """A pair of machines for each."""

    def have(self, *options, others=""):
        """With a job on node1."""
        type(self).machines, _ = machines_with_packages(self.addCleanup, *options, others=others)
        self.follow_install_md()

    def begin(self, node, before=""):
        """A new job."""
        pid = self.machines.run(node, before + "gcr-migrate run --output serve.log --detach -- python3 serve.py",
                                user="alice")
        self.settle(node, pid.splitlines()[-1])
        self.start_new_file()

    def test_20_control_groups_of_version_1(self):
        self.have("--append", ";systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller")
        self.there_and_back("control groups: version 2 at node1, version 1 at node2")

    def test_30_processors(self):
        self.have("--cpu", f"{PRESENT};{PRESENT},-sse4.2,-popcnt")
        self.refused("node1 has SSE 4.2, node2 has not", "[cpu-features]")
        self.machines.run(self.node, f"kill {self.pid}")
        self.begin("node2")
        self.row("the same, and the job began on node2", self.there())
        self.refused("from there back", "[cpu-features]")  # it may have seen what node1 can do

    def test_40_apparmor(self):
        self.have()
        self.assertEqual(self.machines.run("node1", "cat /sys/module/apparmor/parameters/enabled"), "Y")
        self.machines.run(self.node, f"kill {self.pid}")
        # The software GPU's process opens files in a directory that it gets from outside its mount namespace.
        profile = "profile gcr-job flags=(attach_disconnected) { file, network, unix, signal, ptrace, capability, }"
        self.machines.run("node1", "apparmor_parser -r", stdin=profile)
        self.begin("node1", "aa-exec -p gcr-job -- ")
        self.refused("under a profile of AppArmor's that node2 has not", "[security-label]")
        self.machines.run("node2", "apparmor_parser -r", stdin=profile)
        self.there_and_back("under a profile of AppArmor's that both have")
        self.assertIn("gcr-job", self.machines.run(self.node, f"cat /proc/{self.pid}/attr/current"))

    def test_41_selinux(self):
        self.have("--append", "security=selinux selinux=1", "--install", "selinux-policy-default selinux-utils")
        # Disks have no labels, and a system booted from them has no contexts.
        self.on_both("setfiles -F /etc/selinux/default/contexts/files/file_contexts / 2>/dev/null; sync")
        for node in NODES:
            self.machines.cut(node)
            self.machines.boot(node)
        self.begin("node1")
        self.refused("SELinux with Debian's policy, the agent as Debian starts services", "[security-label]")
        told = re.search(r"semodule.*?\n\n", (ROOT / "docs/install.md").read_text(), re.DOTALL)[0]
        self.on_both(textwrap.dedent("    " + told) + "setenforce 1")
        self.there_and_back("SELinux, enforced, as install.md says")
        self.assertIn(":unconfined_t:", self.machines.run(self.node, f"cat /proc/{self.pid}/attr/current"))

    def test_50_releases(self):
        packages = os.environ.get("GCR_TRIXIE_PACKAGES")  # which take a while
        if packages is None:
            folder = tempfile.TemporaryDirectory()
            self.addCleanup(folder.cleanup)
            packages = folder.name
            subprocess.run([ROOT / "scripts/package", "--release", "trixie", "--out", packages], check=True,
                           stdout=subprocess.DEVNULL)
        self.have("--release", "bookworm;trixie", others=packages)
        self.refused("Debian 12 to 13", "[file-differs]")
        self.begin_with_libraries_of_its_own()
        self.there_and_back("Debian 12 and 13, a job with libraries of its own")

    def begin_with_libraries_of_its_own(self):
        """All files that its process has mapped, and Python, are in a folder that is the same on both; it has no
        supervisor."""
        self.machines.run("node1", f"""
            mkdir -p /opt/job/lib
            grep -oE '/(usr/)?lib/.*[.]so[.0-9]*$' /proc/$(pgrep -P {self.pid})/maps | sort -u |
              grep -v -e gcr -e python -e libcuda | xargs -I@ cp @ /opt/job/lib/
            ldconfig -n /opt/job/lib
            cp /usr/bin/python3 /opt/job/
            cp -a /usr/lib/python3* /opt/job/lib/
            dpkg-query -L gcr-migrate-preload | grep [.]so | tar -cf /opt/job.tar -T - /opt/job
            ssh node2 tar -C / -xf - </opt/job.tar
            kill {self.pid}""")
        for node in NODES:
            self.machines.run(node, "chmod 755 . && rm -f serve.log && install -m 644 /dev/null serve.log", user="alice")
        pid = self.machines.run("node1", """
            export LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONHOME=/opt/job
            setsid gcr-migrate run -- /opt/job/lib/ld-linux-x86-64.so.2 --library-path /opt/job/lib \\
              /opt/job/python3 serve.py </dev/null >>serve.log 2>&1 &
            sleep 20; pgrep -f ^/opt/job/lib/ld""", user="alice")
        self.settle("node1", pid.splitlines()[-1])

if __name__ == "__main__":
    unittest.main()
