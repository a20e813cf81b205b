#include "store/pack.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>

#include "src/base/log.h"

namespace gcr::store {
namespace {

constexpr std::string_view kSuffix = ".pack";
constexpr std::size_t kUuidCharacters = 36;
constexpr std::uint64_t kMaxContents = 32 * 1024 * 1024;  ///< of all packs together
constexpr int kTries = 16;

Result<std::vector<IndexEntry>> read_index(int file, std::uint64_t file_bytes) {
  std::array<std::byte, kPackHeaderBytes> header;
  std::array<std::byte, kPackEndBytes> last;
  if (file_bytes < header.size() + last.size()) {
    return Error(Code::kDataLoss, "it has no end: it was never finished, or is truncated");
  }
  GCR_TRY(read_all(file, header, 0));
  if (!is_pack_header(header)) return Error(Code::kDataLoss, "it does not begin like a pack");
  GCR_TRY(read_all(file, last, file_bytes - last.size()));
  GCR_ASSIGN(const PackEnd end, parse_pack_end(last, file_bytes));
  std::vector<std::byte> index(end.index_bytes());
  GCR_TRY(read_all(file, index, end.index_offset));
  return parse_index(index, end);
}

}  // namespace

/// Opens and adds one pack; returns the number of its contents, 0 if it skips the pack. kNotFound:
/// the pack was removed since the directory was listed.
Result<std::size_t> Packs::add(const Directory& directory, const std::string& file_name) {
  auto file = directory.open_file(file_name, O_RDONLY);
  if (!file && file.error().code() == Code::kRefused) {
    spdlog::warn("{}; skipping this pack", file.error().message());
    return 0;
  }
  GCR_TRY(file);
  struct stat facts {};
  if (::fstat(file->get(), &facts) != 0) return directory.failed(errno, file_name);
  const auto file_bytes = static_cast<std::uint64_t>(facts.st_size);
  auto index = read_index(file->get(), file_bytes);
  if (!index && index.error().code() != Code::kDataLoss) return index.error();
  if (!index) {
    spdlog::info("skipping the pack {}/{}: {}", directory.path().native(), file_name,
                 index.error().message());
    others_.push_back(file_name);
    return 0;
  }
  for (IndexEntry& entry : *index) {
    entry.location.pack = static_cast<std::uint32_t>(packs_.size());
  }
  packs_.push_back({file_name, file_bytes, *std::move(index), *std::move(file)});
  return packs_.back().index.size();
}

Result<std::unique_ptr<Packs>> Packs::try_to_open(const Directory& directory) {
  GCR_ASSIGN(auto entries, directory.list("packs"));
  std::ranges::sort(entries);
  std::unique_ptr<Packs> packs(new Packs);
  std::uint64_t contents = 0;
  for (const std::string& entry : entries) {
    const std::string file_name = "packs/" + entry;
    if (!writer_of_pack(file_name)) continue;
    GCR_ASSIGN(const std::size_t added, packs->add(directory, file_name));
    contents += added;
    if (contents > kMaxContents) {
      return Error(Code::kResourceExhausted, fmt::format("{} has more than {} contents",
                                                         directory.path().native(), kMaxContents));
    }
  }
  return packs;
}

/// Lists again if a pack was removed meanwhile. A rewritten pack exists before its predecessor is
/// removed, so a pass in which all listed packs could be opened has all contents.
Result<std::unique_ptr<Packs>> Packs::open(const Directory& directory) {
  for (int i = 1;; ++i) {
    auto packs = try_to_open(directory);
    if (packs || packs.error().code() != Code::kNotFound || i == kTries) return packs;
  }
}

Status Packs::read(const Key& key, const ContentName& name, std::span<std::byte> out) const {
  Status done = Error(Code::kNotFound, "no pack has this content");
  for (const Pack& pack : packs_) {
    const auto entry = std::ranges::lower_bound(pack.index, name, {}, &IndexEntry::name);
    if (entry == pack.index.end() || entry->name != name) continue;
    done = read_at(key, name, entry->location, out);
    if (done) break;
  }
  return done;
}

Status Packs::read_at(const Key& key, const ContentName& name, const Location& location,
                      std::span<std::byte> out) const {
  const std::string& file_name = packs_.at(location.pack).file_name;
  if (out.size() != location.raw_bytes) {
    return Error(Code::kDataLoss, fmt::format("{} has the content with {} bytes instead of {}",
                                              file_name, location.raw_bytes, out.size()));
  }
  Status done;
  if (location.codec == Codec::kNone) {
    done = read_stored(location, out);
    if (done) done = decode(key, name, location, out, out);
  } else {
    thread_local std::vector<std::byte> stored;
    stored.resize(location.stored_bytes);
    done = read_stored(location, stored);
    if (done) done = decode(key, name, location, stored, out);
  }
  return done ? done : done.error().while_doing(file_name);
}

Status Packs::read_stored(const Location& location, std::span<std::byte> stored) const {
  return read_all(packs_.at(location.pack).file.get(), stored, location.offset);
}

std::string pack_file_of(const Uuid& checkpoint, unsigned number) {
  return fmt::format("packs/{}-{}{}", checkpoint.to_string(), number, kSuffix);
}

std::optional<Uuid> writer_of_pack(std::string_view file_name) {
  if (!file_name.starts_with("packs/") || !file_name.ends_with(kSuffix)) return std::nullopt;
  const auto stem = file_name.substr(6, file_name.size() - 6 - kSuffix.size());
  const auto id = Uuid::parse(stem.substr(0, kUuidCharacters));
  if (!id || stem.size() < kUuidCharacters + 2) return std::nullopt;
  unsigned number = 0;
  const std::string_view digits = stem.substr(kUuidCharacters + 1);
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_whole = parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size();
  return is_whole && file_name == pack_file_of(*id, number) ? id : std::nullopt;
}

}  // namespace gcr::store
