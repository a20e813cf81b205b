// libgcr-preload.so as it is shipped: its exports, its dependencies, and that a program which never
// uses CUDA cannot detect it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstdio>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "tests/preload/table/table_support.h"

namespace gcr::preload {
namespace {

/// Standard output and standard error of a shell command, followed by its wait status.
std::string output_of(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(("{ " + command + "; } 2>&1").c_str(), "r"),
                                             [](FILE*) { return 0; });
  std::string output;
  std::array<char, 4096> block;
  while (const std::size_t got = fread(block.data(), 1, block.size(), pipe.get())) {
    output.append(block.data(), got);
  }
  return output + "status " + std::to_string(pclose(pipe.release()));
}

const std::string kLibrary = GCR_PRELOAD_LIBRARY;

std::string preloaded(const std::string& command) {
  return "LD_PRELOAD=" + kLibrary + " " + command;
}

TEST(PreloadLibrary, ExportsOnlyTheTablesAndReplacements) {
  std::set<std::string> expected = {"dlmopen",  "dlopen",      "dlsym",   "dlvsym",
                                    "nvmlInit", "nvmlInit_v2", "syscall", "nvmlInitWithFlags"};
  for (const TestRow& row : test_rows()) {
    if (row.policy != RowPolicy::kPassed) expected.insert(row.symbol);
  }
  for (const TestRow& row : hip_rows()) {
    if (row.policy != RowPolicy::kPassed) expected.insert(row.symbol);
  }
  std::set<std::string> exported;
  std::istringstream lines(output_of("nm -D --defined-only --format=posix " + kLibrary));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("status ", 0) == 0) {
      EXPECT_EQ(line, "status 0");
      continue;
    }
    exported.insert(line.substr(0, line.find(' ')));
  }
  EXPECT_EQ(exported, expected);
}

TEST(PreloadLibrary, NeedsOnlyTheCLibrary) {
  const std::string dynamic = output_of("LC_ALL=C readelf -d " + kLibrary);
  std::istringstream lines(dynamic);
  std::set<std::string> needed;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("(NEEDED)") == std::string::npos) continue;
    const std::size_t open = line.find('[');
    needed.insert(line.substr(open + 1, line.find(']') - open - 1));
  }
  // Parts of it: the last two before glibc 2.34.
  for (const char* part : {"ld-linux-x86-64.so.2", "libdl.so.2", "libpthread.so.0"}) {
    needed.erase(part);
  }
  EXPECT_EQ(needed, std::set<std::string>{"libc.so.6"}) << dynamic;
}

TEST(PreloadLibrary, ChangesNothingForACProgram) {
  const std::string plain = output_of(GCR_NEVER_CUDA);
  EXPECT_NE(plain.find("threads 3 "), std::string::npos) << plain;
  EXPECT_EQ(output_of(preloaded(GCR_NEVER_CUDA)), plain);
}

TEST(PreloadLibrary, ChangesNothingForAPythonProgram) {
  const std::string program =
      "python3 -c 'import ctypes, os, threading; "
      "print(len(os.listdir(\"/proc/self/task\")), len(os.listdir(\"/proc/self/fd\")), "
      "hasattr(ctypes.CDLL(None), \"cuInit\"), ctypes.CDLL(None).getpid() == os.getpid(), "
      "sorted(k for k in os.environ if k.startswith(\"GCR\")))'";
  const std::string plain = output_of(program);
  EXPECT_NE(plain.find("1 "), std::string::npos) << plain;
  EXPECT_NE(plain.find("status 0"), std::string::npos) << plain;
  EXPECT_EQ(output_of(preloaded(program)), plain);
}

TEST(PreloadLibrary, PrintsNothingIfAProgramCannotStart) {
  const std::string program = "/bin/sh -c 'exec /nonexistent/program'";
  EXPECT_EQ(output_of(preloaded(program)), output_of(program));
}

}  // namespace
}  // namespace gcr::preload
