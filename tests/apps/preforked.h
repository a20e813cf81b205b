// The expected lines of preforked, for the program and for the checkers of its output.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace gcr::apps {

/// A worker's answer: a hash of all its numbers, in their order.
constexpr std::uint64_t preforked_answer(std::uint64_t previous, std::uint64_t number) {
  return previous * 6364136223846793005 + number;
}

/// "<number> <worker> <the worker's answer, hex> <how many numbers the worker has received>"
inline std::string preforked_line(std::uint64_t number, std::size_t worker, std::uint64_t answer,
                                  std::uint64_t handled) {
  char line[96];
  std::snprintf(line, sizeof(line), "%llu %zu %016llx %llu",
                static_cast<unsigned long long>(number), worker,
                static_cast<unsigned long long>(answer), static_cast<unsigned long long>(handled));
  return line;
}

/// The lines of an undisturbed run, one after the other.
class PreforkedLines {
 public:
  explicit PreforkedLines(std::size_t workers) : answers_(workers) {}

  std::string next() {
    const std::size_t worker = number_ % answers_.size();
    const std::uint64_t handled = number_ / answers_.size() + 1;
    ++number_;
    answers_[worker] = preforked_answer(answers_[worker], number_);
    return preforked_line(number_, worker, answers_[worker], handled);
  }

 private:
  std::uint64_t number_ = 0;
  std::vector<std::uint64_t> answers_;
};

}  // namespace gcr::apps
