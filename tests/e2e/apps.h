// The sample programs of tests/apps, as the end-to-end tests start and read them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {

inline constexpr std::uint16_t kCounterPort = 9000;
inline constexpr int kCounterFirst = 101;  ///< its first answer

/// The command that starts the counter under the preload library, with `vram_bytes` of additional
/// VRAM.
std::vector<std::string> counter_command(const TwoHosts& hosts, std::uint64_t vram_bytes,
                                         std::uint16_t port = kCounterPort);

/// The command as one line for a shell; no word has a blank.
std::string joined(const std::vector<std::string>& words);

/// The `gcr-migrate` command for a user of that host, where "local" stands for the agent's
/// `socket`.
std::vector<std::string> local_command(const TwoHosts& hosts, Host host, const std::string& socket,
                                       const std::vector<std::string>& request);

/// Starts a counter and waits until it listens; it has answered nothing yet. Throws if it ends.
App start_counter(TwoHosts& hosts, Host host, std::uint64_t vram_bytes);

/// The counter's next number, requested on its host; -1 and a test failure if it does not answer
/// with one.
int ask_counter(const UdpClient& client, const TwoHosts& hosts, Host host);

/// Whether the counter finds every byte of its additional VRAM unchanged.
testing::AssertionResult counter_is_intact(const UdpClient& client, const TwoHosts& hosts,
                                           Host host);

/// Starts a scribbler (tests/apps) with these further options.
App start_scribbler(TwoHosts& hosts, Host host, std::uint64_t vram_bytes,
                    const std::vector<std::string>& options);

/// A program that does not use CUDA.
App start_sleeper(TwoHosts& hosts, Host host);

/// These print a line every `report` steps, until they are stopped.
std::vector<std::string> stencil_command(const TwoHosts& hosts, std::uint64_t vram_bytes,
                                         int report);
std::vector<std::string> alloc_styles_command(const TwoHosts& hosts, int report);
App start_stencil(TwoHosts& hosts, Host host, std::uint64_t vram_bytes, int report);
/// The stencil in the stream-ordered pool.
App start_pool_stencil(TwoHosts& hosts, Host host, std::uint64_t vram_bytes, int report);
/// The stencil over 5,000 buffers of up to 16 KiB.
App start_small_buffers(TwoHosts& hosts, Host host, int report);
App start_alloc_styles(TwoHosts& hosts, Host host, int report);
/// Page-locked memory that the CPU and the GPU write to.
App start_pinned(TwoHosts& hosts, Host host, std::uint64_t bytes, int report);

/// A software GPU as options name it, counted from 0.
std::string gpu_of(const TwoHosts& hosts, Host host, int number);

/// A program that keeps a number in managed memory and answers as the counter does.
App start_managed(TwoHosts& hosts, Host host);

/// Starts a stand-in for an agent, with that agent's certificate, that speaks a future protocol
/// version, and waits until it listens. Throws if it ends.
std::unique_ptr<BackgroundCommand> start_agent_of_another_version(const TwoHosts& hosts, Host host);

/// Success if every line that `app` printed equals that of `undisturbed`, which keeps running.
testing::AssertionResult printed_what_prints(const App& app, const App& undisturbed);

/// Success if gcr-migrate reported that the process migrated and everything was verified.
testing::AssertionResult migrated(const MigrateOutcome& outcome);
testing::AssertionResult migrated(const MigrateReport& outcome);

/// How often a job moves in a test for rare faults: GCR_MOVES in the environment, or `few`.
int moves_or(int few);

/// Moves a job from host A to host B, back to A, and so on, `moves` times in all. After each move
/// `check` gets the host where the job is then. The first fatal test failure ends it.
void move_to_and_fro(const TwoHosts& hosts, pid_t pid, int moves,
                     const std::function<void(Host now, const MigrateOutcome& outcome)>& check,
                     const std::vector<std::string>& options = {});

/// A file with a name like those that every process with a CUDA context, or with NVML, has open.
class UnifiedMemoryDevice {
 public:
  UnifiedMemoryDevice();
  ~UnifiedMemoryDevice();
  UnifiedMemoryDevice(const UnifiedMemoryDevice&) = delete;
  UnifiedMemoryDevice& operator=(const UnifiedMemoryDevice&) = delete;

  std::vector<std::string> used_by(const std::vector<std::string>& command) const;

 private:
  const std::string path_;
};

}  // namespace gcr::e2e
