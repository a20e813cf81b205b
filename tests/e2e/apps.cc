#include "tests/e2e/apps.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "src/base/units.h"

namespace gcr::e2e {
namespace {

// They need not saturate a processor: they wait for a migration.
constexpr const char* kPeriodMs = "10";

App start(TwoHosts& hosts, Host host, const std::vector<std::string>& command) {
  App app = hosts.start_app(host, command);
  if (!app.wait_for_lines(1)) {
    throw std::runtime_error(command[0] + " prints nothing: " + app.output());
  }
  return app;
}

}  // namespace

std::vector<std::string> counter_command(const TwoHosts& hosts, std::uint64_t vram_bytes,
                                         std::uint16_t port) {
  return {hosts.program_path("counter"), "--port", std::to_string(port), "--vram",
          std::to_string(vram_bytes)};
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + " ";
  return text;
}

std::vector<std::string> local_command(const TwoHosts& hosts, Host host, const std::string& socket,
                                       const std::vector<std::string>& request) {
  // /run contains only the socket, for this command.
  std::vector<std::string> command{
      "unshare",
      "--mount",
      "/bin/sh",
      "-c",
      "mount -t tmpfs run /run && ln -s \"$0\" /run/gcr-migrate.sock && exec \"$@\"",
      socket,
      hosts.variable("GCR_CLI")};
  command.insert(command.end(), request.begin(), request.end());
  return hosts.on_host(host, command);
}

App start_counter(TwoHosts& hosts, Host host, std::uint64_t vram_bytes) {
  return start(hosts, host, counter_command(hosts, vram_bytes));
}

int ask_counter(const UdpClient& client, const TwoHosts& hosts, Host host) {
  const auto answer = client.ask(hosts.address(host), kCounterPort);
  if (!answer || answer->empty() || answer->find_first_not_of("0123456789") != std::string::npos) {
    ADD_FAILURE() << "the counter answers " << answer.value_or("nothing");
    return -1;
  }
  return std::stoi(*answer);
}

testing::AssertionResult counter_is_intact(const UdpClient& client, const TwoHosts& hosts,
                                           Host host) {
  const auto answer = client.ask(hosts.address(host), kCounterPort, Milliseconds(60'000), "verify");
  if (answer == "intact") return testing::AssertionSuccess();
  return testing::AssertionFailure() << "the counter answers " << answer.value_or("nothing");
}

App start_scribbler(TwoHosts& hosts, Host host, std::uint64_t vram_bytes,
                    const std::vector<std::string>& options) {
  std::vector<std::string> command = {hosts.program_path("scribbler"), "--vram",
                                      std::to_string(vram_bytes)};
  command.insert(command.end(), options.begin(), options.end());
  return start(hosts, host, command);
}

App start_sleeper(TwoHosts& hosts, Host host) {
  return start(hosts, host, {"/bin/sh", "-c", "echo running; exec sleep 1000"});
}

std::vector<std::string> stencil_command(const TwoHosts& hosts, std::uint64_t vram_bytes,
                                         int report) {
  return {hosts.program_path("stencil"),
          "--mib",
          std::to_string(vram_bytes / kMiB),
          "--slice-mib",
          "1",
          "--period-ms",
          kPeriodMs,
          "--report",
          std::to_string(report)};
}

std::vector<std::string> alloc_styles_command(const TwoHosts& hosts, int report) {
  return {hosts.program_path("alloc_styles"), "--period-ms", kPeriodMs, "--report",
          std::to_string(report)};
}

App start_stencil(TwoHosts& hosts, Host host, std::uint64_t vram_bytes, int report) {
  return start(hosts, host, stencil_command(hosts, vram_bytes, report));
}

App start_pool_stencil(TwoHosts& hosts, Host host, std::uint64_t vram_bytes, int report) {
  std::vector<std::string> command = stencil_command(hosts, vram_bytes, report);
  command.emplace_back("--pool");
  return start(hosts, host, command);
}

App start_small_buffers(TwoHosts& hosts, Host host, int report) {
  return start(hosts, host,
               {hosts.program_path("stencil"), "--mib", "2", "--small", "5000", "--small-kib", "16",
                "--period-ms", "1", "--report", std::to_string(report)});
}

App start_alloc_styles(TwoHosts& hosts, Host host, int report) {
  return start(hosts, host, alloc_styles_command(hosts, report));
}

App start_pinned(TwoHosts& hosts, Host host, std::uint64_t bytes, int report) {
  return start(hosts, host,
               {hosts.program_path("pinned"), "--mib", std::to_string(bytes / kMiB), "--period-ms",
                kPeriodMs, "--report", std::to_string(report)});
}

std::string gpu_of(const TwoHosts& hosts, Host host, int number) {
  std::istringstream mounts(hosts.variable("VRAM", host));
  std::string mount;
  for (int i = 0; i <= number; ++i) mounts >> mount;
  return "GPU-" + std::filesystem::path(mount).filename().string();
}

App start_managed(TwoHosts& hosts, Host host) {
  return start(hosts, host,
               {hosts.program_path("managed_memory"), std::to_string(kCounterPort + 1)});
}

std::unique_ptr<BackgroundCommand> start_agent_of_another_version(const TwoHosts& hosts,
                                                                  Host host) {
  const std::string tls = hosts.directory() + "/tls/";
  const std::string own = tls + (host == Host::kA ? "host-a" : "host-b");
  auto agent = std::make_unique<BackgroundCommand>(
      hosts.on_host(host, {"python3", (GCR_SOURCE_DIR "/tests/e2e/agent_of_another_version.py"),
                           hosts.address(host), tls + "ca.crt", own + ".crt", own + ".key"}));
  const auto listens = [](const std::string& text) {
    return text.find("listening") != std::string::npos;
  };
  if (!agent->wait_for_output(listens, kHangs)) {
    throw std::runtime_error("it does not listen: " + agent->err_so_far());
  }
  return agent;
}

testing::AssertionResult printed_what_prints(const App& app, const App& undisturbed) {
  const auto lines = app.lines();
  if (!undisturbed.wait_for_lines(lines.size())) {
    return testing::AssertionFailure()
           << "the undisturbed run prints only " << undisturbed.lines().size() << " lines of "
           << lines.size();
  }
  const auto expected = undisturbed.lines();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i] != expected[i]) {
      return testing::AssertionFailure()
             << "line " << i + 1 << " is\n  " << lines[i] << "\nand not\n  " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult migrated(const MigrateOutcome& outcome) {
  if (outcome.migrated()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "exit code " << outcome.exit_code << "\n"
                                     << outcome.out << outcome.err;
}

testing::AssertionResult migrated(const MigrateReport& outcome) {
  if (outcome.exit_code == 0 && outcome.report.migrated() && outcome.report.verified()) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "exit status " << outcome.exit_code << "\n"
                                     << outcome.report.message() << "\n"
                                     << outcome.err;
}

int moves_or(int few) {
  const char* asked = std::getenv("GCR_MOVES");
  return asked != nullptr ? std::stoi(asked) : few;
}

void move_to_and_fro(const TwoHosts& hosts, pid_t pid, int moves,
                     const std::function<void(Host now, const MigrateOutcome& outcome)>& check,
                     const std::vector<std::string>& options) {
  Host host = Host::kA;
  for (int move = 0; move < moves; ++move) {
    SCOPED_TRACE("move " + std::to_string(move));
    const MigrateOutcome outcome = hosts.migrate(host, pid, options);
    ASSERT_TRUE(migrated(outcome));
    pid = outcome.pid;
    host = other(host);
    ASSERT_NO_FATAL_FAILURE(check(host, outcome));
  }
}

UnifiedMemoryDevice::UnifiedMemoryDevice()
    : path_("/dev/nvidia-uvm-test-" + std::to_string(::getpid())) {
  std::ofstream(path_) << std::string(4096, '\0');
  EXPECT_EQ(std::filesystem::file_size(path_), 4096u);
}

UnifiedMemoryDevice::~UnifiedMemoryDevice() { std::filesystem::remove(path_); }

std::vector<std::string> UnifiedMemoryDevice::used_by(
    const std::vector<std::string>& command) const {
  std::vector<std::string> words{"env", "SOFTGPU_DEVICE_FILE=" + path_};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace gcr::e2e
