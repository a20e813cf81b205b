"""Each phase that the agent records has a name of its own in the metrics. Usage: phases_test.py SOURCE"""
import re
import sys
import unittest
from pathlib import Path

AGENT = Path(sys.argv.pop()) / "migrate-agent"
RECORDED = re.compile(r'(?:\btime\(|\badd\(|\bTimer\b[^;]*?)\s*"(course|process|vram|images)",\s*"([^"]+)"')


class Phases(unittest.TestCase):
    def test_all_are_known_to_the_metrics(self):
        sources = [path.read_text(encoding="utf-8") for path in AGENT.rglob("*") if path.suffix in (".cc", ".h")]
        recorded = {name for text in sources for _, name in RECORDED.findall(text)}
        self.assertGreater(len(recorded), 40)
        metrics = (AGENT / "daemon/metrics/metrics.cc").read_text(encoding="utf-8")
        known = re.findall(r'"([^"]+)"', re.search(r"kPhases = \{(.*?)\};", metrics, re.S)[1])
        self.assertEqual(sorted(recorded - set(known)), [])


if __name__ == "__main__":
    unittest.main()
