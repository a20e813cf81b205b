#include "migrate-agent/process/layer/rules.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <utility>

namespace gcr::layer {
namespace {

constexpr std::size_t kMaxShownBytes = 200;

struct Device {
  unsigned major, minor;
};

/// null, zero, full, random, urandom, tty, ptmx.
constexpr std::array<Device, 7> kDevices{{{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 2}}};

/// Orders '/' before all other bytes of a path.
unsigned rank(char byte) { return byte == '/' ? 0 : static_cast<unsigned char>(byte); }

}  // namespace

bool is_carried_attribute(std::string_view name) {
  return name.starts_with("user.") || name == "security.capability" ||
         name == "system.posix_acl_access" || name == "system.posix_acl_default";
}

Status check_device(const std::string& path, mode_t mode, dev_t device) {
  const auto is_it = [device](const Device& known) {
    return known.major == major(device) && known.minor == minor(device);
  };
  if (S_ISCHR(mode) && std::ranges::any_of(kDevices, is_it)) return {};
  return Error(Code::kRefused,
               fmt::format("{} is the {} device {}:{}, which is not carried", shown_path(path),
                           S_ISCHR(mode) ? "character" : "block", major(device), minor(device)));
}

bool PathOrder::operator()(std::string_view left, std::string_view right) const {
  return std::ranges::lexicographical_compare(left, right, {}, rank, rank);
}

std::string join(const std::string& directory, std::string_view name) {
  return directory.empty() ? std::string(name) : fmt::format("{}/{}", directory, name);
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_below(std::string_view path, std::string_view directory) {
  if (directory.empty()) return !path.empty();
  return path.size() > directory.size() && path.starts_with(directory) &&
         path[directory.size()] == '/';
}

std::string shown(std::string_view name) {
  const bool is_long = name.size() > kMaxShownBytes;
  std::string text(is_long ? name.substr(name.size() - kMaxShownBytes) : name);
  std::ranges::replace_if(
      text, [](char byte) { return byte < ' ' || byte > '~'; }, '?');
  return is_long ? "..." + text : text;
}

std::string shown_path(std::string_view path) { return shown("/" + std::string(path)); }

void Notes::add(std::string note) {
  if (notes_.size() < kMost) {
    notes_.push_back(std::move(note));
  } else {
    ++more_;
  }
}

std::vector<std::string> Notes::list() const {
  std::vector<std::string> all = notes_;
  if (more_ != 0) all.push_back(fmt::format("{} more", more_));
  return all;
}

}  // namespace gcr::layer
