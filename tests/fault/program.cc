#include "tests/fault/program.h"

#include <fmt/format.h>

#include <sstream>
#include <stdexcept>
#include <utility>

#include "tests/apps/ring.h"
#include "tests/apps/ticker.h"

namespace gcr::fault::test {
namespace {

constexpr unsigned kRanks = 2;
constexpr unsigned kStepsPerLine = 6;

std::function<std::string()> ticker_lines() {
  return [step = std::uint64_t{0}]() mutable {
    ++step;
    return fmt::format("{0} {0} {0} {1:016x}", step, apps::ticker_checksum(step));
  };
}

std::function<std::string()> ring_lines() {
  return [lines = apps::RingLines(kRanks, kStepsPerLine)]() mutable { return lines.next(); };
}

}  // namespace

Program ticker(std::vector<std::string> options) {
  return {.name = "ticker", .options = std::move(options), .lines = ticker_lines};
}

/// Nothing of its VRAM is sent as such.
Program bare() {
  return {.name = "ticker",
          .under_library = false,
          .passes_by = {"source.copied", "source.chunk.corrupt", "destination.landing.corrupt"},
          .lines = ticker_lines};
}

Program ring() {
  return {
      .name = "ring",
      .options = {"--ranks", std::to_string(kRanks), "--per-line", std::to_string(kStepsPerLine)},
      .processes = 1 + kRanks,
      .proof = 5,
      .final_error = "error: ",
      .lines = ring_lines};
}

Program program_of(const std::string& name) {
  if (name == "ticker") return ticker();
  if (name == "bare") return bare();
  if (name == "ring") return ring();
  std::istringstream text(name);
  Program program;
  program.processes = 0;
  text >> program.name >> program.line_begins >> program.proof;
  for (std::string word; text >> word;) program.command.push_back(std::move(word));
  if (program.command.empty()) throw std::invalid_argument("no such program: " + name);
  return program;
}

}  // namespace gcr::fault::test
