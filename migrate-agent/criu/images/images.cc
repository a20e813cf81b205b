#include "migrate-agent/criu/images/images.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "migrate-agent/criu/launch/launch.h"

namespace gcr::criu::images {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kCommonMagic = 0x54564319;
constexpr std::uint32_t kPageMapMagic = 0x56084025;
constexpr std::uint32_t kRemapMagic = 0x59133954;
constexpr std::uint32_t kMemoryMapMagic = 0x57492820;
constexpr std::uint32_t kSharedMemoryMagic = 0x48453499;  ///< of memfd.img
constexpr std::uint32_t kRegularMapping = 1 << 0;         ///< status of a mapping
constexpr std::uint32_t kPrivateFile = 1 << 6;
constexpr std::uint32_t kPrivateAnonymous = 1 << 9;
constexpr std::uint32_t kOtherPrivate = 1 << 13 | 1 << 15;  ///< a ring for aio, a shadow stack
constexpr std::uint64_t kEndOfMemory = (std::uint64_t{1} << 47) - 4096;
constexpr std::uint32_t kRemovedFile = 1;  ///< type in a remap-fpath.img, CRIU's "ghost"
constexpr std::uint32_t kInParent = 1;     ///< flags of a page map's entry
constexpr std::uint32_t kPresent = 4;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kMaxPages = std::uint64_t{1} << 40;
constexpr std::uint32_t kMaxRecordBytes = 1u << 20;
constexpr std::uint32_t kMaxRseqBytes = 4096;

void put_u32(std::string& bytes, std::uint32_t value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

bool read_u32(std::istream& in, std::uint32_t& value) {
  return static_cast<bool>(in.read(reinterpret_cast<char*>(&value), sizeof(value)));
}

bool read_magic(std::istream& in, std::uint32_t magic) {
  std::uint32_t common = 0;
  std::uint32_t own = 0;
  return read_u32(in, common) && read_u32(in, own) && common == kCommonMagic && own == magic;
}

bool read_content(std::istream& in, std::uint32_t size, std::string& record) {
  if (size > kMaxRecordBytes) return false;
  record.resize(size);
  return static_cast<bool>(in.read(record.data(), size));
}

/// All records of an image.
template <class Entry>
Result<std::vector<Entry>> read_records(const fs::path& path, std::uint32_t magic) {
  GCR_ASSIGN(const std::string image, read_file(path));
  return entries_in<Entry>(image, magic, path);
}

/// The records of pstree.img, at least one; the root comes first.
Result<std::vector<wire::ProcessTreeEntry>> process_tree(const fs::path& directory) {
  const fs::path path = directory / "pstree.img";
  auto entries = read_records<wire::ProcessTreeEntry>(path, kProcessTreeMagic);
  if (entries && entries->empty()) return damaged(path);
  return entries;
}

/// A thread's area; empty if it has none.
Result<AddressRange> rseq_area(const fs::path& core) {
  GCR_ASSIGN(const auto entries, read_records<wire::Core>(core, kCoreMagic));
  if (entries.empty()) return damaged(core);
  const wire::RestartableSequences& rseq = entries.front().thread_core().rseq_entry();
  const std::uint64_t start = rseq.rseq_abi_pointer();
  if (rseq.rseq_abi_size() > kMaxRseqBytes || start > UINT64_MAX - rseq.rseq_abi_size()) {
    return damaged(core);
  }
  if (start == 0) return AddressRange{};
  return AddressRange{start, start + rseq.rseq_abi_size()};
}

/// The files whose name is gone, by CRIU's numbers.
Result<std::set<std::uint32_t>> removed_files(const fs::path& directory) {
  const fs::path path = directory / "remap-fpath.img";
  std::set<std::uint32_t> ids;
  std::error_code error;
  if (!fs::exists(path, error)) return ids;
  GCR_ASSIGN(const auto entries, read_records<wire::RemapEntry>(path, kRemapMagic));
  for (const wire::RemapEntry& entry : entries) {
    if (entry.remap_type() != kRemovedFile) return damaged(path);
    ids.insert(entry.orig_id());
  }
  return ids;
}

/// The number in a name that begins with `prefix`, has the number of a `part` behind it if images
/// of this kind have parts, and no other form.
template <class Number>
Result<Number> number_in(std::string_view name, std::string_view prefix, bool has_part,
                         Number least, const char* what) {
  const char* const end = name.data() + name.size();
  Number number = least;
  unsigned part = 0;
  if (name.starts_with(prefix)) {
    const char* const dash = std::from_chars(name.data() + prefix.size(), end, number).ptr;
    if (dash != end) std::from_chars(dash + 1, end, part);
  }
  const std::string rest = has_part ? fmt::format("-{}.img", part) : ".img";
  if (number >= least && name == fmt::format("{}{}{}", prefix, number, rest)) return number;
  return Error(Code::kDataLoss, fmt::format("\"{}\" does not name {}", name, what));
}

/// Whether the pages of an entry are in the image that belongs to its page map.
bool is_present(const wire::PageMapEntry& entry) {
  if (entry.flags() & kInParent || entry.in_parent()) return false;
  return !entry.has_flags() || (entry.flags() & kPresent) != 0;
}

Status check_page_map(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::uint32_t size = 0;
  std::string record;
  wire::PageMapHead head;
  if (!read_magic(file, kPageMapMagic) || !read_u32(file, size) ||
      !read_content(file, size, record) || !head.ParseFromString(record)) {
    return damaged(path);
  }
  std::uint64_t pages = 0;
  while (read_u32(file, size)) {
    wire::PageMapEntry entry;
    if (!read_content(file, size, record) || !entry.ParseFromString(record)) return damaged(path);
    const std::uint64_t count = entry.has_nr_pages() ? entry.nr_pages() : entry.compat_nr_pages();
    if (count > kMaxPages || pages > kMaxPages) return damaged(path);
    if (is_present(entry)) pages += count;
  }
  const fs::path memory =
      path.parent_path() / ("pages-" + std::to_string(head.pages_id()) + ".img");
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(memory, error);
  if ((error && pages > 0) || bytes < pages * kPageBytes) return damaged(memory);
  return {};
}

}  // namespace

std::string memory_images(pid_t in_namespace) {
  return std::string(kMemoryImages) + std::to_string(in_namespace);
}

std::string memory_map(pid_t in_namespace) {
  return "private-map-" + std::to_string(in_namespace) + ".img";
}

std::string image_of_ranges(std::span<const AddressRange> ranges) {
  std::vector<wire::PageMapEntry> entries;
  for (const AddressRange& range : ranges) {
    const std::uint64_t pages = range.bytes() / kPageBytes;
    wire::PageMapEntry& entry = entries.emplace_back();
    entry.set_vaddr(range.start);
    entry.set_compat_nr_pages(static_cast<std::uint32_t>(pages));
    entry.set_nr_pages(pages);
  }
  return image_of(kPageMapMagic, entries);
}

Result<AddressRanges> read_ranges(const fs::path& path) {
  GCR_ASSIGN(const auto entries, read_records<wire::PageMapEntry>(path, kPageMapMagic));
  AddressRanges ranges;
  for (const wire::PageMapEntry& entry : entries) {
    const std::uint64_t start = entry.vaddr();
    const bool follows = ranges.empty() || start >= ranges.back().end;
    if (!follows || entry.nr_pages() > kMaxPages || start > UINT64_MAX - kMaxPages * kPageBytes) {
      return damaged(path);
    }
    ranges.push_back({start, start + entry.nr_pages() * kPageBytes});
  }
  return ranges;
}

Result<pid_t> process_of_memory(std::string_view name) {
  return number_in<pid_t>(name, kMemoryImages, true, 1, "the memory of a process");
}

std::string shared_memory_images(std::uint32_t number) {
  return std::string(gcr::images::kSharedMemory) + std::to_string(number);
}

std::string shared_memory_map(std::uint32_t number) {
  return std::string(kSharedMaps) + std::to_string(number) + ".img";
}

Result<std::uint32_t> number_of_shared_memory(std::string_view name) {
  return number_in<std::uint32_t>(name, gcr::images::kSharedMemory, true, 0, "a shared memory");
}

Result<std::uint32_t> number_of_shared_map(std::string_view name) {
  return number_in<std::uint32_t>(name, kSharedMaps, false, 0, "a shared memory");
}

Result<std::map<std::uint32_t, std::uint64_t>> shared_memories(const fs::path& directory) {
  const fs::path path = directory / "memfd.img";
  std::map<std::uint32_t, std::uint64_t> sizes;
  std::error_code error;
  if (!fs::exists(path, error)) return sizes;
  GCR_ASSIGN(const auto entries, read_records<wire::SharedMemory>(path, kSharedMemoryMagic));
  for (const wire::SharedMemory& entry : entries) sizes[entry.shmid()] = entry.size();
  return sizes;
}

Result<PrivateMappings> private_mappings(const fs::path& directory, pid_t in_namespace) {
  const fs::path path = directory / ("mm-" + std::to_string(in_namespace) + ".img");
  GCR_ASSIGN(const auto entries, read_records<wire::MemoryMap>(path, kMemoryMapMagic));
  PrivateMappings found;
  std::uint64_t last = 0;
  if (entries.empty()) return damaged(path);
  for (const wire::Mapping& mapping : entries.front().vmas()) {
    const AddressRange range{mapping.start(), mapping.end()};
    if (range.start < last || range.end <= range.start) return damaged(path);
    last = range.end;
    if (range.end > kEndOfMemory) continue;
    const bool regular = (mapping.status() & kRegularMapping) != 0;
    const bool anonymous = (mapping.status() & kPrivateAnonymous) != 0;
    const bool file = (mapping.status() & kPrivateFile) != 0;
    if ((mapping.status() & kOtherPrivate) == 0 && !(regular && (anonymous || file))) continue;
    const bool plain = regular && anonymous && (mapping.status() & kOtherPrivate) == 0 &&
                       mapping.flags() == (MAP_PRIVATE | MAP_ANONYMOUS) &&
                       (mapping.madv() & (1u << MADV_NOHUGEPAGE)) == 0;
    if ((mapping.flags() & MAP_HUGETLB) == 0) {
      found.mappings.push_back({range, found.region_bytes, plain});
    }
    found.region_bytes += range.bytes();
  }
  return found;
}

Status map_beforehand(const fs::path& directory, pid_t in_namespace) {
  const fs::path parent = directory / "parent";
  std::error_code error;
  fs::create_directory(parent, error);
  if (error) return Error::from_errno(error.value(), "cannot create " + parent.string());
  wire::PageMapHead head;
  head.set_pages_id(1);
  // Without this file CRIU 4.2 looks at memory that it has never written to (do_open_image()).
  GCR_TRY(write_file(parent / "pages-1.img", ""));
  return write_file(parent / ("pagemap-" + std::to_string(in_namespace) + ".img"),
                    image_of(kPageMapMagic, head.SerializeAsString()));
}

std::vector<std::string> names(const fs::path& directory) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".img") found.push_back(it->path().filename());
  }
  std::sort(found.begin(), found.end());
  return found;
}

