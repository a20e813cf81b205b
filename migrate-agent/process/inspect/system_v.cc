#include "migrate-agent/process/inspect/system_v.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace gcr::process {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream words(line);
  return {std::istream_iterator<std::string>(words), {}};
}

/// The lines of /proc/sysvipc/`kind` with one of these users in the column "uid".
std::size_t count(const char* kind, const std::set<uid_t>& users) {
  std::ifstream file(fmt::format("/proc/sysvipc/{}", kind));
  std::string line;
  std::getline(file, line);
  const auto columns = words_of(line);
  const auto column = std::ranges::find(columns, "uid") - columns.begin();
  std::size_t found = 0;
  while (std::getline(file, line)) {
    const auto words = words_of(line);
    if (column >= std::ssize(words)) continue;
    found += users.contains(static_cast<uid_t>(std::stoul(words[column]))) ? 1 : 0;
  }
  return found;
}

std::string amount(std::size_t number, const char* one, const char* many) {
  return fmt::format("{} {}", number, number == 1 ? one : many);
}

}  // namespace

std::string unattached_objects(const std::set<uid_t>& users) {
  const std::size_t sets = count("sem", users);
  const std::size_t queues = count("msg", users);
  std::string text = sets != 0 ? amount(sets, "set of semaphores", "sets of semaphores") : "";
  if (sets != 0 && queues != 0) text += " and ";
  return queues != 0 ? text + amount(queues, "message queue", "message queues") : text;
}

}  // namespace gcr::process
