// A Disk behind FUSE. The kernel caches nothing, and permissions are checked here.
#define FUSE_USE_VERSION 31
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "tests/support/test_disk.h"
#include "tests/support/test_disk_file.h"

namespace gcr::test {
namespace {

constexpr unsigned kRead = 4;
constexpr unsigned kWrite = 2;
constexpr unsigned kSearch = 1;

}  // namespace

/// The calls of FUSE: 0 or a count, or a negative errno.
struct Mount::Calls {
  using File = Disk::File;
  using FilePtr = Disk::FilePtr;
  using Handle = Disk::Handle;

  static Mount& mount() { return *static_cast<Mount*>(fuse_get_context()->private_data); }
  static Handle& handle(const fuse_file_info* info) { return *reinterpret_cast<Handle*>(info->fh); }

  /// The caller, as the disk knows it.
  static uid_t caller() {
    constexpr uid_t kAnonymous = 65534;
    const uid_t uid = fuse_get_context()->uid;
    return uid == 0 && mount().nature_.squashes_root ? kAnonymous : uid;
  }

  static bool may(const File& file, unsigned wanted) {
    const uid_t uid = caller();
    if (uid == 0) return true;
    const unsigned shift = uid == file.uid ? 6 : fuse_get_context()->gid == file.gid ? 3 : 0;
    return ((file.mode >> shift) & wanted) == wanted;
  }

  /// The disk has power, and no other thread uses it meanwhile.
  class Turn {
   public:
    Turn() : lock_(mount().disk_.mutex_) {}
    int error() const { return mount().disk_.is_off_ ? -EIO : 0; }

   private:
    std::lock_guard<std::mutex> lock_;
  };

  static int begin_change() { return mount().disk_.begin_change() ? 0 : -EIO; }

  static int find(const std::filesystem::path& path, FilePtr& file) {
    file = mount().disk_.root_;
    for (const auto& part : path.relative_path()) {
      if (!may(*file, kSearch)) return -EACCES;
      const auto found = file->entries.find(part);
      if (found == file->entries.end()) return -ENOENT;
      file = found->second;
    }
    return 0;
  }

  /// The directory of a name, to change it.
  static int find_parent(const std::filesystem::path& path, FilePtr& parent) {
    const int error = find(path.parent_path(), parent);
    if (error != 0) return error;
    if (!may(*parent, kWrite | kSearch)) return -EACCES;
    return begin_change();
  }

  // The file of a call; `call` is not called after an error.

  static int at_path(const char* path, const auto& call) {
    const Turn turn;
    FilePtr file;
    int error = turn.error();
    if (error == 0) error = find(path, file);
    return error == 0 ? call(file) : error;
  }

  /// To change what its parent has under that name.
  static int in_parent(const char* path, const auto& call) {
    const Turn turn;
    FilePtr parent;
    int error = turn.error();
    if (error == 0) error = find_parent(path, parent);
    return error == 0 ? call(*parent, std::filesystem::path(path).filename().string()) : error;
  }

  static int of_open(const fuse_file_info* info, const auto& call) {
    const Turn turn;
    int error = turn.error();
    if (error == 0) error = check(handle(info));
    return error == 0 ? call(*handle(info).file) : error;
  }

  static void change(File& parent, const File::Change& change) {
    for (const auto& [name, file] : change) {
      const auto old = parent.entries.find(name);
      if (old != parent.entries.end()) {
        --old->second->links;
        old->second->removed_by = &mount();
        parent.entries.erase(old);
      }
      if (file == nullptr) continue;
      ++file->links;
      parent.entries[name] = file;
    }
    parent.changes.push_back(change);
    if (mount().nature_.is_network) parent.sync();
  }

  static int check(const Handle& open) {
    const bool is_gone = open.file->links == 0 && open.file->removed_by != &mount() &&
                         mount().nature_.is_network && !S_ISDIR(open.file->mode);
    return is_gone || open.restarts != mount().disk_.restarts_ ? -ESTALE : 0;
  }

  /// This client's view of it.
  static const std::vector<char>& seen(const File& file) {
    return mount().nature_.is_network && file.writer != &mount() ? file.durable : file.bytes;
  }

  static int open_file(const FilePtr& file, fuse_file_info* info) {
    ++file->open;
    info->fh = reinterpret_cast<std::uint64_t>(new Handle{file, mount().disk_.restarts_});
    info->direct_io = 1;
    return 0;
  }

  static FilePtr make(mode_t mode) {
    auto file = std::make_shared<File>();
    file->mode = mode;
    file->uid = caller();
    file->gid = fuse_get_context()->gid;
    return file;
  }

  static int getattr(const char* path, struct stat* out, fuse_file_info* info) {
    const Turn turn;
    FilePtr file;
    int error = turn.error();
    if (error == 0 && path == nullptr && info == nullptr) error = -ESTALE;
    if (error == 0) error = path != nullptr ? find(path, file) : check(handle(info));
    if (error == -EACCES && mount().disk_.find(path)->open != 0) error = 0;  // by its handle
    if (error != 0) return error;
    file = path != nullptr ? mount().disk_.find(path) : handle(info).file;
    out->st_ino = reinterpret_cast<ino_t>(file.get());
    out->st_mode = file->mode;
    out->st_uid = file->uid;
    out->st_gid = file->gid;
    out->st_nlink = 1;
    out->st_size = static_cast<off_t>(seen(*file).size());
    out->st_blocks = (out->st_size + 511) / 512;
    return 0;
  }

