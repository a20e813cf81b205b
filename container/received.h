// Which containers have received a job. A container does that once: if it is started again, by its
// engine or by hand, it starts its program, because no job comes a second time.
//
// A note is an empty file in a directory that only root may write to. Names are those of
// receiver_name().
#pragma once

#include <filesystem>
#include <string>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::container {

class Received {
 public:
  /// Opens the directory; creates it if necessary. kRefused if another user may write to it.
  static Result<Received> open(const std::filesystem::path& path);

  /// Returns whether the container has received a job.
  Result<bool> has(const std::string& name) const;

  /// Records that it has. On disk when this returns.
  Status add(const std::string& name) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  Received(std::filesystem::path path, UniqueFd folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}

  std::filesystem::path path_;
  UniqueFd folder_;
};

}  // namespace gcr::container