Result<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error(Code::kNotFound, "CRIU's image " + path.string() + " is missing");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

Status write_file(const fs::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!(file << content << std::flush)) {
    return Error(Code::kIo, "cannot write " + path.string());
  }
  return {};
}

Result<UniqueFd> in_memory(const std::string& name, const std::string& content) {
  UniqueFd file(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!file || ::pwrite(file.get(), content.data(), content.size(), 0) !=
                   static_cast<ssize_t>(content.size())) {
    return Error::from_errno(errno, "cannot keep CRIU's image " + name + " in memory");
  }
  return file;
}

Error damaged(const fs::path& path) {
  return Error(Code::kDataLoss, "CRIU's image " + path.string() + " is damaged");
}

Result<std::string> record_in(const std::string& image, std::uint32_t magic) {
  std::istringstream in(image);
  std::uint32_t size = 0;
  std::string record;
  if (!read_magic(in, magic) || !read_u32(in, size) || !read_content(in, size, record)) {
    return Error(Code::kDataLoss, "a CRIU image is damaged");
  }
  return record;
}

Result<std::vector<std::string>> records_in(const std::string& image, std::uint32_t magic) {
  std::istringstream in(image);
  std::vector<std::string> records;
  bool whole = read_magic(in, magic);
  for (std::uint32_t size = 0; whole && read_u32(in, size);) {
    whole = read_content(in, size, records.emplace_back());
  }
  if (!whole) return Error(Code::kDataLoss, "a CRIU image is damaged");
  return records;
}

