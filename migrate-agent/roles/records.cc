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

}  // namespace gcr::agent
