// The programs that are moved while something fails.
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
  /// instead of name and options, for a program from elsewhere
  std::vector<std::string> command{};
  bool under_library = true;             ///< else it moves through the driver alone
  std::size_t processes = 1;             ///< of one copy; 0: not known
  std::vector<std::string> passes_by{};  ///< fault points that its migrations never reach
  std::uint64_t proof = 20;              ///< lines that prove that a copy runs
  std::string final_error{};  ///< how its last line begins, which names the reason; or ""
  std::string line_begins{};  ///< how the lines begin that count; other lines are skipped
  /// Creates a generator of the lines of an undisturbed copy. Empty for a command: a copy of it
  /// runs concurrently with the one that is moved.
  std::function<std::function<std::string()>()> lines{};
};

/// One process that steps every few milliseconds.
Program ticker(std::vector<std::string> options = {});

/// The same, without the preload library.
Program bare();

/// A parent and two ranks, which share VRAM, and whose kernels wait for each other.
Program ring();

/// By its name, or as "EXECUTABLE BEGIN PROOF COMMAND…": the name of the file that its processes
/// run, how its lines begin, how many lines prove that it runs, and its command. Throws
/// std::invalid_argument.
Program program_of(const std::string& name);

}  // namespace gcr::fault::test
