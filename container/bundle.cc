#include "container/bundle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "src/base/unique_fd.h"

namespace gcr::container {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

Status write_like(const UniqueFd& file, const struct stat& original, const std::string& text) {
  GCR_TRY(write_all(file.get(), text));
  if (::fchown(file.get(), original.st_uid, original.st_gid) != 0) {
    return Error::from_errno(errno, "cannot set its owner");
  }
  if (::fchmod(file.get(), original.st_mode & 07777) != 0) {
    return Error::from_errno(errno, "cannot set its mode");
  }
  return {};
}

}  // namespace

Result<std::string> read_all(int fd) {
  std::string text;
  std::array<char, 64 * 1024> part;
  while (text.size() <= kMaxBytes) {
    const ssize_t got = ::read(fd, part.data(), part.size());
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) return Error::from_errno(errno, "cannot read it");
    if (got > 0) text.append(part.data(), static_cast<std::size_t>(got));
  }
  return Error(Code::kResourceExhausted, "it is larger than 64 MiB");
}

Result<std::string> read_file(const std::filesystem::path& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, path.string());
  auto text = read_all(file.get());
  if (!text) return text.error().while_doing(path.string());
  return text;
}

Status write_all(int fd, const std::string& text) {
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t put = ::write(fd, text.data() + written, text.size() - written);
    if (put < 0 && errno != EINTR) return Error::from_errno(errno, "cannot write it");
    if (put > 0) written += static_cast<std::size_t>(put);
  }
  return {};
}

Status replace_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  const auto target = std::filesystem::canonical(path, error);
  struct stat original {};
  if (error || ::stat(target.c_str(), &original) != 0) {
    return Error::from_errno(error ? error.value() : errno, "cannot replace " + path.string());
  }
  std::string name = target.string() + ".gcr-XXXXXX";
  const UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "cannot create " + name);
  Status status = write_like(file, original, text);
  if (status && ::rename(name.c_str(), target.c_str()) != 0) {
    status = Error::from_errno(errno, "cannot rename it to " + target.string());
  }
  if (status) return {};
  ::unlink(name.c_str());
  return status.error().while_doing(name);
}

}  // namespace gcr::container
