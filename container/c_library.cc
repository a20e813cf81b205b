#include "container/c_library.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/unique_fd.h"

namespace gcr::container {
namespace {

#ifdef __aarch64__
constexpr const char* kLoader = "/lib/ld-linux-aarch64.so.1";
constexpr const char* kMultiarch = "aarch64-linux-gnu";
constexpr unsigned kMachine = EM_AARCH64;
#else
constexpr const char* kLoader = "/lib64/ld-linux-x86-64.so.2";
constexpr const char* kMultiarch = "x86_64-linux-gnu";
constexpr unsigned kMachine = EM_X86_64;
#endif
constexpr const char* kName = "libc.so.6";

constexpr std::size_t kMaxSegments = 128;
constexpr std::size_t kMaxDynamicBytes = 64 * 1024;
constexpr unsigned kMaxVersions = 1024;
constexpr std::size_t kMaxVersionBytes = 32;

/// Opens a regular file as a process with that root directory sees it. Nothing else is opened: a
/// device may act on that.
Result<UniqueFd> open_in(const UniqueFd& root, const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  const UniqueFd found(
      static_cast<int>(::syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof(how))));
  struct stat facts {};
  if (!found || ::fstat(found.get(), &facts) != 0) return Error::from_errno(errno, path);
  if (!S_ISREG(facts.st_mode)) return Error(Code::kUnsupported, path + " is not a regular file");
  const std::string held = fmt::format("/proc/self/fd/{}", found.get());
  UniqueFd file(::open(held.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, path);
  return file;
}

/// A shared library of this machine's architecture. Every read may fail.
class Library {
 public:
  /// The versions that it defines, in its dynamic section.
  struct Versions {
    std::uint64_t at = 0;  // in the file, as the next one
    std::uint64_t names_at = 0;
    std::uint64_t count = 0;
    std::uint64_t names_bytes = 0;
  };

  explicit Library(const UniqueFd& file) : file_(file) {}

  bool read(void* into, std::size_t bytes, std::uint64_t offset) const {
    if (offset > INT64_MAX) return false;
    return ::pread(file_.get(), into, bytes, static_cast<off_t>(offset)) ==
           static_cast<ssize_t>(bytes);
  }

