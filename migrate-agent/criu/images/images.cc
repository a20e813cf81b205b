#include "migrate-agent/criu/images/images.h"

#include <errno.h>
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
constexpr std::uint32_t kServiceMagic = 0x55105940;
constexpr std::uint32_t kIrmapCacheMagic = 0x57004059;
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
/// CRIU logs this and goes on if root has no CAP_SYS_RESOURCE.
constexpr std::string_view kHarmless = "Can't setup RLIMIT_NOFILE for self";
constexpr std::uint32_t kMaxRecordBytes = 1u << 20;
constexpr std::uint32_t kMaxRseqBytes = 4096;

void put_u32(std::string& bytes, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xff);
}

bool read_u32(std::istream& in, std::uint32_t& value) {
  unsigned char bytes[4];
  if (!in.read(reinterpret_cast<char*>(bytes), sizeof(bytes))) return false;
  value = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<std::uint32_t>(bytes[3]) << 24;
  return true;
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

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Error damaged(const fs::path& path) {
  return Error(Code::kDataLoss, "CRIU's image " + path.string() + " is damaged");
}

template <class Entry>
Result<std::vector<Entry>> parse_records(const std::string& image, const fs::path& path,
                                         std::uint32_t magic) {
  const auto records = records_in(image, magic);
  if (!records) return damaged(path);
  std::vector<Entry> entries;
  for (const std::string& record : *records) {
    if (!entries.emplace_back().ParseFromString(record)) return damaged(path);
  }
  return entries;
}

/// All records of an image.
template <class Entry>
Result<std::vector<Entry>> read_records(const fs::path& path, std::uint32_t magic) {
  GCR_ASSIGN(const std::string image, read_file(path));
  return parse_records<Entry>(image, path, magic);
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
  std::vector<std::string> records;
  for (const AddressRange& range : ranges) {
    const std::uint64_t pages = range.bytes() / kPageBytes;
    wire::PageMapEntry entry;
    entry.set_vaddr(range.start);
    entry.set_compat_nr_pages(static_cast<std::uint32_t>(pages));
    entry.set_nr_pages(pages);
    records.push_back(entry.SerializeAsString());
  }
  return image_of(kPageMapMagic, records);
}

Result<std::vector<AddressRange>> read_ranges(const fs::path& path) {
  GCR_ASSIGN(const auto entries, read_records<wire::PageMapEntry>(path, kPageMapMagic));
  std::vector<AddressRange> ranges;
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
  const char* const end = name.data() + name.size();
  pid_t pid = 0;
  unsigned part = 0;
  if (name.starts_with(kMemoryImages)) {
    const char* const dash = std::from_chars(name.data() + kMemoryImages.size(), end, pid).ptr;
    if (dash != end) std::from_chars(dash + 1, end, part);
  }
  if (pid > 0 && name == memory_images(pid) + "-" + std::to_string(part) + ".img") return pid;
  return Error(Code::kDataLoss,
               "\"" + std::string(name) + "\" does not name the memory of a process");
}

std::string shared_memory_images(std::uint32_t number) {
  return std::string(gcr::images::kSharedMemory) + std::to_string(number);
}

std::string shared_memory_map(std::uint32_t number) {
  return std::string(kSharedMaps) + std::to_string(number) + ".img";
}

Result<std::uint32_t> number_of_shared_memory(std::string_view name) {
  const char* const end = name.data() + name.size();
  std::uint32_t number = 0;
  unsigned part = 0;
  if (name.starts_with(gcr::images::kSharedMemory)) {
    const char* const dash =
        std::from_chars(name.data() + gcr::images::kSharedMemory.size(), end, number).ptr;
    if (dash != end) std::from_chars(dash + 1, end, part);
  }
  if (name == shared_memory_images(number) + "-" + std::to_string(part) + ".img") return number;
  return Error(Code::kDataLoss, "\"" + std::string(name) + "\" does not name a shared memory");
}

Result<std::uint32_t> number_of_shared_map(std::string_view name) {
  std::uint32_t number = 0;
  if (name.starts_with(kSharedMaps)) {
    std::from_chars(name.data() + kSharedMaps.size(), name.data() + name.size(), number);
  }
  if (name == shared_memory_map(number)) return number;
  return Error(Code::kDataLoss, "\"" + std::string(name) + "\" does not name a shared memory");
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

std::string first_error(const fs::path& directory, const std::string& name) {
  std::ifstream log(directory / name);
  for (std::string line; std::getline(log, line);) {
    const std::size_t at = line.find("Error (");
    if (at != std::string::npos && line.find(kHarmless) == std::string::npos) {
      return line.substr(at);
    }
  }
  return first_line(directory / "criu.err");
}

std::string empty_irmap_cache() {
  std::string bytes;
  put_u32(bytes, kServiceMagic);
  put_u32(bytes, kIrmapCacheMagic);
  return bytes;
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

Result<std::map<pid_t, std::vector<AddressRange>>> rseq_areas(const fs::path& directory) {
  GCR_ASSIGN(const auto entries, process_tree(directory));
  std::map<pid_t, std::vector<AddressRange>> areas;
  for (const wire::ProcessTreeEntry& entry : entries) {
    std::vector<AddressRange>& of_process = areas[static_cast<pid_t>(entry.pid())];
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

Status rename_removed_files(const fs::path& directory) {
  const fs::path path = directory / kFilesImage;
  GCR_ASSIGN(const auto removed, removed_files(directory));
  if (removed.empty()) return {};
  GCR_ASSIGN(auto entries, read_records<wire::FileEntry>(path, kFilesMagic));
  std::vector<std::string> records;
  for (wire::FileEntry& entry : entries) {
    if (entry.has_reg() && removed.contains(entry.reg().id())) {
      entry.mutable_reg()->set_name(fs::path(launch::kRemovedFiles) /
                                    std::to_string(entry.reg().id()));
    }
    records.push_back(entry.SerializeAsString());
  }
  return write_file(path, image_of(kFilesMagic, records));
}

Result<std::string> rename_files(const std::string& image,
                                 const std::map<std::string, std::string>& renamed) {
  GCR_ASSIGN(auto entries, parse_records<wire::FileEntry>(image, kFilesImage, kFilesMagic));
  std::vector<std::string> records;
  for (wire::FileEntry& entry : entries) {
    const auto name = renamed.find(entry.reg().name());
    if (entry.has_reg() && name != renamed.end()) entry.mutable_reg()->set_name(name->second);
    records.push_back(entry.SerializeAsString());
  }
  return image_of(kFilesMagic, records);
}

Status check_memory(const fs::path& directory) {
  for (const std::string& name : names(directory)) {
    if (name.starts_with("pagemap-")) GCR_TRY(check_page_map(directory / name));
  }
  return {};
}

}  // namespace gcr::criu::images
