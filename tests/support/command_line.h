// The command line of a test program. CLI11 is a large header: only command_line.cc includes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gcr::test {

/// Options keep the values of their variables unless they are given; --help shows these.
class CommandLine {
 public:
  explicit CommandLine(const char* description);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// T is int, unsigned, std::uint16_t, std::uint64_t, double, std::string or a vector of strings.
  template <class T>
  CommandLine& add(const char* name, T& value, const char* help = "");
  CommandLine& add_size(const char* name, std::uint64_t& bytes, const char* help = "");  ///< "64M"
  CommandLine& add_flag(const char* name, bool& value, const char* help = "");

  /// These apply to the option that was added last.
  CommandLine& within(double least, double most);
  CommandLine& positive();
  CommandLine& one_of(const std::vector<std::string>& values);
  CommandLine& excludes(const char* other);

  /// Ends the program after --help, and on invalid arguments.
  void parse(int argc, char** argv);

  /// Ends the program as parse() does.
  [[noreturn]] void refuse(const std::string& why);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gcr::test
