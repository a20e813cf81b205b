// The library's syscall: no io_uring unless requested, and everything else as in the C library.
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/softgpu/machines.h"

namespace gcr::preload {
namespace {

using Lines = std::vector<std::string>;

const std::string kNoRing = "ring: -1 errno " + std::to_string(ENOSYS);

/// The output of the subject in an environment with `variables`.
Lines run(Lines variables) {
  const softgpu::test::Machine none({});
  variables.insert(variables.begin(), "/usr/bin/env");
  variables.push_back(GCR_SYSCALL_SUBJECT);
  softgpu::test::Process process(none, variables);
  Lines lines;
  for (std::string line; !(line = process.receive()).empty();) lines.push_back(line);
  EXPECT_EQ(process.wait(), 0);
  return lines;
}

const std::string kUnder = "LD_PRELOAD=" GCR_PRELOAD_LIBRARY;

TEST(Syscall, IoUringIsHidden) {
  for (const Lines& variables : {Lines{kUnder}, Lines{kUnder, "GCR_IO_URING=deny"}}) {
    const Lines lines = run(variables);
    ASSERT_GT(lines.size(), 2u);
    EXPECT_EQ(lines[0], kNoRing);
    EXPECT_EQ(lines[1], kNoRing);
  }
}

TEST(Syscall, IoUringIsAvailableOnRequest) {
  EXPECT_EQ(run({kUnder, "GCR_IO_URING=allow"}), run({}));
}

TEST(Syscall, OtherCallsAreThoseOfTheCLibrary) {
  Lines under = run({kUnder});
  Lines plain = run({});
  ASSERT_GT(plain.size(), 15u);
  under.erase(under.begin(), under.begin() + 2);
  plain.erase(plain.begin(), plain.begin() + 2);
  EXPECT_EQ(under, plain);
  EXPECT_EQ(plain[0], "no argument: 1 errno 4711");
  EXPECT_EQ(plain[6], "six: 12345");
  EXPECT_EQ(plain.back(), "clone with a stack: 1 status 1280");
}

}  // namespace
}  // namespace gcr::preload