  static int mkdir(const char* path, mode_t mode) {
    return in_parent(path, [&](File& parent, const std::string& name) {
      if (parent.entries.contains(name)) return -EEXIST;
      change(parent, {{name, make(S_IFDIR | mode)}});
      return 0;
    });
  }

  static int create(const char* path, mode_t mode, fuse_file_info* info) {
    return in_parent(path, [&](File& parent, const std::string& name) {
      if (parent.entries.contains(name)) return -EEXIST;
      const FilePtr file = make(S_IFREG | (mode & 07777));
      change(parent, {{name, file}});
      return open_file(file, info);
    });
  }

  static int remove(const char* path) {
    return in_parent(path, [](File& parent, const std::string& name) {
      const auto found = parent.entries.find(name);
      if (found == parent.entries.end()) return -ENOENT;
      if (!found->second->entries.empty()) return -ENOTEMPTY;
      change(parent, {{name, nullptr}});
      return 0;
    });
  }

  static int rename(const char* from, const char* to, unsigned flags) {
    const std::filesystem::path new_path(to);
    if (std::filesystem::path(from).parent_path() != new_path.parent_path()) return -EXDEV;
    if (flags != 0 && !mount().nature_.has_links) return -EINVAL;
    if (flags != 0 && (mount().nature_.is_network || flags != RENAME_NOREPLACE)) return -EINVAL;
    return in_parent(from, [&](File& parent, const std::string& old_name) {
      const std::string name = new_path.filename();
      const auto found = parent.entries.find(old_name);
      if (found == parent.entries.end()) return -ENOENT;
      if (flags != 0 && parent.entries.contains(name)) return -EEXIST;
      const FilePtr file = found->second;
      change(parent, {{name, file}, {old_name, nullptr}});
      return 0;
    });
  }

  static int link(const char* from, const char* to) {
    if (!mount().nature_.has_links) return -EPERM;
    return in_parent(to, [&](File& parent, const std::string& name) {
      FilePtr file;
      const int error = find(from, file);
      if (error != 0) return error;
      if (parent.entries.contains(name)) return -EEXIST;
      change(parent, {{name, file}});
      return 0;
    });
  }

  static int chmod(const char* path, mode_t mode, fuse_file_info*) {
    return at_path(path, [&](const FilePtr& file) {
      if (caller() != 0 && caller() != file->uid) return -EPERM;
      file->mode = (file->mode & S_IFMT) | (mode & 07777);  // durable at once
      return 0;
    });
  }

  static int open(const char* path, fuse_file_info* info) {
    const int access = info->flags & O_ACCMODE;
    const unsigned wanted = access == O_RDONLY   ? kRead
                            : access == O_WRONLY ? kWrite
                                                 : kRead | kWrite;
    return at_path(path, [&](const FilePtr& file) {
      return may(*file, wanted) ? open_file(file, info) : -EACCES;
    });
  }

  static int read(const char*, char* out, size_t size, off_t offset, fuse_file_info* info) {
    return of_open(info, [&](const File& file) {
      if (file.read_error != 0) return -file.read_error;
      const std::vector<char>& bytes = seen(file);
      const std::uint64_t end =
          std::min<std::uint64_t>(bytes.size(), file.reads_end.value_or(~0ull));
      const auto from = static_cast<std::uint64_t>(offset);
      if (from >= end) return 0;
      const std::size_t count = std::min({size, mount().nature_.most_bytes, end - from});
      std::copy_n(&bytes[from], count, out);
      if (file.flipped && *file.flipped >= from && *file.flipped < from + count) {
        out[*file.flipped - from] ^= 1;
      }
      return static_cast<int>(count);
    });
  }

  static int write(const char*, const char* in, size_t size, off_t offset, fuse_file_info* info) {
    return of_open(info, [&](File& file) {
      const int error = begin_change();
      if (error != 0) return error;
      const std::size_t count = std::min(size, mount().nature_.most_bytes);
      const std::size_t end = static_cast<std::size_t>(offset) + count;
      if (end > file.bytes.size()) {
        if (end - file.bytes.size() > mount().disk_.room()) {
          return -mount().disk_.full_error_;
        }
        file.bytes.resize(end);
      }
      std::copy_n(in, count, &file.bytes[end - count]);
      file.writer = &mount();
      return static_cast<int>(count);
    });
  }

  static int truncate(const char*, off_t size, fuse_file_info* info) {
    if (info == nullptr) return -EOPNOTSUPP;
    return of_open(info, [&](File& file) {
      const int error = begin_change();
      if (error != 0) return error;
      file.bytes.resize(static_cast<std::size_t>(size));
      file.writer = &mount();
      return 0;
    });
  }

