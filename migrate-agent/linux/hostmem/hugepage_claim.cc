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
/// The lock's holder waits for the kernel to find hugepages, for 100 GiB in the worst case.
constexpr std::chrono::minutes kPatience{1};

std::string limit_path(const HugepageLimits& limits) {
  return limits.kernel_directory + "/nr_overcommit_hugepages";
}

/// Takes `pages` off the limit, or all that is left of it. The directory is locked.
Status lower_limit(const HugepageLimits& limits, std::uint64_t pages) {
  GCR_ASSIGN(const std::uint64_t now, read_number(limit_path(limits)));
  return write_number(limit_path(limits), now - std::min(now, pages));
}

/// If nobody owns the claim at `path` any more, gives its pages back and forgets it.
Status collect(const HugepageLimits& limits, const std::string& path) {
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
    GCR_TRY(collect(limits, entry.path()));
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
    // The limit before the claim: dying in between leaves it too high, never below what it was.
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
    spdlog::warn("the limit of hugepages stays {} pages too high: {}", pages,
                 lowered.error().message());
  }
  file_.reset();
}

}  // namespace gcr::hostmem
