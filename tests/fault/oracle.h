// The oracle: a process that is neither agent nor program follows the program's output and reports
// whether one undisturbed copy would have printed it. It notices a second copy that ran for one
// step, a lost or repeated step, and a wrong word of VRAM.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/base/unique_fd.h"
#include "tests/fault/program.h"

namespace gcr::fault::test {

class Oracle {
 public:
  using Clock = std::chrono::steady_clock;

  /// Follows the file from its beginning. Throws std::system_error if it cannot be opened.
  Oracle(const std::string& path, const Program& program);

  /// Reads the lines appended since. Returns lines(). Throws std::system_error.
  std::uint64_t read_new_lines();

  /// How many were right, up to the first wrong one.
  std::uint64_t lines() const { return lines_; }

  /// The error in the first wrong line, and the line; empty if none was wrong.
  const std::string& complaint() const { return complaint_; }

  /// The program's own error message at its end; empty if it printed none.
  const std::string& final_error() const { return final_error_; }

 private:
  void judge(std::string_view line);

  UniqueFd file_;
  std::string rest_;  ///< the beginning of a line
  std::uint64_t lines_ = 0;
  std::function<std::string()> next_;
  std::string expected_;  ///< the next line; empty until it is needed
  std::string final_error_begin_;
  std::string line_begins_;
  std::string final_error_;
  std::string complaint_;
};

}  // namespace gcr::fault::test
