// CRIU's image streamer protocol: the end that receives the images of a dump.
//
// CRIU connects to streamer-capture.sock in its images directory. For each image it sends a message
// with the name (a length of 4 bytes in host order, then Protobuf: img-streamer.proto) and, with
// one more byte, the reading end of a pipe; closing the connection means that there are no more. It
// never waits for an answer: it sees an error as a broken pipe.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "migrate-agent/criu/runs/criu.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// Images by name, each with its whole content.
using ImageContents = std::map<std::string, std::string>;

/// Owns the socket. Move-only.
class Streamer {
 public:
  /// Before CRIU is started.
  static Result<Streamer> listen(const std::filesystem::path& directory);

  /// Once CRIU has connected: takes images until it has closed the connection and all of them have
  /// ended. Images of memory go to `take`, each on a thread of its own; all others are returned.
  /// On failure, also of `take`, CRIU's pipes break.
  Result<ImageContents> collect(const TakeImage& take);

 private:
  explicit Streamer(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
};

}  // namespace gcr::criu
