#include "migrate-agent/linux/hostmem/hugepage_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>

#include "src/base/file_lock.h"
#include "src/base/uuid.h"

namespace gcr::hostmem {
namespace {

constexpr const char* kClaimPrefix = "claim-";
/// The holder of the lock waits while the kernel allocates hugepages, 100 GiB in the worst case.
constexpr std::chrono::minutes kPatience{1};

std::string limit_path(const HugepageLimits& limits) {
  return limits.kernel_directory + "/nr_overcommit_hugepages";
}

/// Lowers the limit by `pages`, but not below 0. The caller holds the lock.
Status lower_limit(const HugepageLimits& limits, std::uint64_t pages) {
  GCR_ASSIGN(const std::uint64_t now, read_number(limit_path(limits)));
  return write_number(limit_path(limits), now - std::min(now, pages));
}

/// If the owner of the claim at `path` is dead, subtracts its pages from the limit and removes the
/// claim.
Status reclaim_if_dead(const HugepageLimits& limits, const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file || !lock_file(file.get(), path, {})) return {};
  if (auto pages = read_number(path)) GCR_TRY(lower_limit(limits, *pages));
  ::unlink(path.c_str());
  return {};
}

}  // namespace

Result<HugepageLock> HugepageLock::take(const HugepageLimits& limits) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(limits.state_directory, error);
  if (!error) fs::permissions(limits.state_directory, fs::perms::owner_all, error);
  if (error) {
    return Error::from_errno(error.value(), fmt::format("creating {}", limits.state_directory));
  }
  const std::string path = limits.state_directory + "/lock";
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return Error::from_errno(errno, fmt::format("opening {}", path));
  GCR_TRY(lock_file(file.get(), "the hugepage limit", kPatience));
  for (const auto& entry : fs::directory_iterator(limits.state_directory, error)) {
    if (!entry.path().filename().string().starts_with(kClaimPrefix)) continue;
    GCR_TRY(reclaim_if_dead(limits, entry.path()));
  }
  return HugepageLock(std::move(file));
}

HugepageClaim& HugepageClaim::operator=(HugepageClaim&& other) noexcept {
  if (this == &other) return *this;
  release();
  limits_ = std::move(other.limits_);
  path_ = std::move(other.path_);
  file_ = std::move(other.file_);
  pages_ = std::exchange(other.pages_, 0);
  return *this;
}

Result<HugepageClaim> HugepageClaim::add(const HugepageLimits& limits, std::uint64_t pages,
                                         const HugepageLock&) {
  const std::string path =
      fmt::format("{}/{}{}", limits.state_directory, kClaimPrefix, Uuid::random().to_string());
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return Error::from_errno(errno, fmt::format("creating {}", path));
  auto raise = [&]() -> Status {
    GCR_TRY(lock_file(file.get(), path, {}));
    GCR_ASSIGN(const std::uint64_t now, read_number(limit_path(limits)));
    // Raise the limit before writing the claim: a crash in between leaves it too high, never too
    // low.
    GCR_TRY(write_number(limit_path(limits), now + pages));
    if (auto noted = write_number(path, pages); !noted) {
      GCR_TRY(lower_limit(limits, pages));
      return noted;
    }
    return {};
  };
  if (auto raised = raise(); !raised) {
    ::unlink(path.c_str());
    return raised.error().while_doing("raising the limit of hugepages");
  }
  HugepageClaim claim;
  claim.limits_ = limits;
  claim.path_ = path;
  claim.file_ = std::move(file);
  claim.pages_ = pages;
  return claim;
}

void HugepageClaim::release() {
  const std::uint64_t pages = std::exchange(pages_, 0);
  if (pages == 0) return;
  auto lock = HugepageLock::take(limits_);
  Status lowered = lock ? lower_limit(limits_, pages) : Status(lock.error());
  if (lowered) {
    ::unlink(path_.c_str());
  } else {
    spdlog::warn("cannot lower the limit of surplus hugepages by {} pages again: {}", pages,
                 lowered.error().message());
  }
  file_.reset();
}

}  // namespace gcr::hostmem
