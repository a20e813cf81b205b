// The oracle: a process that is neither agent nor program follows the ticker's output and says
// whether it is what one undisturbed copy would have printed. A second copy that ran for one step,
// a step that was lost or done twice, a word of VRAM that is not what it must be: each shows.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/unique_fd.h"

namespace gcr::fault::test {

class Oracle {
 public:
  using Clock = std::chrono::steady_clock;

  /// Follows the file from its beginning. Throws std::system_error if it cannot be opened.
  explicit Oracle(const std::string& path);

  /// Reads what was appended since. Returns steps(). Throws std::system_error.
  std::uint64_t look();

  /// The last step that was seen; 0 if none was.
  std::uint64_t steps() const { return steps_; }

  /// What was wrong with the first line that was wrong, and the line; empty if none was.
  const std::string& complaint() const { return complaint_; }

 private:
  void judge(std::string_view line);

  UniqueFd file_;
  std::string rest_;  ///< the beginning of a line
  std::uint64_t steps_ = 0;
  std::string complaint_;
};

}  // namespace gcr::fault::test
