// The driver's checkpoint API by hand, for scripts/compare-by-hand: reads "<step> <pid>" lines from
// standard input, where a step is lock, checkpoint, restore or unlock, and answers each with
// "<step> ok <milliseconds>" or "<step> failed: <why>". The driver is initialised once, before the
// first line is read ("ready" is printed then), so that its initialisation is not part of the
// compared time.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "migrate-agent/gpu/device/cuda/driver.h"
#include "tests/support/command_line.h"

namespace {

using gcr::Code;
using gcr::Error;
using gcr::Result;
using gcr::Status;
using gcr::Uuid;
using gcr::device::Control;
using gcr::device::Driver;
using gcr::device::GpuPair;

constexpr std::chrono::seconds kLockTimeout{60};

/// "FROM=TO", both UUIDs, with or without "GPU-".
Result<GpuPair> parse_pair(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos) return Error(Code::kInvalidArgument, "no '=' in " + text);
  const auto from = Uuid::parse(text.substr(0, equals));
  const auto to = Uuid::parse(text.substr(equals + 1));
  if (!from || !to) return Error(Code::kInvalidArgument, "not two UUIDs: " + text);
  return GpuPair{*from, *to};
}

Status do_step(const std::string& step, const Control& process, const std::vector<GpuPair>& pairs) {
  if (step == "lock") return process.lock(kLockTimeout);
  if (step == "checkpoint") return process.checkpoint();
  if (step == "restore") return process.restore(pairs);
  if (step == "unlock") return process.unlock();
  return Error(Code::kInvalidArgument, "no such step");
}

void serve_lines(const Driver& driver, const std::vector<GpuPair>& pairs) {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string step;
    pid_t pid = 0;
    words >> step >> pid;
    const auto start = std::chrono::steady_clock::now();
    const Status status = do_step(step, *driver.control(pid), pairs);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    if (status) {
      std::cout << step << " ok " << taken.count() << std::endl;
    } else {
      std::cout << step << " failed: " << status.error().message() << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  gcr::test::CommandLine line(
      "Locks, checkpoints, restores and unlocks the CUDA state of processes");
  std::vector<std::string> maps;
  line.add("--map", maps, "FROM=TO: where a GPU's contents go at restore; repeat for all GPUs");
  line.parse(argc, argv);

  std::vector<GpuPair> pairs;
  for (const std::string& map : maps) {
    auto pair = parse_pair(map);
    if (!pair) {
      std::cerr << "cuda-checkpoint-tool: " << pair.error().message() << '\n';
      return 2;
    }
    pairs.push_back(*pair);
  }
  auto driver = gcr::device::cuda::load();
  if (!driver) {
    std::cerr << "cuda-checkpoint-tool: " << driver.error().message() << '\n';
    return 1;
  }
  std::cout << "ready" << std::endl;
  serve_lines(**driver, pairs);
}
