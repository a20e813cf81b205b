// What tests of checkpoints share: a directory of them on two hosts, and restored jobs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {

/// The fields of a command's last line: "checkpointed name=… vram_bytes=…".
std::map<std::string, std::string> last_line(const CommandResult& result);

/// One of them; the largest number if it is missing.
std::uint64_t number(const std::map<std::string, std::string>& fields, const std::string& name);

/// Kills it and waits until it has ended.
void end(App& app);
/// The same of a restored job, which is no child of this process.
void end(pid_t pid);

class CheckpointTest : public testing::Test {
 protected:
  /// The directory of checkpoints, as that host sees it.
  virtual std::string store_at(Host) const { return hosts_.directory() + "/checkpoints"; }
  std::string store() const { return store_at(Host::kA); }

  /// Of a job on host A.
  CommandResult checkpoint(pid_t pid, const std::vector<std::string>& options = {}) const;
  CommandResult restore(Host host, const std::vector<std::string>& options = {}) const;

  /// An order in the background.
  BackgroundCommand begin(Host host, const std::vector<std::string>& words) const {
    return BackgroundCommand(hosts_.order_command(host, words));
  }

  /// `gcr-migrate QUESTION` for the directory, which needs no agent.
  CommandResult ask_store(const std::string& question,
                          const std::vector<std::string>& options = {}) const;

  /// Every checkpoint in the directory.
  void expect_good() const;

  /// Restores a counter on that host, asks it for `answer`, and ends it.
  void expect_counter(Host host, const std::vector<std::string>& options, int answer) const;

  /// Names without their folders, in order.
  std::vector<std::string> files() const;
  std::vector<std::string> checkpoints() const;

  TwoHosts hosts_{{"--fault-points", "true"}};
};

}  // namespace gcr::e2e
