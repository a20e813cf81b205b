#include "tests/support/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace gcr::test {

struct CommandLine::Impl {
  explicit Impl(const char* description) : app(description) {}

  CLI::App app;
  CLI::Option* last = nullptr;
};

CommandLine::CommandLine(const char* description) : impl_(std::make_unique<Impl>(description)) {}
CommandLine::~CommandLine() = default;

template <class T>
CommandLine& CommandLine::add(const char* name, T& value, const char* help) {
  impl_->last = impl_->app.add_option(name, value, help)->capture_default_str();
  return *this;
}
template CommandLine& CommandLine::add(const char*, int&, const char*);
template CommandLine& CommandLine::add(const char*, unsigned&, const char*);
template CommandLine& CommandLine::add(const char*, std::uint16_t&, const char*);
template CommandLine& CommandLine::add(const char*, std::uint64_t&, const char*);
template CommandLine& CommandLine::add(const char*, double&, const char*);
template CommandLine& CommandLine::add(const char*, std::string&, const char*);
template CommandLine& CommandLine::add(const char*, std::vector<std::string>&, const char*);

CommandLine& CommandLine::add_size(const char* name, std::uint64_t& bytes, const char* help) {
  impl_->last = impl_->app.add_option(name, bytes, help)->transform(CLI::AsSizeValue(false));
  return *this;
}

CommandLine& CommandLine::add_flag(const char* name, bool& value, const char* help) {
  impl_->last = impl_->app.add_flag(name, value, help);
  return *this;
}

CommandLine& CommandLine::within(double least, double most) {
  impl_->last->check(CLI::Range(least, most));
  return *this;
}

CommandLine& CommandLine::positive() {
  impl_->last->check(CLI::PositiveNumber);
  return *this;
}

CommandLine& CommandLine::one_of(const std::vector<std::string>& values) {
  impl_->last->check(CLI::IsMember(values));
  return *this;
}

CommandLine& CommandLine::excludes(const char* other) {
  impl_->last->excludes(other);
  return *this;
}

void CommandLine::parse(int argc, char** argv) {
  try {
    impl_->app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(impl_->app.exit(error));
  }
}

void CommandLine::refuse(const std::string& why) {
  std::exit(impl_->app.exit(CLI::ValidationError(why)));
}

}  // namespace gcr::test
