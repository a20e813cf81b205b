// A file system in memory for tests, mounted through FUSE. It loses unsynced data when its power
// fails, delays its errors, differs between clients as NFS does, and returns wrong data. Renames
// are atomic, as journals guarantee. Needs root and /dev/fuse.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

struct fuse;

namespace gcr::test {

/// The part of the unsynced data that a power failure loses.
enum class Loss {
  kNothing,  ///< only the processes died: the rest can still be lost later
  kAll,
  kNames,  ///< bytes of files survive, new and removed names do not
  kBytes,  ///< the reverse
  kSome,   ///< each page, length and name by itself
};

/// How a client sees the disk.
struct Nature {
  /// As NFS: names are the server's at once, bytes when a file is synced or closed, which is also
  /// when others see them; a file that another client removes is stale.
  bool is_network = false;
  bool squashes_root = false;  ///< root is mapped to an unprivileged user
  bool has_locks = true;
  bool has_links = true;                          ///< and renames that replace nothing
  std::size_t most_bytes = std::size_t{1} << 20;  ///< the limit of one read or write
};

class Mount;

/// Thread-safe.
class Disk {
 public:
  /// Its root belongs to that user, with mode 0700.
  explicit Disk(uid_t uid = 0, gid_t gid = 0);
  ~Disk();

  /// The power fails at the n-th change or sync from now, from 0: neither it nor any later one
  /// happens. Until restart() every call fails with EIO.
  void cut_power_at(unsigned number);
  bool is_off() const;

  /// The remaining data is durable, and files that were open are stale; with kNothing only the
  /// power is restored. The same seed gives the same choice.
  void restart(Loss loss, std::uint64_t seed = 0);

  /// The n-th sync of a file from now, from 0, fails with that errno, and unsynced data of that
  /// file is lost. If a close is the sync, the next sync by that open file fails too.
  void fail_sync_at(unsigned number, int errno_value);
  /// All of them, until a restart.
  void fail_syncs(int errno_value);

  /// Leaves this much room from now on; a write that needs more fails with that errno.
  void leave(std::uint64_t bytes, int errno_value = ENOSPC);

  /// Reads of the file return one changed bit at that offset.
  void flip_bit(const std::string& path, std::uint64_t offset);
  /// Reads fail with that errno, until it is 0.
  void fail_reads(const std::string& path, int errno_value);
  /// Reads find end of file from that offset on.
  void end_reads_at(const std::string& path, std::uint64_t offset);

 private:
  friend class Mount;
  struct File;
  struct Handle;
  using FilePtr = std::shared_ptr<File>;

  bool begin_change();
  std::uint64_t room() const;
  FilePtr find(const std::string& path) const;
  void lose(File& file, Loss loss, std::mt19937_64& random);

  mutable std::mutex mutex_;
  FilePtr root_;
  std::uint64_t size_bytes_ = std::uint64_t{64} << 30;
  int full_error_ = 0;
  std::optional<unsigned> cut_after_;
  struct FailingSync {
    unsigned number = 0;
    int errno_value = 0;
    bool and_later = false;
  };
  std::optional<FailingSync> failing_sync_;
  bool is_off_ = false;
  unsigned restarts_ = 0;
};

/// One client's mount.
class Mount {
 public:
  /// Throws std::runtime_error. `disk` must outlive it.
  Mount(Disk& disk, std::filesystem::path path, const Nature& nature = {});
  ~Mount();
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Calls;

  Disk& disk_;
  const std::filesystem::path path_;
  const Nature nature_;
  fuse* fuse_ = nullptr;
  std::thread server_;
};

}  // namespace gcr::test
