// A block that lands is copied out of the ring first, because the peer may still change it there,
// then checked, decompressed and digested. Its pages go to the place that place_memory() knows, or
// to a sparse file that has a number for a name. When everything has landed, the digest of each
// file, which does not depend on the order of its windows, is compared with the sender's, and the
// file gets its name.
#include "migrate-agent/transfer/images/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "src/base/raw_bytes.h"
#include "src/base/units.h"

namespace gcr::images {
namespace {

namespace fs = std::filesystem;

constexpr char kIncoming[] = ".incoming";
constexpr std::string_view kExtension = ".img";
constexpr std::size_t kMaxNameBytes = 128;

bool is_plain(std::string_view name) {
  return name.size() > kExtension.size() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name.ends_with(kExtension) && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

Status write_all(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return Error::from_errno(put < 0 ? errno : ENOSPC, "cannot write an image file");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return {};
}

}  // namespace

ImageStore::ImageStore(fs::path directory, UniqueFd incoming, UniqueMapping ring,
                       std::uint64_t max_bytes, const std::array<std::byte, 32>& secret,
                       MoreRoom more_room)
    : directory_(std::move(directory)),
      incoming_(std::move(incoming)),
      ring_(std::move(ring)),
      more_room_(std::move(more_room)),
      digester_(secret),
      max_bytes_(max_bytes) {}

Result<std::unique_ptr<ImageStore>> ImageStore::create(fs::path directory, unsigned slots,
                                                       std::uint64_t max_bytes,
                                                       const std::array<std::byte, 32>& secret,
                                                       MoreRoom more_room) {
  const fs::path incoming = directory / kIncoming;
  if (::mkdir(incoming.c_str(), 0700) != 0) {
    return Error::from_errno(errno, fmt::format("cannot create {}", incoming.string()));
  }
  UniqueFd fd(::open(incoming.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return Error::from_errno(errno, fmt::format("cannot open {}", incoming.string()));
  const std::size_t bytes = std::size_t{slots} * kSlotBytes;
  void* const address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return Error::from_errno(
        errno, fmt::format("cannot map {} for images that arrive", format_bytes(bytes)));
  }
  // A wish: few images need all of it, and what they do need comes with few faults.
  (void)::madvise(address, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<ImageStore>(new ImageStore(std::move(directory), std::move(fd),
                                                    UniqueMapping(address, bytes), max_bytes,
                                                    secret, std::move(more_room)));
}

/// Counts what is about to be written for the first time.
Status ImageStore::make_room(const BlockHeader& header) {
  const std::lock_guard lock(room_mutex_);
  PresentPages& landed = landed_pages_[{header.file, header.offset}];
  BlockHeader first = header;
  first.present &= ~landed;
  landed |= header.present;
  const std::uint64_t bytes = first.payload_bytes();
  if (landed_bytes_ + bytes > max_bytes_ && more_room_) {
    auto more = more_room_(landed_bytes_ + bytes - max_bytes_);
    if (!more) return more.error().while_doing("the images are larger than was expected");
    max_bytes_ = *more;
  }
  landed_bytes_ += bytes;
  if (landed_bytes_ <= max_bytes_) return {};
  return Error(Code::kResourceExhausted,
               fmt::format("the images are larger than the {} that there is room for",
                           format_bytes(max_bytes_)));
}

Status ImageStore::landed(std::uint64_t offset, std::uint64_t length_bytes) {
  thread_local RawBytes stored(kWindowBytes);
  thread_local RawBytes pages(kWindowBytes);
  if (offset % kSlotBytes != 0 || length_bytes < kBlockHeaderBytes || length_bytes > kSlotBytes ||
      offset >= ring_.bytes().size()) {
    return Error(Code::kProtocol, "the source wrote past the slots of the images");
  }
  const auto slot = ring_.bytes().subspan(offset, length_bytes);
  // A copy: the peer may write again while this looks at it.
  BlockHeaderBytes header_bytes;
  std::memcpy(header_bytes.data(), slot.data(), header_bytes.size());
  GCR_ASSIGN(const BlockHeader header, decode(header_bytes));
  if (header.stored_bytes != length_bytes - kBlockHeaderBytes) {
    return Error(Code::kProtocol, "a block of an image has another length than its write");
  }
  const std::size_t size = header.payload_bytes();
  GCR_TRY(make_room(header));
  const auto payload = slot.subspan(kBlockHeaderBytes);
  std::memcpy(stored.data(), payload.data(), payload.size());
  if (header.codec == store::Codec::kNone)
    return take(header, std::span(stored).first(payload.size()));
  GCR_TRY(store::decompress(header.codec, std::span(stored).first(payload.size()),
                            std::span(pages).first(size)));
  return take(header, std::span(pages).first(size));
}

Status ImageStore::take(const BlockHeader& header, std::span<const std::byte> pages) {
  GCR_ASSIGN(const ImageDigest digest, digester_.digest(header, pages));
  {
    const std::lock_guard lock(mutex_);
    const auto [file, is_new] = files_.try_emplace(header.file);
    if (is_new) file->second.memory = header.memory;
    if (file->second.memory != header.memory) {
      return Error(Code::kProtocol, "the source sent an image of two memories");
    }
    file->second.digest += digest;
  }
  if (header.memory != 0 && place_memory_) {
    GCR_ASSIGN(const bool placed, place_memory_(header, pages));
    if (placed) return {};
  }
  return write_pages(header, pages);
}

Status ImageStore::write_pages(const BlockHeader& header, std::span<const std::byte> pages) {
  const UniqueFd file(::openat(incoming_.get(), std::to_string(header.file).c_str(),
                               O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return Error::from_errno(errno, "cannot create an image file");
  const std::size_t end = (header.raw_bytes + kPageBytes - 1) / kPageBytes;
  for (std::size_t page = 0; page < end; ++page) {
    if (!header.present[page]) continue;
    const std::size_t first = page;
    while (page < end && header.present[page]) ++page;
    const std::size_t size = std::min((page - first) * kPageBytes, pages.size());
    GCR_TRY(write_all(file.get(), pages.first(size), header.offset + first * kPageBytes));
    pages = pages.subspan(size);
  }
  return {};
}

Status ImageStore::complete(const std::vector<ImageFile>& files) {
  std::set<std::uint32_t> ids;
  for (const ImageFile& file : files) {
    if (!is_plain(file.name)) {
      return Error(Code::kProtocol, "the source sent an invalid name of an image file");
    }
    if (file.id >= kMaxFiles || file.size_bytes > kMaxFileBytes || !ids.insert(file.id).second) {
      return Error(Code::kProtocol,
                   fmt::format("the source sent an invalid id or size of {}", file.name));
    }
    GCR_TRY(name_file(file));
  }
  if (::rmdir((directory_ / kIncoming).c_str()) != 0) {
    if (errno == ENOTEMPTY) return Error(Code::kProtocol, "the source sent a file without a name");
    return Error::from_errno(errno, "cannot finish the image files");
  }
  return {};
}

Status ImageStore::name_file(const ImageFile& named) {
  {
    const std::lock_guard lock(mutex_);
    const File& landed = files_[named.id];
    if (landed.digest != named.digest) {
      return Error(Code::kDataLoss, fmt::format("{} did not arrive as it was sent", named.name));
    }
    if (landed.memory != 0) memories_[landed.memory].push_back(named.name);
  }
  const std::string id = std::to_string(named.id);
  const fs::path path = directory_ / named.name;
  const UniqueFd file(::openat(incoming_.get(), id.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    return Error::from_errno(errno, fmt::format("cannot create {}", path.string()));
  }
  if (static_cast<std::uint64_t>(status.st_size) > named.size_bytes) {
    return Error(Code::kProtocol,
                 fmt::format("the source sent more of {} than it has", named.name));
  }
  if (::ftruncate(file.get(), static_cast<off_t>(named.size_bytes)) != 0) {
    return Error::from_errno(errno, fmt::format("cannot make {} {} long", path.string(),
                                                format_bytes(named.size_bytes)));
  }
  // Never replaces an existing file.
  if (::linkat(incoming_.get(), id.c_str(), AT_FDCWD, path.c_str(), 0) == 0 &&
      ::unlinkat(incoming_.get(), id.c_str(), 0) == 0) {
    return {};
  }
  if (errno == EEXIST) {
    return Error(Code::kProtocol, fmt::format("the source named {} twice", named.name));
  }
  return Error::from_errno(errno, fmt::format("cannot create {}", path.string()));
}

}  // namespace gcr::images
