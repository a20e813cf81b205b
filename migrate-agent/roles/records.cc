#include "migrate-agent/roles/records.h"

#include <algorithm>

namespace gcr::agent {
namespace {

constexpr std::size_t kMaxCommandBytes = 200;

}  // namespace

std::string short_command(std::string_view command) {
  std::string text(command.substr(0, kMaxCommandBytes));
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

journal::Record aborted(const Error& cause) {
  journal::Record record;
  record.mutable_aborted()->set_code(std::string(to_string(cause.code())));
  record.mutable_aborted()->set_message(cause.message());
  return record;
}

journal::Record finished(const std::string& text, pid_t pid) {
  journal::Record record;
  record.mutable_finished()->set_text(text);
  record.mutable_finished()->set_pid(pid);
  return record;
}

}  // namespace gcr::agent
