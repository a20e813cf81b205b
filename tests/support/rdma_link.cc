#include "tests/support/rdma_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace gcr::test {
namespace {

void run(const std::string& command) {
  if (std::system(command.c_str()) == 0) return;  // NOLINT(concurrency-mt-unsafe): a test
  std::fprintf(stderr, "this failed: %s\n", command.c_str());
  std::abort();
}

}  // namespace

RdmaLink::~RdmaLink() {
  run("for interface in rdma-a rdma-b; do tc qdisc del dev $interface root; done 2>/dev/null; "
      "true");
}

void RdmaLink::stall() { lose(100); }

void RdmaLink::lose(double percent) {
  for (const char* const interface : {"rdma-a", "rdma-b"}) {
    run(fmt::format("tc qdisc replace dev {} root netem limit 10000 loss {}%", interface, percent));
  }
}

void RdmaLink::pass_only(std::uint64_t more_bytes) {
  // A bucket that is filled once: 1 byte is added each second.
  run(fmt::format("tc qdisc replace dev rdma-a root tbf rate 8bit burst {} limit 20000",
                  std::max<std::uint64_t>(more_bytes, 1)));
}

}  // namespace gcr::test
