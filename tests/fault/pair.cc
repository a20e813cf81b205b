#include "tests/fault/pair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <ranges>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/fault/undisturbed.h"

namespace gcr::fault::test {
namespace {

using Clock = std::chrono::steady_clock;
using e2e::kHangs;
using e2e::other;

constexpr Milliseconds kOracleInterval{10};
constexpr Milliseconds kHostsInterval{50};
constexpr std::size_t kLogBytes = 6000;

constexpr int kMigratedExit = 0;
constexpr int kUnknownExit = 6;
constexpr int kUnconfirmedExit = 8;
constexpr int kEndedExit = 9;
constexpr int kKilledExit = 128 + SIGKILL;

std::vector<std::string> with_defaults(const std::vector<std::string>& options) {
  std::vector<std::string> all{"--fault-points",
                               "true",
                               "--vram",
                               "768M",
                               "--lanes",
                               "2",
                               "--peer-silence-ms",
                               std::to_string(kPeerSilence.count())};
  all.insert(all.end(), options.begin(), options.end());
  return all;
}

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// Waits until `done`, checking every few milliseconds; false if `timeout` passes first.
template <class Done>
bool wait_until(Milliseconds timeout, Done done) {
  const auto end = Clock::now() + timeout;
  while (!done()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(kOracleInterval);
  }
  return true;
}

/// The side of a point; one that both sides have is armed where the scenario strikes.
Side side_of(const std::string& point, const Scenario& scenario) {
  if (point.starts_with("source.")) return Side::kSource;
  if (point.starts_with("destination.")) return Side::kDestination;
  return scenario.side;
}

std::string faults_file(const TwoHosts& hosts, Host host) {
  return hosts.directory(host) + "/faults";
}

std::string hit_file(const TwoHosts& hosts, Host host) { return faults_file(hosts, host) + ".hit"; }

/// A command line that runs this with "$pid" of each process of the program in this network.
std::string for_each_process(const std::string& network, const std::string& program,
                             std::string_view does) {
  return fmt::format(
      "for pid in $(ip netns pids {}); do case $(readlink /proc/$pid/exe) in */{}) {};; esac; done",
      network, program, does);
}

std::string kill_one_command(const std::string& network, const std::string& program) {
  return "one=; " + for_each_process(network, program, "one=$pid") +
         "; [ -z \"$one\" ] || kill -KILL $one";
}

/// A command line that waits until a program that writes a line for each step has begun and ended
/// one.
std::string wait_for_a_step_command(const std::string& output) {
  return fmt::format(
      "seen=$(wc -l <{0}); until [ $(wc -l <{0}) -gt $((seen + 1)) ]; do sleep 0.01; done", output);
}

void write_at_once(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text << '\n';
  std::filesystem::rename(path + ".new", path);
}

void shell(const std::string& command) {
  const auto result = e2e::run({"sh", "-c", command}, kHangs);
  if (result.exit_code != 0) throw std::runtime_error(command + ": " + result.err);
}

/// The end of the part that a log has gained since it had `offset` bytes.
std::string gained(const std::string& path, std::size_t offset) {
  const std::string text = e2e::read_file(path);
  const std::size_t begin = std::max(std::min(offset, text.size()),
                                     text.size() > kLogBytes ? text.size() - kLogBytes : 0);
  return text.substr(begin);
}

}  // namespace

std::string wake_command(const std::string& network, const std::string& program,
                         Milliseconds lasts) {
  return fmt::format(
      "end=$(($(date +%s%3N) + {})); while {}; [ $(date +%s%3N) -lt $end ]; do sleep 0.01; done; "
      "true",
      lasts.count(), for_each_process(network, program, "kill -CONT $pid 2>/dev/null"));
}

/// The state of the current run.
struct Pair::Trial {
  const Scenario& scenario;
  Copy moving;  ///< where it was, before
  Clock::time_point begun = Clock::now();
  Clock::time_point righted{};
  std::uint64_t lines_when_righted = 0;
  bool struck = false;
  pid_t stopped = -1;
  std::map<Host, std::size_t> log_bytes{};
  std::unique_ptr<e2e::BackgroundCommand> command{};
  Holdings holdings{};
  Result result{};
};

Pair::Pair(Program program, const std::vector<std::string>& options)
    : hosts_(with_defaults(options)), program_(std::move(program)) {
  start(Host::kA);
  warm_up();
}

void Pair::start(Host host) {
  std::vector<std::string> command = program_.command;
  Program followed = program_;
  if (!command.empty()) {
    // It has to be ahead of the copy that it is compared with.
    followed.lines = [next = run_undisturbed(hosts_, program_)] { return next; };
  } else {
    command = {hosts_.program_path(program_.name)};
    command.insert(command.end(), program_.options.begin(), program_.options.end());
  }
  app_.emplace(hosts_.start_app(host, command, program_.under_library));
  oracle_.emplace(app_->output_path(), followed);
  const auto begun = [&] {
    return oracle_->read_new_lines() > 0 || !oracle_->complaint().empty() ||
           !app_->program().running();
  };
  if (!wait_until(kHangs, begun) || oracle_->lines() == 0) {
    throw std::runtime_error("the program does not begin: " + oracle_->complaint() +
                             app_->output());
  }
}

/// The baseline is that of idle hosts that have worked before.
void Pair::warm_up() {
  const auto begun = Clock::now();
  for (const Host from : {Host::kA, Host::kB}) {
    const auto outcome = hosts_.migrate(from, the_copy().pid, migrate_options());
    if (!outcome.migrated()) throw std::runtime_error("does not migrate: " + outcome.err);
  }
  hosts_.wait_until_idle(Host::kA);
  hosts_.wait_until_idle(Host::kB);
  baseline_.emplace(hosts_, program_.name);
  bound_ = kBound + std::chrono::duration_cast<Milliseconds>(Clock::now() - begun);
}

Copy Pair::the_copy() const {
  const auto found = copies();
  if (found.size() != 1) throw std::runtime_error(fmt::format("{} copies", found.size()));
  return found.front();
}

Host Pair::host_of(const Trial& trial, Side side) const {
  return side == Side::kSource ? trial.moving.host : other(trial.moving.host);
}

std::vector<std::string> Pair::migrate_options() const {
  if (program_.under_library) return {};
  return {"--allow-slow"};
}

/// The operator is at the source: a cut link is one between the agents.
std::vector<std::string> Pair::command(const Trial& trial) const {
  const Host from = trial.moving.host;
  std::vector<std::string> words{hosts_.variable("GCR_CLI")};
  std::istringstream options(hosts_.variable("GCR_TLS"));
  for (std::string word; options >> word;) words.push_back(word);
  words.insert(words.end(), {hosts_.address(from), hosts_.address(other(from)),
                             std::to_string(trial.moving.pid)});
  const auto more = migrate_options();
  words.insert(words.end(), more.begin(), more.end());
  return hosts_.on_host(from, words);
}

Result Pair::run(const Scenario& scenario) {
  if (copies().empty()) start(Host::kA);
  Trial trial{.scenario = scenario, .moving = the_copy()};
  for (const Host host : {Host::kA, Host::kB}) {
    trial.log_bytes[host] = e2e::read_file(hosts_.variable("LOG", host)).size();
  }
  disarm();
  if (!scenario.point.empty()) {
    arm(trial);
  } else if (scenario.harm == Harm::kRun) {
    shell(scenario.command);
  }
  trial.command = std::make_unique<e2e::BackgroundCommand>(command(trial));
  std::string& failure = trial.result.failure;
  failure = strike(trial);
  const std::string wrong = put_right(trial);
  if (failure.empty()) failure = wrong;
  if (failure.empty()) failure = settle(trial);
  if (failure.empty()) failure = judge(trial);
  if (!failure.empty()) failure += "\n" + logs_of(trial);
  trial.result.total_ms = milliseconds_since(trial.begun);
  return trial.result;
}

void Pair::arm(const Trial& trial) {
  const Scenario& scenario = trial.scenario;
  const Host host = host_of(trial, scenario.side);
  std::string action;
  if (scenario.then_point.empty()) {
    action = action_of(scenario.harm, scenario.command, host, trial.moving);
  } else {
    const Host then_host = host_of(trial, side_of(scenario.then_point, scenario));
    const std::string file = faults_file(hosts_, then_host);
    const std::string next = action_of(scenario.then, "", then_host, trial.moving);
    action = fmt::format("run echo '{0} {1}' >{2}.new && mv {2}.new {2}", scenario.then_point, next,
                         file);
    if (scenario.harm == Harm::kKillWorker) action += " && kill -KILL $PPID";
  }
  const std::string file = faults_file(hosts_, host);
  std::string line = scenario.point + " " + action;
  if (scenario.steps_between) {
    const std::string next = file + ".next";
    write_at_once(next, line);
    line = fmt::format("source.copied run {} && mv {} {}",
                       wait_for_a_step_command(app_->output_path()), next, file);
  }
  write_at_once(file, line);
}

void Pair::disarm() {
  for (const Host host : {Host::kA, Host::kB}) {
    std::filesystem::remove(faults_file(hosts_, host));
    std::filesystem::remove(hit_file(hosts_, host));
  }
}

/// The action of a fault point on `host`, in the syntax of migrate-agent/base/fault/fault.h.
/// `moving` is the copy at the source.
std::string Pair::action_of(Harm harm, const std::string& command, Host host,
                            const Copy& moving) const {
  const pid_t daemon = hosts_.agent_pid(host);
  const std::string network = hosts_.network(host);
  switch (harm) {
    case Harm::kError:
      return "error";
    case Harm::kCorrupt:
      return "corrupt";
    case Harm::kKillWorker:
      return "kill";
    case Harm::kStop:
      return "stop";
    case Harm::kKillDaemon:
      return fmt::format("run kill -KILL {}", daemon);
    case Harm::kKillBoth:
      return fmt::format("run kill -KILL {} $PPID", daemon);
    case Harm::kKillHost:
      return fmt::format("run ip netns pids {} | xargs kill -KILL", network);
    case Harm::kKillApp:
      return fmt::format("run kill -KILL {}", moving.pid);
    case Harm::kKillMember:
      return "run " + kill_one_command(hosts_.network(moving.host), program_.name);
    case Harm::kKillCopy:
      return "run " + kill_one_command(hosts_.network(other(moving.host)), program_.name);
    case Harm::kEndApp:
      return fmt::format("run kill -TERM {}", moving.pid);
    case Harm::kWake:
      return "run " + wake_command(network, program_.name, kPeerSilence / 6);
    case Harm::kRun:
      return "run " + command;
    case Harm::kCut:
      return fmt::format("run ip -n {} link set veth0 down", hosts_.network(Host::kA));
    case Harm::kArm:
    case Harm::kNone:
      break;
  }
  throw std::logic_error("no action");
}

std::string Pair::strike(Trial& trial) {
  const Scenario& scenario = trial.scenario;
  if (scenario.harm == Harm::kNone) return "";
  if (scenario.point.empty() && scenario.harm == Harm::kRun) return "";
  if (scenario.point.empty()) {
    trial.command->program().wait(scenario.delay);
    return strike_now(trial);
  }
  // The first point arms the second, whose file may overwrite the first one's at once.
  return wait_for_hit(trial, scenario.then_point.empty() ? scenario.point : scenario.then_point);
}

std::string Pair::wait_for_hit(Trial& trial, const std::string& point) {
  const std::string path = hit_file(hosts_, host_of(trial, side_of(point, trial.scenario)));
  std::string text;
  const auto hit = [&] {
    oracle_->read_new_lines();
    text = e2e::read_file(path);
    return text.starts_with(point + " ");
  };
  wait_until(kHangs, [&] { return hit() || !trial.command->program().running(); });
  // The destination ends, and recovery begins, after the operator has been told.
  if (!wait_until(6 * kBound, hit)) return "the point " + point + " was not reached";
  trial.struck = true;
  trial.stopped = std::stoi(text.substr(text.rfind("hit ") + 4));
  return "";
}

std::string Pair::strike_now(Trial& trial) {
  const Host host = host_of(trial, trial.scenario.side);
  trial.struck = true;
  switch (trial.scenario.harm) {
    case Harm::kKillWorker:
      signal_workers(host, SIGKILL);
      break;
    case Harm::kKillBoth:
      signal_workers(host, SIGKILL);
      ::kill(hosts_.agent_pid(host), SIGKILL);
      break;
    case Harm::kKillDaemon:
      ::kill(hosts_.agent_pid(host), SIGKILL);
      break;
    case Harm::kStop:
      signal_workers(host, SIGSTOP);
      break;
    case Harm::kCut:
      cut_link();
      break;
    case Harm::kKillApp:
      end_copies(host, SIGKILL);
      break;
    case Harm::kEndApp:
      end_copies(host, SIGTERM);
      break;
    case Harm::kKillHost:
      // Processes forked meanwhile die too: a dead host runs nothing.
      e2e::run(
          {"sh", "-c",
           fmt::format("while pids=$(ip netns pids {}) && [ -n \"$pids\" ]; do kill -KILL $pids; "
                       "done",
                       hosts_.network(host))},
          kHangs);
      break;
    default:
      throw std::logic_error("strikes at a point only");
  }
  return "";
}

/// To every worker of the host's daemon.
void Pair::signal_workers(Host host, int number) const {
  for (const pid_t pid : hosts_.workers(host)) ::kill(pid, number);
}

void Pair::end_copies(Host host, int number) const {
  for (const Copy& copy : copies()) {
    if (copy.host == host) ::kill(copy.pid, number);
  }
}

/// ip(8) in the host's network.
e2e::CommandResult Pair::ip(Host host, std::vector<std::string> words) const {
  words.insert(words.begin(), {"ip", "-n", hosts_.network(host)});
  return e2e::run(words, kHangs);
}

void Pair::cut_link() const { ip(Host::kA, {"link", "set", "veth0", "down"}); }

/// On a busy machine a link drops packets for a while after it was set up, and a neighbour that
/// could not be resolved meanwhile counts as unreachable for longer.
void Pair::mend_link() {
  ip(Host::kA, {"link", "set", "veth0", "up"});
  for (const Host host : {Host::kA, Host::kB}) {
    const bool is_up = wait_until(kHangs, [&] {
      oracle_->read_new_lines();
      return ip(host, {"-br", "link", "show", "veth0"}).out.find(" UP ") != std::string::npos;
    });
    if (!is_up) throw std::runtime_error("the link does not come up again");
    ip(host, {"neighbour", "flush", "dev", "veth0"});
  }
}

std::string Pair::put_right(Trial& trial) {
  const Scenario& scenario = trial.scenario;
  const Host host = host_of(trial, scenario.side);
  if (trial.struck) {
    if (scenario.lasts.count() > 0) {
      const auto end = Clock::now() + scenario.lasts;
      wait_until(scenario.lasts, [&] {
        oracle_->read_new_lines();
        return Clock::now() >= end;
      });
    }
    if (scenario.harm == Harm::kCut) mend_link();
    if (scenario.harm == Harm::kStop) {
      if (trial.stopped > 0) ::kill(trial.stopped, SIGCONT);
      signal_workers(host, SIGCONT);
    }
  }
  if (scenario.harm == Harm::kKillDaemon || scenario.harm == Harm::kKillBoth ||
      scenario.harm == Harm::kKillHost) {
    if (trial.struck) hosts_.start_agent(host);
  }
  if (!scenario.undo.empty()) {
    wait_until(kBound, [&] {
      oracle_->read_new_lines();
      return !trial.command->program().running();
    });
    shell(scenario.undo);
  }
  trial.righted = Clock::now();
  trial.lines_when_righted = oracle_->read_new_lines();
  return oracle_->complaint();
}

/// Whether one copy runs on, or none may, and both hosts are clean.
bool Pair::settled(Trial& trial) {
  if (trial.command->program().running()) return false;
  const bool proven = oracle_->lines() >= trial.lines_when_righted + program_.proof;
  if (!proven && !trial.scenario.may_end_it()) return false;
  trial.holdings = baseline_->measure(hosts_);
  trial.result.ended = trial.holdings.copies.empty() && trial.scenario.may_end_it();
  const bool one =
      trial.holdings.copies.size() == 1 && proven &&
      (program_.processes == 0 || trial.holdings.copies.front().processes == program_.processes);
  return (one || trial.result.ended) && trial.holdings.leftovers.empty();
}

std::string Pair::settle(Trial& trial) {
  auto next_look = Clock::now();
  const bool well = wait_until(bound_, [&] {
    oracle_->read_new_lines();
    if (!oracle_->complaint().empty()) return true;
    if (Clock::now() < next_look) return false;
    const bool done = settled(trial);
    next_look = Clock::now() + kHostsInterval;
    return done;
  });
  trial.result.recovery_ms = milliseconds_since(trial.righted);
  if (!oracle_->complaint().empty()) return oracle_->complaint();
  if (!oracle_->final_error().empty() && !trial.scenario.may_end_it())
    return oracle_->final_error();
  if (well) return "";
  trial.holdings = baseline_->measure(hosts_);
  return fmt::format(
      "after {} ms: {} lines since things were put right, gcr-migrate {}, copies of {} processes\n"
      "{}",
      bound_.count(), oracle_->lines() - trial.lines_when_righted,
      trial.command->program().running() ? "still runs" : "has ended",
      fmt::join(trial.holdings.copies | std::views::transform(&Copy::processes), ", "),
      fmt::join(trial.holdings.leftovers, "\n"));
}

/// A process killed at a point of the source has ended by itself before it was moved; a pending
/// signal may arrive at the destination with it.
bool Pair::tells_of_the_end(const Trial& trial, const e2e::MigrateOutcome& outcome) {
  const Scenario& scenario = trial.scenario;
  if (!trial.struck || scenario.point.empty() || scenario.harm == Harm::kKillHost) return true;
  // The other processes of the job may run on for a moment.
  if (scenario.harm == Harm::kKillMember) return outcome.exit_code != kMigratedExit;
  if (scenario.harm == Harm::kEndApp && outcome.exit_code == kMigratedExit) return true;
  return outcome.exit_code == kEndedExit &&
         outcome.err.find("ended by itself") != std::string::npos;
}

/// The exit status must be correct, and the surviving copy the right one.
std::string Pair::judge(Trial& trial) {
  const auto outcome = TwoHosts::parse_outcome(trial.command->finish(Milliseconds(0)));
  trial.result.exit_code = outcome.exit_code;
  if (trial.result.ended && !tells_of_the_end(trial, outcome)) {
    return fmt::format("the process has ended and gcr-migrate ended with {}:\n{}{}",
                       outcome.exit_code, outcome.out, outcome.err);
  }
  if (trial.result.ended) return "";
  const bool there = trial.holdings.copies.front().host != trial.moving.host;
  trial.result.migrated = there;
  trial.result.downtime_ms = outcome.downtime_ms;
  const int code = outcome.exit_code;
  const bool host_died = trial.scenario.harm == Harm::kKillHost && code == kKilledExit;
  const bool open = code == kUnknownExit || (code == kUnconfirmedExit && there);
  if (!open && !host_died && (code == kMigratedExit) != there) {
    return fmt::format("gcr-migrate ended with {} and the process runs at the {}:\n{}{}", code,
                       there ? "destination" : "source", outcome.out, outcome.err);
  }
  const auto survivor = trial.scenario.survivor;
  if (survivor && (*survivor == Side::kDestination) != there) {
    return fmt::format("the process runs at the {}", there ? "destination" : "source");
  }
  return "";
}

std::string Pair::logs_of(const Trial& trial) const {
  std::string text = "gcr-migrate: " + trial.command->out_so_far() + trial.command->err_so_far();
  for (const auto& [host, offset] : trial.log_bytes) {
    text +=
        fmt::format("---- the {}'s log\n{}", host == trial.moving.host ? "source" : "destination",
                    gained(hosts_.variable("LOG", host), offset));
  }
  return text;
}

}  // namespace gcr::fault::test
