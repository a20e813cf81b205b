// The expected lines of handover, for the program and for the checkers of its output.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace gcr::apps {

/// Every third buffer is the one before, sent a second time.
constexpr bool is_sent_again(std::uint64_t number) { return number % 3 == 2; }

/// The content of every word of the buffer with that number.
constexpr std::uint64_t handover_word(std::uint64_t number) {
  return (is_sent_again(number) ? number : number + 1) * 0x9e3779b97f4a7c15;
}

/// "<number> <the word that the taker found in the whole buffer, hex>"
inline std::string handover_line(std::uint64_t number, std::uint64_t word) {
  char line[64];
  std::snprintf(line, sizeof(line), "%llu %016llx", static_cast<unsigned long long>(number),
                static_cast<unsigned long long>(word));
  return line;
}

/// The lines of an undisturbed run, one after the other.
class HandoverLines {
 public:
  std::string next() {
    const std::uint64_t number = number_++;
    return handover_line(number, handover_word(number));
  }

 private:
  std::uint64_t number_ = 0;
};

}  // namespace gcr::apps
