// The programs that are moved while something goes wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gcr::fault::test {

/// Each line that it prints follows from the line's number alone.
struct Program {
  std::string name;  ///< of its file, which all its processes run
  std::vector<std::string> options{};
  bool under_library = true;             ///< else it moves through the driver alone
  std::size_t processes = 1;             ///< of one copy
  std::vector<std::string> passes_by{};  ///< fault points that its migrations never come to
  std::uint64_t proof = 20;              ///< lines that show that a copy goes on
  std::string last_words{};  ///< how a line begins that is its last one, and says why; or ""
  /// Makes what gives the lines of an undisturbed copy, one after the other.
  std::function<std::function<std::string()>()> lines{};
};

/// One process that steps every few milliseconds.
Program ticker(std::vector<std::string> options = {});

/// The same, without the preload library.
Program bare();

/// A parent and two ranks, which share VRAM, and whose kernels wait for each other.
Program ring();

/// By its name. Throws std::invalid_argument.
Program program_of(const std::string& name);

}  // namespace gcr::fault::test
