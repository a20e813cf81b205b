#include "migrate-agent/roles/images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "src/base/log.h"
#include "src/base/units.h"

namespace gcr::agent {
namespace {

constexpr std::size_t kZeroUnit = 64 * kKiB;  ///< zeros are recognised in pieces of this size
constexpr std::size_t kMaxNameBytes = 128;

Result<UniqueMapping> map_file(int fd, std::uint64_t size_bytes, int protection,
                               const std::string& name) {
  if (size_bytes == 0) return UniqueMapping();
  void* address = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    return Error::from_errno(errno, fmt::format("cannot map the image file {}", name));
  }
  return UniqueMapping(address, size_bytes);
}

bool is_zero(std::span<const std::byte> bytes) {
  return bytes[0] == std::byte{0} &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

/// Sends what is not zero of [offset, offset + bytes.size()) of a file.
Result<std::uint64_t> send_block(transport::Channel& channel, transport::RegionId region,
                                 std::uint64_t offset, std::span<const std::byte> bytes) {
  std::uint64_t sent = 0;
  std::size_t run_start = 0;
  std::size_t at = 0;
  const auto send_run = [&](std::size_t end) -> Status {
    if (end == run_start) return {};
    sent += end - run_start;
    return channel.write(region, offset + run_start, bytes.subspan(run_start, end - run_start));
  };
  while (at < bytes.size()) {
    const std::size_t length = std::min(kZeroUnit, bytes.size() - at);
    if (is_zero(bytes.subspan(at, length))) {
      GCR_TRY(send_run(at));
      run_start = at + length;
    }
    at += length;
  }
  GCR_TRY(send_run(at));
  return sent;
}

struct Block {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

}  // namespace

Result<ScratchDirectory> ScratchDirectory::create(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) {
    return Error::from_errno(error.value(),
                             fmt::format("cannot create {}", path.parent_path().string()));
  }
  if (::mkdir(path.c_str(), 0700) != 0) {
    return Error::from_errno(errno, fmt::format("cannot create {}", path.string()));
  }
  return ScratchDirectory(path);
}

ScratchDirectory::~ScratchDirectory() {
  if (path_.empty()) return;
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) spdlog::warn("cannot remove {}: {}", path_.string(), error.message());
}

Result<std::vector<ImageFile>> list_images(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<ImageFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (!entry.is_regular_file(error) || entry.path().extension() == ".log") continue;
    files.push_back({entry.path().filename().string(), entry.file_size(error)});
  }
  if (error) {
    return Error::from_errno(error.value(), fmt::format("cannot list {}", directory.string()));
  }
  std::sort(files.begin(), files.end(),
            [](const ImageFile& a, const ImageFile& b) { return a.name < b.name; });
  return files;
}

Result<std::uint64_t> send_images(transport::Channel& channel,
                                  const std::filesystem::path& directory,
                                  const std::vector<ImageFile>& files,
                                  const std::vector<transport::RegionId>& regions,
                                  unsigned threads) {
  std::vector<UniqueMapping> mappings;
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::filesystem::path path = directory / files[i].name;
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return Error::from_errno(errno, fmt::format("cannot open {}", path.string()));
    GCR_ASSIGN(auto mapping, map_file(fd.get(), files[i].size_bytes, PROT_READ, files[i].name));
    mappings.push_back(std::move(mapping));
    for (std::uint64_t at = 0; at < files[i].size_bytes; at += kChunkBytes) {
      blocks.push_back({i, at, std::min(kChunkBytes, files[i].size_bytes - at)});
    }
  }
  std::atomic<std::size_t> next = 0;
  std::atomic<std::uint64_t> sent = 0;
  std::mutex mutex;
  std::optional<Error> failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < blocks.size(); i = next++) {
      const Block& block = blocks[i];
      const auto bytes = mappings[block.file].bytes().subspan(block.offset, block.length);
      auto block_sent = send_block(channel, regions[block.file], block.offset, bytes);
      if (block_sent) {
        sent += *block_sent;
        continue;
      }
      next = blocks.size();
      const std::lock_guard lock(mutex);
      failure = block_sent.error();
    }
  };
  {
    std::vector<std::jthread> senders;
    for (unsigned i = 0; i < std::max(1U, threads); ++i) senders.emplace_back(work);
  }
  if (failure) return failure->while_doing("cannot send the images");
  GCR_TRY(channel.flush());
  return sent.load();
}

Result<UniqueMapping> create_image(const std::filesystem::path& directory, const ImageFile& file) {
  const bool plain = !file.name.empty() && file.name.size() <= kMaxNameBytes &&
                     file.name.front() != '.' &&
                     std::all_of(file.name.begin(), file.name.end(), [](unsigned char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
                     });
  if (!plain) return Error(Code::kProtocol, "the source named an image file that cannot be one");
  const std::filesystem::path path = directory / file.name;
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return Error::from_errno(errno, fmt::format("cannot create {}", path.string()));
  if (::ftruncate(fd.get(), static_cast<off_t>(file.size_bytes)) != 0) {
    return Error::from_errno(
        errno, fmt::format("cannot make {} {} long", path.string(), format_bytes(file.size_bytes)));
  }
  return map_file(fd.get(), file.size_bytes, PROT_READ | PROT_WRITE, file.name);
}

}  // namespace gcr::agent