std::string image_of(std::uint32_t magic, const std::string& record) {
  return image_of(magic, std::vector{record});
}

std::string image_of(std::uint32_t magic, const std::vector<std::string>& records) {
  std::string bytes;
  put_u32(bytes, kCommonMagic);
  put_u32(bytes, magic);
  for (const std::string& record : records) {
    put_u32(bytes, static_cast<std::uint32_t>(record.size()));
    bytes += record;
  }
  return bytes;
}

Result<pid_t> root_pid(const fs::path& directory) {
  GCR_ASSIGN(const auto entries, process_tree(directory));
  return static_cast<pid_t>(entries.front().pid());
}

Result<std::set<pid_t>> used_pids(const fs::path& directory) {
  GCR_ASSIGN(const auto entries, process_tree(directory));
  std::set<pid_t> pids;
  for (const wire::ProcessTreeEntry& entry : entries) {
    for (const std::uint32_t pid : {entry.pid(), entry.ppid(), entry.pgid(), entry.sid()}) {
      pids.insert(static_cast<pid_t>(pid));
    }
    pids.insert(entry.threads().begin(), entry.threads().end());
  }
  return pids;
}

Result<std::map<pid_t, AddressRanges>> rseq_areas(const fs::path& directory) {
  GCR_ASSIGN(const auto entries, process_tree(directory));
  std::map<pid_t, AddressRanges> areas;
  for (const wire::ProcessTreeEntry& entry : entries) {
    AddressRanges& of_process = areas[static_cast<pid_t>(entry.pid())];
    for (const std::uint32_t thread : entry.threads()) {
      GCR_ASSIGN(const AddressRange area,
                 rseq_area(directory / ("core-" + std::to_string(thread) + ".img")));
      if (area.start < area.end) of_process.push_back(area);
    }
    std::ranges::sort(of_process, {}, &AddressRange::start);
  }
  return areas;
}

