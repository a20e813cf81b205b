#include "src/base/descriptor_table.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace gcr {
namespace {

std::size_t table_size() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("FDSize:")) return std::stoul(line.substr(7));
  }
  return 0;
}

/// In a child process, whose table is as small as possible.
template <class Body>
int status_in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(DescriptorTable, GrowsAndStaysLarge) {
  EXPECT_EQ(status_in_child([] {
              const std::size_t before = table_size();
              make_room_for_descriptors(STDIN_FILENO, 1000);
              const int lowest = ::dup(STDIN_FILENO);
              return before < 1000 && table_size() >= 1000 && lowest < 100 ? 0 : 1;
            }),
            0);
}

TEST(DescriptorTable, GrowsToTheLimit) {
  EXPECT_EQ(status_in_child([] {
              rlimit limit{300, 300};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
              make_room_for_descriptors(STDIN_FILENO, 1000);
              return table_size() >= 300 && table_size() < 1000 ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace gcr
