// The resources of two hosts: the copies of a program, and everything that should have been
// removed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/e2e/two_hosts.h"

namespace gcr::fault::test {

using e2e::Host;
using e2e::TwoHosts;

/// A program's topmost process and all below it: running or stopped, on either host.
struct Copy {
  Host host = Host::kA;
  pid_t pid = -1;
  std::size_t processes = 0;
};

/// The result of one measurement.
struct Holdings {
  std::vector<Copy> copies;
  std::vector<std::string> leftovers;  ///< a sentence each; empty on clean hosts
};

/// The resources of idle hosts: measured once, then compared with.
class Baseline {
 public:
  /// The hosts are idle, and one copy of that program runs.
  Baseline(const TwoHosts& hosts, std::string program);

  /// Everything beyond the measured resources. Needs no idle hosts.
  Holdings measure(const TwoHosts& hosts) const;

 private:
  struct OfHost {
    std::uint64_t descriptors = 0;
    std::vector<std::string> files;
  };

  void look_at(const TwoHosts& hosts, Host host, bool has_copy, Holdings& holdings) const;

  std::string program_;
  std::map<Host, OfHost> hosts_;
  std::uint64_t copy_vram_bytes_ = 0;
};

/// Those of that program on both hosts.
std::vector<Copy> copies(const TwoHosts& hosts, const std::string& program);

/// Journals of the host's agent that are not finished, or damaged: a sentence each.
std::vector<std::string> open_journals(const TwoHosts& hosts, Host host);

/// The kernel's limit of surplus hugepages, without the current claims of this machine's agents.
std::uint64_t unclaimed_hugepages();

}  // namespace gcr::fault::test