Result<std::set<std::string>> file_names(const fs::path& directory) {
  std::error_code error;
  // Older releases of CRIU wrote it, and newer ones still read it.
  if (fs::exists(directory / "reg-files.img", error)) return damaged(directory / "reg-files.img");
  const fs::path path = directory / kFilesImage;
  GCR_ASSIGN(const auto removed, removed_files(directory));
  GCR_ASSIGN(const auto entries, read_records<wire::FileEntry>(path, kFilesMagic));
  std::set<std::string> names;
  for (const wire::FileEntry& entry : entries) {
    if (!entry.has_reg()) continue;
    if (entry.reg().ext()) return damaged(path);
    if (!removed.contains(entry.reg().id())) names.insert(entry.reg().name());
  }
  return names;
}

Result<bool> rename_removed_files(const fs::path& directory, const fs::path& there) {
  const fs::path path = directory / kFilesImage;
  GCR_ASSIGN(const auto removed, removed_files(directory));
  if (removed.empty()) return false;
  GCR_ASSIGN(auto entries, read_records<wire::FileEntry>(path, kFilesMagic));
  for (wire::FileEntry& entry : entries) {
    if (entry.has_reg() && removed.contains(entry.reg().id())) {
      entry.mutable_reg()->set_name(there / std::to_string(entry.reg().id()));
    }
  }
  GCR_TRY(write_file(path, image_of(kFilesMagic, entries)));
  return true;
}

Result<std::string> rename_files(const std::string& image,
                                 const std::map<std::string, std::string>& renamed) {
  GCR_ASSIGN(auto entries, entries_in<wire::FileEntry>(image, kFilesMagic, kFilesImage));
  for (wire::FileEntry& entry : entries) {
    const auto name = renamed.find(entry.reg().name());
    if (entry.has_reg() && name != renamed.end()) entry.mutable_reg()->set_name(name->second);
  }
  return image_of(kFilesMagic, entries);
}

Status check_memory(const fs::path& directory) {
  for (const std::string& name : names(directory)) {
    if (name.starts_with("pagemap-")) GCR_TRY(check_page_map(directory / name));
  }
  return {};
}

}  // namespace gcr::criu::images
