#include "tests/fault/scenario.h"

#include <fmt/format.h>

namespace gcr::fault::test {

std::string_view to_string(Harm harm) {
  switch (harm) {
    case Harm::kNone:
      return "none";
    case Harm::kError:
      return "error";
    case Harm::kCorrupt:
      return "corrupt";
    case Harm::kKillWorker:
      return "kill worker";
    case Harm::kKillDaemon:
      return "kill daemon";
    case Harm::kKillBoth:
      return "kill both";
    case Harm::kKillHost:
      return "kill host";
    case Harm::kKillApp:
      return "kill app";
    case Harm::kKillCopy:
      return "kill copy";
    case Harm::kKillMember:
      return "kill member";
    case Harm::kEndApp:
      return "end app";
    case Harm::kWake:
      return "wake";
    case Harm::kRun:
      return "run";
    case Harm::kArm:
      return "arm";
    case Harm::kStop:
      return "stop";
    case Harm::kCut:
      return "cut";
  }
  return "";
}

std::string Scenario::describe() const {
  if (harm == Harm::kNone) return "none";
  if (harm == Harm::kArm)
    return fmt::format("{} at {} after {}", to_string(then), then_point, point);
  const std::string_view whose = side == Side::kSource ? "source" : "destination";
  std::string text = fmt::format("{} ({})", to_string(harm), whose);
  if (lasts.count() > 0) text += fmt::format(" for {} ms", lasts.count());
  if (harm == Harm::kRun) text += ": " + command;
  text += point.empty() ? fmt::format(" after {} ms", delay.count()) : " at " + point;
  if (!then_point.empty()) text += fmt::format(", then {} at {}", to_string(then), then_point);
  return text;
}

}  // namespace gcr::fault::test
