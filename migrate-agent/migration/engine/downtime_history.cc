#include "migrate-agent/migration/engine/downtime_history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <vector>

#include "migrate-agent/migration/engine/downtimes.pb.h"
#include "src/base/file_lock.h"
#include "src/base/unique_fd.h"

namespace gcr::migration {
namespace {

namespace fs = std::filesystem;
using downtimes::Downtime;
using downtimes::Downtimes;

constexpr std::size_t kRemembered = 5;
constexpr int kMostOfAll = 200;
constexpr std::size_t kMaxKindBytes = 100;
constexpr std::uintmax_t kMaxFileBytes = 64 * 1024;
constexpr double kLongestMs = 3'600'000;

fs::path file_of(const fs::path& state_dir) { return state_dir / "downtimes"; }

bool is_time(double ms) { return std::isfinite(ms) && ms >= 0 && ms <= kLongestMs; }

/// The valid entries of the file.
Downtimes read(const fs::path& path) {
  std::error_code error;
  Downtimes found;
  const auto size = fs::file_size(path, error);
  if (error || size > kMaxFileBytes) return found;
  std::ifstream file(path, std::ios::binary);
  if (!found.ParseFromIstream(&file)) found.Clear();
  auto& all = *found.mutable_measured();
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const Downtime& measured) {
                             return !is_time(measured.control_ms()) ||
                                    !is_time(measured.rest_ms()) ||
                                    measured.kind().size() > kMaxKindBytes;
                           }),
            all.end());
  return found;
}

/// Replaces the old file atomically.
Status write(const fs::path& path, const Downtimes& content) {
  const fs::path fresh = path.string() + ".new";
  const auto fail = [&fresh](const char* what) {
    return Error::from_errno(errno, fmt::format("cannot {} {}", what, fresh.string()));
  };
  const std::string bytes = content.SerializeAsString();
  UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return fail("open");
  const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
  if (written < 0) return fail("write");
  if (static_cast<std::size_t>(written) != bytes.size()) {
    return Error(Code::kIo, fmt::format("cannot write all of {}", fresh.string()));
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) return fail("rename");
  return {};
}

double middle(std::vector<double> values) {
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

/// Removes the oldest entries, so that one more of this kind fits.
void forget(downtimes::Downtimes& all, const std::string& kind, bool prefill) {
  auto& list = *all.mutable_measured();
  const auto same = [&](const Downtime& measured) {
    return measured.kind() == kind && measured.prefill() == prefill;
  };
  for (auto count = std::ranges::count_if(list, same);
       count >= static_cast<std::ptrdiff_t>(kRemembered); --count) {
    list.erase(std::ranges::find_if(list, same));
  }
  while (list.size() >= kMostOfAll) list.erase(list.begin());
}

std::string_view name_of(std::string_view word) {
  return word.substr(word.rfind('/') + 1);  // all of it if there is no slash
}

}  // namespace

std::string kind_of_program(std::string_view command_line) {
  const auto end = command_line.find(' ');
  std::string kind(name_of(command_line.substr(0, end)));
  if (end != std::string_view::npos) {
    const std::string_view rest = command_line.substr(end + 1);
    const std::string_view argument = rest.substr(0, rest.find(' '));
    if (!argument.empty() && !argument.starts_with('-')) {
      kind += ' ';
      kind += name_of(argument);
    }
  }
  if (kind.size() > kMaxKindBytes) kind.resize(kMaxKindBytes);
  return kind;
}

SteadyDowntime expect_downtime(const fs::path& state_dir, const std::string& kind, bool prefill) {
  const Downtimes all = read(file_of(state_dir));
  std::vector<double> control, rest;
  SteadyDowntime quickest;
  for (const Downtime& measured : all.measured()) {
    if (measured.prefill() != prefill) continue;
    const SteadyDowntime entry{measured.control_ms(), measured.rest_ms(), true};
    const bool first = quickest.control_ms == 0 && quickest.rest_ms == 0;
    if (first || entry.with_last_round_ms(0) < quickest.with_last_round_ms(0)) quickest = entry;
    if (measured.kind() != kind) continue;
    control.push_back(measured.control_ms());
    rest.push_back(measured.rest_ms());
  }
  if (control.empty()) return quickest;
  return {middle(std::move(control)), middle(std::move(rest)), false};
}

Status remember_downtime(const fs::path& state_dir, const std::string& kind, bool prefill,
                         const SteadyDowntime& measured) {
  if (!is_time(measured.control_ms) || !is_time(measured.rest_ms)) {
    return Error(Code::kInvalidArgument,
                 fmt::format("cannot record a downtime of {} ms and {} ms: out of range",
                             measured.control_ms, measured.rest_ms));
  }
  const UniqueFd lock(::open(state_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock) return Error::from_errno(errno, fmt::format("cannot open {}", state_dir.string()));
  GCR_TRY(lock_file(lock.get(), state_dir.string()));
  downtimes::Downtimes all = read(file_of(state_dir));
  forget(all, kind, prefill);
  downtimes::Downtime& added = *all.add_measured();
  added.set_kind(kind);
  added.set_prefill(prefill);
  added.set_control_ms(measured.control_ms);
  added.set_rest_ms(measured.rest_ms);
  return write(file_of(state_dir), all);
}

}  // namespace gcr::migration
