// The oracle: a process that is neither agent nor program follows the program's output and says
// whether it is what one undisturbed copy would have printed. A second copy that ran for one step,
// a step that was lost or done twice, a word of VRAM that is not what it must be: each shows.
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

  /// Reads what was appended since. Returns lines(). Throws std::system_error.
  std::uint64_t look();

  /// How many were right, up to the first that was not.
  std::uint64_t lines() const { return lines_; }

  /// What was wrong with the first line that was wrong, and the line; empty if none was.
  const std::string& complaint() const { return complaint_; }

  /// Why the program ended, in its own words; empty if it said nothing.
  const std::string& last_words() const { return last_words_; }

 private:
  void judge(std::string_view line);

  UniqueFd file_;
  std::string rest_;  ///< the beginning of a line
  std::uint64_t lines_ = 0;
  std::function<std::string()> next_;
  std::string expected_;  ///< the next line; empty until it is needed
  std::string last_words_begin_;
  std::string line_begins_;
  std::string last_words_;
  std::string complaint_;
};

}  // namespace gcr::fault::test
