#include "src/base/users.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <vector>

namespace gcr {
namespace {

constexpr std::size_t kFirstBytes = 4096;
constexpr std::size_t kMostBytes = std::size_t{16} << 20;  ///< for a very large group

/// Calls `lookup`, a function such as getpwuid_r, with growing buffers in `space`; none if it finds
/// nothing.
template <class Entry, class Lookup, class Key>
std::optional<Entry> look_up(Lookup lookup, Key key, std::vector<char>& space) {
  Entry entry{};
  Entry* found = nullptr;
  for (space.resize(kFirstBytes); space.size() <= kMostBytes; space.resize(2 * space.size())) {
    const int error = lookup(key, &entry, space.data(), space.size(), &found);
    if (error == ERANGE || error == EINTR) continue;
    return found != nullptr ? std::optional(entry) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string user_name(uid_t uid) {
  std::vector<char> space;
  const auto entry = look_up<passwd>(::getpwuid_r, uid, space);
  return entry ? entry->pw_name : "";
}

std::optional<gid_t> primary_group(uid_t uid) {
  std::vector<char> space;
  const auto entry = look_up<passwd>(::getpwuid_r, uid, space);
  return entry ? std::optional(entry->pw_gid) : std::nullopt;
}

std::vector<gid_t> groups_of(uid_t uid) {
  std::vector<char> space;
  const auto entry = look_up<passwd>(::getpwuid_r, uid, space);
  if (!entry) return {};
  std::vector<gid_t> groups(64);
  int count = static_cast<int>(groups.size());
  while (::getgrouplist(entry->pw_name, entry->pw_gid, groups.data(), &count) < 0) {
    groups.resize(static_cast<std::size_t>(count));
  }
  groups.resize(static_cast<std::size_t>(count));
  return groups;
}

std::string group_name(gid_t gid) {
  std::vector<char> space;
  const auto entry = look_up<group>(::getgrgid_r, gid, space);
  return entry ? entry->gr_name : "";
}

std::string describe_user(uid_t uid) {
  std::string name = user_name(uid);
  return name.empty() ? fmt::format("uid {}", uid) : name;
}

std::string describe_group(gid_t gid) {
  std::string name = group_name(gid);
  return name.empty() ? fmt::format("gid {}", gid) : name;
}

std::optional<uid_t> user_id(const std::string& name) {
  uid_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc{} && end == name.data() + name.size()) return number;
  std::vector<char> space;
  const auto entry = look_up<passwd>(::getpwnam_r, name.c_str(), space);
  return entry ? std::optional(entry->pw_uid) : std::nullopt;
}

}  // namespace gcr