  /// Reads up to `bytes`; returns what there is.
  std::string read_some(std::size_t bytes, std::uint64_t offset) const {
    std::string text(bytes, '\0');
    if (offset > INT64_MAX) return {};
    const ssize_t got = ::pread(file_.get(), text.data(), text.size(), static_cast<off_t>(offset));
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

  std::optional<Versions> versions() const {
    const auto segments = read_segments();
    const auto dynamic = std::ranges::find(segments, PT_DYNAMIC, &Elf64_Phdr::p_type);
    if (dynamic == segments.end() || dynamic->p_filesz > kMaxDynamicBytes) return std::nullopt;
    std::vector<Elf64_Dyn> entries(dynamic->p_filesz / sizeof(Elf64_Dyn));
    if (!read(entries.data(), entries.size() * sizeof(Elf64_Dyn), dynamic->p_offset)) {
      return std::nullopt;
    }
    Versions versions;
    for (const Elf64_Dyn& entry : entries) {
      if (entry.d_tag == DT_VERDEF) versions.at = offset_of(segments, entry.d_un.d_ptr);
      if (entry.d_tag == DT_VERDEFNUM) versions.count = entry.d_un.d_val;
      if (entry.d_tag == DT_STRTAB) versions.names_at = offset_of(segments, entry.d_un.d_ptr);
      if (entry.d_tag == DT_STRSZ) versions.names_bytes = entry.d_un.d_val;
    }
    if (versions.at == 0 || versions.names_at == 0) return std::nullopt;
    return versions;
  }

 private:
  std::vector<Elf64_Phdr> read_segments() const {
    Elf64_Ehdr header;
    if (!read(&header, sizeof(header), 0) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_machine != kMachine || header.e_phentsize != sizeof(Elf64_Phdr)) {
      return {};
    }
    std::vector<Elf64_Phdr> segments(std::min<std::size_t>(header.e_phnum, kMaxSegments));
    if (!read(segments.data(), segments.size() * sizeof(Elf64_Phdr), header.e_phoff)) return {};
    return segments;
  }

  /// Where the byte at an address of the library is in the file; 0 if it is in no segment.
  static std::uint64_t offset_of(const std::vector<Elf64_Phdr>& segments, std::uint64_t address) {
    for (const Elf64_Phdr& segment : segments) {
      if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
      const std::uint64_t within = address - segment.p_vaddr;
      if (within < segment.p_filesz) return segment.p_offset + within;
    }
    return 0;
  }

  const UniqueFd& file_;
};

/// Returns N of the version "GLIBC_2.N" or "GLIBC_2.N.x"; 0 for any other name.
unsigned minor_of(std::string_view version) {
  constexpr std::string_view kPrefix = "GLIBC_2.";
  version = version.substr(0, version.find('\0'));
  if (!version.starts_with(kPrefix)) return 0;
  version.remove_prefix(kPrefix.size());
  unsigned minor = 0;
  const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), minor);
  const bool is_whole = end == version.data() + version.size() || *end == '.';
  return error == std::errc() && is_whole ? minor : 0;
}

/// Returns the highest N of all versions GLIBC_2.N that the library defines; 0 if there is none.
unsigned highest_minor(const Library& library) {
  const auto versions = library.versions();
  if (!versions) return 0;
  unsigned highest = 0;
  std::uint64_t at = versions->at;
  for (unsigned index = 0; index < std::min<std::uint64_t>(versions->count, kMaxVersions);
       ++index) {
    Elf64_Verdef version;
    Elf64_Verdaux name;
    if (!library.read(&version, sizeof(version), at) ||
        !library.read(&name, sizeof(name), at + version.vd_aux) ||
        name.vda_name >= versions->names_bytes) {
      break;
    }
    highest = std::max(
        highest, minor_of(library.read_some(kMaxVersionBytes, versions->names_at + name.vda_name)));
    if (version.vd_next == 0) break;
    at += version.vd_next;
  }
  return highest;
}

/// Opens the first file that exists of those that the loader searches for.
Result<UniqueFd> open_c_library(const UniqueFd& root) {
  const std::string multiarch = kMultiarch;
  for (const std::string& folder :
       {"/lib/" + multiarch, std::string("/lib64"), "/usr/lib/" + multiarch,
        std::string("/usr/lib64"), std::string("/lib"), std::string("/usr/lib")}) {
    auto file = open_in(root, folder + "/" + kName);
    if (file || file.error().code() != Code::kNotFound) return file;
  }
  return Error(Code::kNotFound, kName);
}

}  // namespace

Result<unsigned> c_library_minor(const std::filesystem::path& path) {
  const UniqueFd root(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) return Error::from_errno(errno, "its root " + path.string() + " cannot be opened");
  if (const auto loader = open_in(root, kLoader); !loader) {
    return Error(Code::kNotFound,
                 fmt::format("its image has no GNU C library: {}", loader.error().message()));
  }
  const auto file = open_c_library(root);
  if (!file) {
    return Error(Code::kNotFound,
                 fmt::format("its image has no GNU C library: {}", file.error().message()));
  }
  const unsigned minor = highest_minor(Library(*file));
  if (minor != 0) return minor;
  return Error(Code::kUnsupported,
               fmt::format("the {} of its image is not a GNU C library for this machine", kName));
}

Status check_c_library(const std::filesystem::path& root) {
  GCR_ASSIGN(const unsigned minor, c_library_minor(root));
  if (minor >= kOldestMinor) return {};
  return Error(
      Code::kUnsupported,
      fmt::format("its image has the GNU C library 2.{}, and the preload library needs 2.{}", minor,
                  kOldestMinor));
}

}  // namespace gcr::container
