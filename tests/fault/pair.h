// Two hosts and a program that is migrated between them repeatedly, each time with one harm; the
// oracle watches all the time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/command.h"
#include "tests/e2e/two_hosts.h"
#include "tests/fault/holdings.h"
#include "tests/fault/oracle.h"
#include "tests/fault/program.h"
#include "tests/fault/scenario.h"

namespace gcr::fault::test {

/// The peer timeout in the agents' configuration.
inline constexpr Milliseconds kPeerSilence{3000};

/// Within this time, and that of the first two moves, after the harm was removed one copy runs on
/// and both hosts are clean.
inline constexpr Milliseconds kBound{20'000};

/// A command line that sends SIGCONT to the processes of the program in this network, at least once
/// and every few milliseconds for so long.
std::string wake_command(const std::string& network, const std::string& program,
                         Milliseconds lasts);

class Pair {
 public:
  /// Makes the hosts, with further options of `scripts/hosts up`, starts the program, and migrates
  /// it there and back. Throws std::runtime_error if that fails.
  explicit Pair(Program program = ticker(), const std::vector<std::string>& options = {});

  /// One migration of the program from where it is now. After a failure the pair is in an unknown
  /// state, and can only be destroyed.
  Result run(const Scenario& scenario);

  e2e::TwoHosts& hosts() { return hosts_; }

  /// Where the program runs: the source of the next run.
  Host source() const { return the_copy().host; }

 private:
  struct Trial;

  void start(Host host);
  void warm_up();
  std::vector<Copy> copies() const { return test::copies(hosts_, program_.name); }
  Copy the_copy() const;
  std::string action_of(Harm harm, const std::string& command, Host host, const Copy& moving) const;
  Host host_of(const Trial& trial, Side side) const;
  std::vector<std::string> migrate_options() const;
  std::vector<std::string> command(const Trial& trial) const;

  // Each returns its complaint, or "".
  std::string strike(Trial& trial);
  std::string strike_now(Trial& trial);
  std::string wait_for_hit(Trial& trial, const std::string& point);
  std::string put_right(Trial& trial);
  std::string settle(Trial& trial);
  std::string judge(Trial& trial);
  static bool tells_of_the_end(const Trial& trial, const e2e::MigrateOutcome& outcome);

  void arm(const Trial& trial);
  void disarm();
  void signal_workers(Host host, int number) const;
  e2e::CommandResult ip(Host host, std::vector<std::string> words) const;
  void cut_link() const;
  void mend_link();
  void end_copies(Host host, int number) const;
  bool settled(Trial& trial);
  std::string logs_of(const Trial& trial) const;

  e2e::TwoHosts hosts_;
  Program program_;
  std::optional<e2e::App> app_;
  std::optional<Oracle> oracle_;
  std::optional<Baseline> baseline_;
  Milliseconds bound_{kBound};
};

}  // namespace gcr::fault::test
