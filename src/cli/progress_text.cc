#include "src/cli/progress_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "src/base/units.h"

namespace gcr::cli {
namespace {

constexpr double kLongestShownMs = 1e12;
constexpr double kMinuteMs = 60'000;
constexpr double kHourMs = 60 * kMinuteMs;

bool is_quantity(double value) { return std::isfinite(value) && value > 0; }

std::uint64_t sent_of_round(const proto::Progress& progress) {
  return progress.round_bytes() - std::min(progress.round_bytes(), progress.remaining_bytes());
}

/// Formats a rate: "1.21 GB/s", "310 MB/s".
std::string rate_text(double bytes_per_s) {
  if (bytes_per_s >= 1e9) return fmt::format("{:.2f} GB/s", bytes_per_s / 1e9);
  if (bytes_per_s >= 1e6) return fmt::format("{:.0f} MB/s", bytes_per_s / 1e6);
  return fmt::format("{:.0f} kB/s", bytes_per_s / 1e3);
}

}  // namespace

std::string duration_text(double ms) {
  if (!std::isfinite(ms) || ms < 0 || ms > kLongestShownMs) return "-";
  if (ms < 1000) return fmt::format("{:.0f} ms", ms);
  if (ms < kMinuteMs) return fmt::format("{:.1f} s", ms / 1000);
  const auto seconds = static_cast<long long>(ms / 1000);
  if (ms < kHourMs) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
}

std::string time_text(std::int64_t unix_ms) {
  if (unix_ms <= 0) return "-";
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(static_cast<std::time_t>(unix_ms / 1000)));
}

double share_sent(const proto::Progress& progress) {
  if (progress.round_bytes() == 0) return 0;
  return static_cast<double>(sent_of_round(progress)) / static_cast<double>(progress.round_bytes());
}

std::vector<std::string> progress_details(const proto::Progress& progress) {
  std::vector<std::string> details;
  if (progress.round() > 0 && progress.round_bytes() > 0) {
    details.push_back(fmt::format("{} of {}", format_bytes(sent_of_round(progress)),
                                  format_bytes(progress.round_bytes())));
  }
  if (is_quantity(progress.rate_bytes_per_s())) {
    details.push_back(rate_text(progress.rate_bytes_per_s()));
  }
  if (is_quantity(progress.dirty_rate_bytes_per_s())) {
    details.push_back("dirtied at " + rate_text(progress.dirty_rate_bytes_per_s()));
  }
  if (is_quantity(progress.throttle())) {
    details.push_back(fmt::format("throttled {:.0f} %", std::min(progress.throttle(), 1.0) * 100));
  }
  if (is_quantity(progress.expected_downtime_ms())) {
    details.push_back(fmt::format("downtime {} {}",
                                  progress.expected_is_least() ? "at least" : "about",
                                  duration_text(progress.expected_downtime_ms())));
  }
  if (is_quantity(progress.time_left_ms())) {
    details.push_back(duration_text(progress.time_left_ms()) + " left");
  }
  return details;
}

std::string progress_line(const proto::Progress& progress) {
  std::vector<std::string> parts = progress_details(progress);
  if (progress.round() > 0) {
    parts.insert(parts.begin(),
                 fmt::format("round {}, {:.0f} %", progress.round(), share_sent(progress) * 100));
  }
  parts.push_back(duration_text(progress.elapsed_ms()) + " so far");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace gcr::cli
