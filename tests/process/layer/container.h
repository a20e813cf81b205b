// Containers as an engine makes them: an overlay over an image, which is the root of a process with
// a mount namespace of its own. Needs root.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>

namespace gcr::layer::test {

/// A private mount namespace for the calling process, and a file system in memory that is removed
/// again. Throws std::runtime_error.
class Machine {
 public:
  Machine();
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct ContainerOptions {
  std::string overlay;                                      ///< further options of the overlay
  std::function<void(const std::filesystem::path&)> mount;  ///< mounts below its root
  bool is_read_only = false;
  std::string name_of_upper = "upper";
};

/// A running container. Throws std::runtime_error.
class Container {
 public:
  /// `home`: a new directory for its upper directory.
  Container(const std::filesystem::path& image, const std::filesystem::path& home,
            const ContainerOptions& options = {});
  /// With any directory as its root.
  Container(const std::filesystem::path& root, const ContainerOptions& options);
  ~Container();
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  pid_t init() const { return init_; }
  std::filesystem::path root() const;
  const std::filesystem::path& upper() const { return upper_; }

  /// Runs a script of Bash in the root directory. Throws if it fails.
  void run(const std::string& script) const;

 private:
  void start(const std::filesystem::path& root, const ContainerOptions& options);

  std::filesystem::path upper_;
  std::filesystem::path merged_;
  pid_t init_ = 0;
};

/// Mounts, or throws.
void mount_at(const std::filesystem::path& point, const std::string& type,
              const std::string& options = "", const std::string& source = "none");
void bind_at(const std::filesystem::path& point, const std::filesystem::path& source);

}  // namespace gcr::layer::test
