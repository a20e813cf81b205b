// Reads a pack (pack_writer.h) that a peer has sent, as libarchive parses it. What it says is
// checked here as far as that needs no file system. Any thread; blocking.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "migrate-agent/process/layer/rules.h"
#include "src/base/result.h"

namespace gcr::layer {

/// One entry of a pack.
struct PackEntry {
  enum class Kind { kFile = 1, kLink, kRemoved, kEmptied };

  Kind kind{};
  std::string path;    ///< relative, without anything that could lead elsewhere; "" is the root
  std::string target;  ///< kLink: the path of the other name; of a symbolic link: its content
  mode_t mode = 0;     ///< kFile: with the type
  uid_t uid = 0;
  gid_t gid = 0;
  dev_t device = 0;
  timespec modified{};
  std::uint64_t size = 0;
  Attributes attributes;
};

/// Move-only. After an error only destroying it is allowed.
class PackReader {
 public:
  /// `fd` remains the caller's, and ends with the pack.
  static Result<PackReader> open(int fd, const Limits& limits);
  PackReader(PackReader&&) noexcept;
  ~PackReader();

  /// The next entry; none at the end. kProtocol for what no agent would send, and for a pack
  /// without an end; kResourceExhausted beyond the limits.
  Result<std::optional<PackEntry>> next();

  /// Gives the content of the entry to `sink`, by offset; holes are left out.
  using Sink = std::function<Status(std::uint64_t offset, std::span<const std::byte> bytes)>;
  Status read_content(const Sink& sink);

 private:
  class Stream;
  explicit PackReader(std::unique_ptr<Stream> stream);

  std::unique_ptr<Stream> stream_;
};

}  // namespace gcr::layer
