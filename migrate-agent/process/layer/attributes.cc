#include "migrate-agent/process/layer/attributes.h"

#include <errno.h>
#include <fmt/format.h>
#include <linux/limits.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "migrate-agent/process/layer/beneath.h"

namespace gcr::layer {
namespace {

/// Attributes of overlayfs that change what an entry of an upper directory means.
constexpr std::array<std::string_view, 5> kOfOverlay{"metacopy", "nlink", "opaque", "redirect",
                                                     "whiteout"};

/// libarchive writes other bytes of a name encoded, and does not decode them.
bool is_plain_name(const std::string& name) {
  return std::ranges::all_of(
      name, [](char byte) { return byte > ' ' && byte <= '~' && byte != '%' && byte != '='; });
}

Result<std::vector<std::string>> names_of(const std::string& link) {
  std::string names(XATTR_LIST_MAX, '\0');
  const ssize_t length = ::listxattr(link.c_str(), names.data(), names.size());
  if (length < 0 && errno == ENOTSUP) return std::vector<std::string>();
  if (length < 0) return Error::from_errno(errno, "cannot list its attributes");
  std::vector<std::string> found;
  for (std::size_t at = 0; at < static_cast<std::size_t>(length);) {
    found.emplace_back(names.c_str() + at);
    at += found.back().size() + 1;
  }
  return found;
}

/// None if it is gone.
Result<std::optional<std::string>> read(const std::string& link, const std::string& name) {
  std::string value(XATTR_SIZE_MAX, '\0');
  const ssize_t size = ::getxattr(link.c_str(), name.c_str(), value.data(), value.size());
  if (size < 0 && errno == ENODATA) return std::optional<std::string>();
  if (size < 0) return Error::from_errno(errno, "cannot read its attribute " + shown(name));
  value.resize(static_cast<std::size_t>(size));
  return std::optional<std::string>(std::move(value));
}

class Reading {
 public:
  Reading(std::string link, std::string_view prefix) : link_(std::move(link)), prefix_(prefix) {}

  Status add(const std::string& name) {
    if (!prefix_.empty() && name.starts_with(prefix_)) return add_of_overlay(name);
    if (is_carried_attribute(name)) return add_carried(name);
    if (name.starts_with("trusted.")) found.left_out = name;
    return {};
  }

  FoundAttributes found;

 private:
  Status add_of_overlay(const std::string& name) {
    const std::string suffix = name.substr(prefix_.size());
    if (suffix.starts_with("overlay.")) found.left_out = name;  // of an overlay in the container
    if (std::ranges::find(kOfOverlay, suffix) == kOfOverlay.end()) return {};
    GCR_ASSIGN(auto value, read(link_, name));
    if (value) found.overlay.emplace(suffix, std::move(*value));
    return {};
  }

  Status add_carried(const std::string& name) {
    if (!is_plain_name(name)) {
      return Error(Code::kUnsupported,
                   fmt::format("its attribute {} cannot be carried: of such names, only printable "
                               "ASCII without blanks, % and = can",
                               shown(name)));
    }
    GCR_ASSIGN(auto value, read(link_, name));
    if (!value) return {};
    bytes_ += name.size() + value->size();
    if (bytes_ > kMaxAttributeBytes) {
      return Error(Code::kUnsupported, fmt::format("it has more than {} of extended attributes",
                                                   format_bytes(kMaxAttributeBytes)));
    }
    found.carried.emplace(name, std::move(*value));
    return {};
  }

  const std::string link_;
  const std::string_view prefix_;
  std::size_t bytes_ = 0;
};

}  // namespace

Result<FoundAttributes> read_attributes(const UniqueFd& held, std::string_view overlay_prefix) {
  const std::string link = link_of(held);
  // Most files have none.
  if (::listxattr(link.c_str(), nullptr, 0) == 0) return FoundAttributes();
  GCR_ASSIGN(const auto names, names_of(link));
  Reading reading(link, overlay_prefix);
  for (const std::string& name : names) GCR_TRY(reading.add(name));
  return std::move(reading.found);
}

Status write_attributes(const UniqueFd& held, const Attributes& wanted) {
  const std::string link = link_of(held);
  GCR_ASSIGN(const auto names, names_of(link));
  for (const std::string& name : names) {
    if (!is_carried_attribute(name) || wanted.contains(name)) continue;
    if (::removexattr(link.c_str(), name.c_str()) == 0 || errno == ENODATA) continue;
    return Error::from_errno(errno, "cannot remove its attribute " + shown(name));
  }
  for (const auto& [name, value] : wanted) {
    if (::setxattr(link.c_str(), name.c_str(), value.data(), value.size(), 0) == 0) continue;
    return Error::from_errno(errno, "cannot set its attribute " + shown(name));
  }
  return {};
}

}  // namespace gcr::layer
