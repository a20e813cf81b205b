#include "migrate-agent/process/pages/mappings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <string>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::process {
namespace {

/// VmFlags with which dropping a page would fail, show, or reach another process: shared, growing
/// down, of a device, locked, huge pages of hugetlbfs, mixed map, userfaultfd for missing pages.
constexpr std::array<std::string_view, 8> kSpecialFlags{"sh", "gd", "pf", "io",
                                                        "lo", "ht", "mm", "um"};
constexpr std::string_view kWriteProtected = "uw";
constexpr std::string_view kAccounted = "ac";

std::string_view next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

std::string_view next_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

bool parse_number(std::string_view word, int base, std::uint64_t* value) {
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), *value, base);
  return problem == std::errc{} && end == word.data() + word.size();
}

/// "start-end permissions offset device inode name"; none if the line is another.
std::optional<MemoryMapping> parse_header(std::string_view line) {
  const std::string_view addresses = next_word(line);
  const std::size_t dash = addresses.find('-');
  MemoryMapping mapping;
  if (dash == std::string_view::npos ||
      !parse_number(addresses.substr(0, dash), 16, &mapping.range.start) ||
      !parse_number(addresses.substr(dash + 1), 16, &mapping.range.end) ||
      mapping.range.start >= mapping.range.end) {
    return std::nullopt;
  }
  const std::string_view permissions = next_word(line);
  next_word(line);
  next_word(line);
  const std::string_view inode = next_word(line);
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const bool plain_name = line.empty() || line == "[heap]" || line.starts_with("[anon:");
  mapping.anonymous = permissions.ends_with('p') && inode == "0" && plain_name;
  mapping.plain = mapping.anonymous && permissions == "rw-p";
  mapping.asynchronous_io = line.starts_with("/[aio]") || line.find("[io_uring]") != line.npos;
  return mapping;
}

void make_special(MemoryMapping& mapping) {
  mapping.flagged = mapping.flagged || mapping.anonymous;
  mapping.anonymous = mapping.plain = false;
}

void note_flags(std::string_view flags, MemoryMapping& mapping) {
  mapping.accounted = false;
  for (std::string_view flag = next_word(flags); !flag.empty(); flag = next_word(flags)) {
    if (flag == kWriteProtected) mapping.tracked = true;
    if (flag == kAccounted) mapping.accounted = true;
    if (std::ranges::find(kSpecialFlags, flag) != kSpecialFlags.end()) make_special(mapping);
  }
}

/// Ranges that others, which come in the order of addresses, are compared with.
class Passed {
 public:
  explicit Passed(const AddressRanges& ranges) : next_(ranges.begin()), end_(ranges.end()) {}
  bool overlap(const AddressRange& range) {
    while (next_ != end_ && next_->end <= range.start) ++next_;
    return next_ != end_ && next_->start < range.end;
  }

 private:
  AddressRanges::const_iterator next_, end_;
};

Error unreadable(pid_t pid) {
  return Error(Code::kNotFound, fmt::format("cannot read the mappings of process {}", pid));
}

}  // namespace

std::optional<MemoryMappings> parse_smaps(std::string_view text) {
  MemoryMappings mappings;
  bool flags_seen = true;
  while (!text.empty()) {
    std::string_view line = next_line(text);
    std::string_view rest = line;
    const std::string_view name = next_word(rest);
    if (name.ends_with(':')) {
      if (mappings.empty()) return std::nullopt;
      if (name == "VmFlags:") {
        note_flags(rest, mappings.back());
        flags_seen = true;
      }
      std::uint64_t kib = 0;
      if (name == "Anonymous:" && parse_number(next_word(rest), 10, &kib)) {
        mappings.back().anonymous_bytes = kib * 1024;
      }
      continue;
    }
    const auto mapping = parse_header(line);
    if (!mapping || !flags_seen) return std::nullopt;
    mappings.push_back(*mapping);
    flags_seen = false;
  }
  if (!flags_seen) return std::nullopt;
  return mappings;
}

Result<MemoryMappings> read_mappings(pid_t pid) {
  auto mappings = parse_smaps(procfs::read_text(fmt::format("/proc/{}/smaps", pid)));
  if (!mappings || mappings->empty()) return unreadable(pid);
  return std::move(*mappings);
}

Result<MemoryMappings> read_mappings(pid_t pid, const KnownMemory& known) {
  // What is locked may have changed, and only smaps tells where.
  if (procfs::status_field(std::to_string(pid), "VmLck") != "0 kB") return read_mappings(pid);
  AddressRanges flagged, unaccounted;
  for (const MemoryMapping& mapping : known.mappings) {
    if (mapping.flagged) flagged.push_back(mapping.range);
    if (mapping.anonymous && !mapping.accounted) unaccounted.push_back(mapping.range);
  }
  Passed is_flagged(flagged), is_unaccounted(unaccounted), is_tracked(known.tracked);
  const std::string text = procfs::read_text(fmt::format("/proc/{}/maps", pid));
  MemoryMappings mappings;
  for (std::string_view rest = text; !rest.empty();) {
    auto mapping = parse_header(next_line(rest));
    if (!mapping) return unreadable(pid);
    mapping->anonymous_bytes = mapping->range.bytes();
    mapping->accounted = !is_unaccounted.overlap(mapping->range);
    mapping->tracked = is_tracked.overlap(mapping->range);
    if (is_flagged.overlap(mapping->range)) make_special(*mapping);
    mappings.push_back(*mapping);
  }
  if (mappings.empty()) return unreadable(pid);
  return mappings;
}

}  // namespace gcr::process