  static int sync(const char*, int, fuse_file_info* info) {
    const Turn turn;
    const int error = turn.error();
    return error == 0 ? sync(handle(info)) : error;
  }

  static int sync(Handle& open) {
    int error = std::exchange(open.error, 0);
    if (error == 0) error = check(open);
    if (error == 0) error = begin_change();
    if (error != 0) return error;
    File& file = *open.file;
    auto& failing = mount().disk_.failing_sync_;
    if (failing && !S_ISDIR(file.mode)) {
      if (failing->number == 0) {
        file.bytes = file.durable;
        const int failure = -failing->errno_value;
        if (!failing->and_later) failing.reset();
        return failure;
      }
      --failing->number;
    }
    file.sync();
    return 0;
  }

  /// At each close, also of a copy that a child process has. Operations that the kernel must not
  /// send again have no such call: the end of a dying test program would wait for it.
  static int flush(const char*, fuse_file_info* info) {
    if (!mount().nature_.is_network) return -ENOSYS;
    const Turn turn;
    Handle& open = handle(info);
    const bool is_written = open.file->writer == &mount() && open.file->bytes != open.file->durable;
    if (turn.error() != 0 || !is_written) return turn.error();
    return open.error = sync(open);
  }

  static int release(const char*, fuse_file_info* info) {
    const Turn turn;
    const std::unique_ptr<Handle> open(&handle(info));
    --open->file->open;
    if (open->file->locked_by == open.get()) open->file->locked_by = nullptr;
    return 0;
  }

  static int flock(const char*, fuse_file_info* info, int operation) {
    const Turn turn;
    if (turn.error() != 0) return turn.error();
    if (!mount().nature_.has_locks) return -ENOLCK;
    const Handle& open = handle(info);
    const Handle*& holder = open.file->locked_by;
    if ((operation & LOCK_UN) != 0) {
      if (holder == &open) holder = nullptr;
      return 0;
    }
    if (holder != nullptr && holder != &open) return -EWOULDBLOCK;
    holder = &open;
    return 0;
  }

  static int opendir(const char* path, fuse_file_info* info) {
    return at_path(path, [&](const FilePtr& file) {
      return may(*file, kRead) ? open_file(file, info) : -EACCES;
    });
  }

  static int readdir(const char*, void* out, fuse_fill_dir_t fill, off_t, fuse_file_info* info,
                     fuse_readdir_flags) {
    return of_open(info, [&](const File& file) {
      for (const auto& [name, entry] : file.entries) {
        fill(out, name.c_str(), nullptr, 0, fuse_fill_dir_flags{});
      }
      return 0;
    });
  }

  static int statfs(const char*, struct statvfs* out) {
    const Turn turn;
    constexpr unsigned kBlockBytes = 4096;
    const Disk& disk = mount().disk_;
    out->f_bsize = out->f_frsize = kBlockBytes;
    out->f_blocks = disk.size_bytes_ / kBlockBytes;
    out->f_bfree = out->f_bavail = disk.room() / kBlockBytes;
    out->f_namemax = 255;
    return turn.error();
  }

  static void* init(fuse_conn_info* connection, fuse_config* config) {
    connection->max_write = 1 << 20;
    config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
    config->hard_remove = config->nullpath_ok = config->use_ino = 1;
    return fuse_get_context()->private_data;
  }

  static fuse_operations all() {
    fuse_operations calls{};
    calls.init = init;
    calls.getattr = getattr;
    calls.mkdir = mkdir;
    calls.create = create;
    calls.unlink = calls.rmdir = remove;
    calls.rename = rename;
    calls.link = link;
    calls.chmod = chmod;
    calls.open = open;
    calls.read = read;
    calls.write = write;
    calls.truncate = truncate;
    calls.fsync = calls.fsyncdir = sync;
    calls.flush = flush;
    calls.release = calls.releasedir = release;
    calls.flock = flock;
    calls.opendir = opendir;
    calls.readdir = readdir;
    calls.statfs = statfs;
    return calls;
  }
};

Mount::Mount(Disk& disk, std::filesystem::path path, const Nature& nature)
    : disk_(disk), path_(std::move(path)), nature_(nature) {
  std::filesystem::create_directory(path_);
  std::array words{std::string("test-disk"), std::string("-oallow_other")};
  std::array<char*, 2> arguments{words[0].data(), words[1].data()};
  fuse_args args{static_cast<int>(arguments.size()), arguments.data(), 0};
  static const fuse_operations calls = Calls::all();
  fuse_ = fuse_new(&args, &calls, sizeof calls, this);
  if (fuse_ == nullptr || fuse_mount(fuse_, path_.c_str()) != 0) {
    throw std::runtime_error("cannot mount " + path_.string() + ": " + std::strerror(errno));
  }
  server_ = std::thread([this] { fuse_loop(fuse_); });
}

/// Every file that is still open there fails from now on.
Mount::~Mount() {
  ::umount2(path_.c_str(), MNT_FORCE | MNT_DETACH);
  server_.join();
  fuse_destroy(fuse_);
}

}  // namespace gcr::test
