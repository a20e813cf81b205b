#include "tests/e2e/two_hosts.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <ostream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "tests/support/wait_until.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;

/// Runs scripts/hosts for the programs of this build, or, if GCR_ROOT names one, of a bundle.
CommandResult hosts_script(const std::vector<std::string>& arguments) {
  const char* const bundle = std::getenv("GCR_ROOT");
  std::vector<std::string> command = {"env", "GCR_BUILD=" GCR_BINARY_DIR,
                                      GCR_SOURCE_DIR "/scripts/hosts"};
  if (bundle != nullptr) command = {std::string(bundle) + "/scripts/hosts"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run(command, kHangs);
}

constexpr char kDirectoryPrefix[] = "/tmp/gcr-e2e-hosts-";

const char* suffix(Host host) { return host == Host::kA ? "_A" : "_B"; }
const char* letter(Host host) { return host == Host::kA ? "a" : "b"; }

/// Hosts of killed tests: their folders carry the PID of the test.
void remove_leftovers() {
  for (const auto& entry : fs::directory_iterator("/tmp")) {
    const std::string path = entry.path();
    if (!path.starts_with(kDirectoryPrefix)) continue;
    const pid_t owner = std::atoi(path.c_str() + sizeof(kDirectoryPrefix) - 1);
    if (owner > 0 && ::kill(owner, 0) != 0) hosts_script({"down", path});
  }
}

/// Lines of the form NAME='value'.
std::map<std::string, std::string> parse_env(const std::string& path) {
  std::map<std::string, std::string> variables;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto equals = line.find("='");
    if (equals == std::string::npos) throw std::runtime_error("unexpected line in env: " + line);
    variables[line.substr(0, equals)] = line.substr(equals + 2, line.size() - equals - 3);
  }
  return variables;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return std::vector<std::string>(std::istream_iterator<std::string>(stream), {});
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos) pids.push_back(std::stoi(name));
  }
  return pids;
}

/// Field `index` (from 1) of /proc/PID/stat after the command's name, empty if it has ended.
std::string stat_field(pid_t pid, std::size_t index) {
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/stat");
  const auto close = text.rfind(')');
  if (close == std::string::npos) return "";
  const auto fields = words(text.substr(close + 1));
  return fields.size() > index - 3 ? fields[index - 3] : "";
}

std::string read_link(const std::string& path) {
  std::error_code error;
  return fs::read_symlink(path, error).string();
}

std::uint64_t used_bytes(const std::string& mount_point) {
  struct statfs space {};
  if (::statfs(mount_point.c_str(), &space) != 0) return 0;
  return (space.f_blocks - space.f_bfree) * static_cast<std::uint64_t>(space.f_bsize);
}

std::uint64_t count_entries(const std::string& directory) {
  std::error_code error;
  std::uint64_t count = 0;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    ++count;
  }
  return count;
}

/// Runs `work` on a thread that has entered the namespace.
template <class Work>
void in_network(const std::string& network_namespace, Work work) {
  int error = 0;
  std::thread([&] {
    UniqueFd fd(::open(network_namespace.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd || ::setns(fd.get(), CLONE_NEWNET) != 0) {
      error = errno;
      return;
    }
    work();
  }).join();
  if (error != 0) {
    throw std::system_error(error, std::generic_category(), "enter " + network_namespace);
  }
}

/// In the network namespace at that path.
std::vector<pid_t> processes_in(const std::string& network) {
  struct stat status {};
  ::stat(network.c_str(), &status);
  const std::string wanted = "net:[" + std::to_string(status.st_ino) + "]";
  std::vector<pid_t> found;
  for (const pid_t pid : all_processes()) {
    if (read_link("/proc/" + std::to_string(pid) + "/ns/net") == wanted) found.push_back(pid);
  }
  return found;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const HostUse& use) {
  return out << "{vram_bytes " << use.vram_bytes << ", runtime_bytes " << use.runtime_bytes
             << ", workers " << use.workers << ", processes " << use.processes << "}";
}

std::vector<std::string> App::lines() const {
  std::vector<std::string> lines;
  const std::string text = output();
  std::size_t start = 0;
  for (auto end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

bool App::wait_for_lines(std::size_t count, Milliseconds timeout) const {
  return wait_for_content(
      output_path_,
      [count](const std::string& text) {
        return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) >= count;
      },
      timeout);
}

TwoHosts::TwoHosts(const std::vector<std::string>& options) {
  {
    static std::mutex mutex;
    static int made = 0;
    const std::lock_guard lock(mutex);
    remove_leftovers();
    directory_ = kDirectoryPrefix + std::to_string(::getpid()) + "-" + std::to_string(made++);
  }
  std::vector<std::string> arguments = {"up", directory_};
  arguments.insert(arguments.end(), options.begin(), options.end());
  const CommandResult result = hosts_script(arguments);
  if (result.exit_code != 0) throw std::runtime_error("hosts up: " + result.err);
  variables_ = parse_env(directory_ + "/env");
}

/// A worker may crash after its report, when no migration shows it.
TwoHosts::~TwoHosts() {
  bool crashed = false;
  for (const Host host : {Host::kA, Host::kB}) {
    const std::string log = read_file(variable("LOG", host));
    crashed = crashed || log.find("was killed by signal 11 ") != std::string::npos;
  }
  const CommandResult result = hosts_script({"down", directory_});
  if (result.exit_code != 0) std::fprintf(stderr, "hosts down: %s\n", result.err.c_str());
  if (!crashed) return;
  std::fprintf(stderr, "a worker of an agent was killed by SIGSEGV\n");
  std::abort();
}

std::string TwoHosts::variable(const std::string& name) const { return variables_.at(name); }

std::string TwoHosts::variable(const std::string& name, Host host) const {
  return variables_.at(name + suffix(host));
}

std::string TwoHosts::program_path(const std::string& name) const {
  return variable("PREFIX") + "/bin/" + name;
}

std::vector<std::string> TwoHosts::on_host(Host host,
                                           const std::vector<std::string>& command) const {
  std::vector<std::string> all = {"nsenter", "--net=" + variable("NS", host), "env"};
  for (const std::string& word : words(variable("GPU_ENV", host))) all.push_back(word);
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

App TwoHosts::start_app(Host host, const std::vector<std::string>& command, bool under_preload) {
  const std::string path = directory_ + "/app-" + std::to_string(apps_started_++) + ".out";
  UniqueFd output(::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644));
  std::vector<std::string> all;
  if (under_preload) all = {variable("GCR_CLI"), "run", "--"};
  all.insert(all.end(), command.begin(), command.end());
  return {path,
          std::make_unique<Program>(on_host(host, all), Streams{-1, output.get(), output.get()})};
}

std::vector<std::string> TwoHosts::migrate_command(Host from, Host to, pid_t pid,
                                                   const std::vector<std::string>& options) const {
  std::vector<std::string> command = {variable("GCR_CLI")};
  for (const std::string& word : words(variable("GCR_TLS"))) command.push_back(word);
  command.insert(command.end(), {address(from), address(to), std::to_string(pid)});
  command.insert(command.end(), options.begin(), options.end());
  return on_host(Host::kA, command);
}

/// Again if an agent was too slow to answer: 10 s can be short in a virtual machine on a busy one.
CommandResult TwoHosts::run_patiently(const std::vector<std::string>& command, Milliseconds limit) {
  CommandResult result = run(command, limit);
  for (int left = 9; left > 0 && result.exit_code == kUnreachableExit; --left) {
    if (result.err.find("no answer within") == std::string::npos) break;
    result = run(command, limit);
  }
  return result;
}

MigrateOutcome TwoHosts::migrate(Host from, pid_t pid,
                                 const std::vector<std::string>& options) const {
  return parse_outcome(run_patiently(migrate_command(from, other(from), pid, options), kHangs));
}

std::vector<std::string> TwoHosts::order_command(Host agent,
                                                 const std::vector<std::string>& request) const {
  std::vector<std::string> command = {variable("GCR_CLI"), request.front(), address(agent)};
  command.insert(command.end(), request.begin() + 1, request.end());
  for (const std::string& word : words(variable("GCR_TLS"))) command.push_back(word);
  return on_host(Host::kA, command);
}

CommandResult TwoHosts::order(Host agent, const std::vector<std::string>& request) const {
  return run_patiently(order_command(agent, request), kPatience);
}

google::protobuf::Struct TwoHosts::ask(Host host, const std::string& question,
                                       const std::vector<std::string>& options) const {
  std::vector<std::string> command = {question, "--json"};
  command.insert(command.end(), options.begin(), options.end());
  const CommandResult result = order(host, command);
  google::protobuf::Struct answer;
  if (!google::protobuf::util::JsonStringToMessage(result.out, &answer).ok()) {
    throw std::runtime_error(question + ": " + result.out + result.err);
  }
  return answer;
}

MigrateReport TwoHosts::migrate_for_report(Host from, pid_t pid,
                                           const std::vector<std::string>& options) const {
  std::vector<std::string> command = migrate_command(from, other(from), pid);
  command.insert(command.end(), {"--json", "--quiet"});
  command.insert(command.end(), options.begin(), options.end());
  const CommandResult result = run_patiently(command, kHangs);
  MigrateReport outcome{result.exit_code, result.err, {}};
  google::protobuf::util::JsonParseOptions parsing;
  parsing.ignore_unknown_fields = true;  // schema, type and the like: docs/events.md
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(result.out, &outcome.report, parsing);
  if (!parsed.ok()) throw std::runtime_error("no report: " + result.out + result.err);
  return outcome;
}

MigrateOutcome TwoHosts::parse_outcome(const CommandResult& result) {
  MigrateOutcome outcome;
  outcome.exit_code = result.exit_code;
  outcome.out = result.out;
  outcome.err = result.err;
  static const std::regex line(
      "migrated pid=([0-9]+) vram_bytes=([0-9]+) downtime_ms=([0-9.]+) total_ms=([0-9.]+) "
      "verified=(yes|no) processes=([0-9]+)\n$");
  std::smatch match;
  if (std::regex_search(result.out, match, line)) {
    outcome.pid = std::stoi(match[1]);
    outcome.vram_bytes = std::stoull(match[2]);
    outcome.downtime_ms = std::stod(match[3]);
    outcome.total_ms = std::stod(match[4]);
    outcome.verified = match[5] == "yes";
    outcome.processes = std::stoi(match[6]);
  }
  return outcome;
}

std::string TwoHosts::network(Host host) const { return fs::path(variable("NS", host)).filename(); }

std::string TwoHosts::directory(Host host) const { return directory_ + "/" + letter(host); }

void TwoHosts::stop_agent(Host host) {
  const CommandResult result = hosts_script({"stop", directory_, letter(host)});
  if (result.exit_code != 0) throw std::runtime_error("hosts stop: " + result.err);
}

void TwoHosts::start_agent(Host host) {
  const CommandResult result = hosts_script({"start", directory_, letter(host)});
  if (result.exit_code != 0) throw std::runtime_error("hosts start: " + result.err);
}

pid_t TwoHosts::agent_pid(Host host) const {
  return std::stoi(read_file(directory(host) + "/agent.pid"));
}

std::vector<pid_t> TwoHosts::workers(Host host) const {
  const std::string daemon = std::to_string(agent_pid(host));
  const std::string program = read_link("/proc/" + daemon + "/exe");
  std::vector<pid_t> found;
  for (const pid_t pid : all_processes()) {
    if (stat_field(pid, 4) == daemon && stat_field(pid, 3) != "Z" &&
        read_link("/proc/" + std::to_string(pid) + "/exe") == program) {
      found.push_back(pid);
    }
  }
  return found;
}

std::vector<pid_t> TwoHosts::keepers(Host host) const {
  std::vector<pid_t> found;
  for (const pid_t pid : processes_in(variable("NS", host))) {
    if (read_file("/proc/" + std::to_string(pid) + "/comm") == "gcr-keeper\n") found.push_back(pid);
  }
  return found;
}

void TwoHosts::kill_keepers(Host host) const {
  for (const pid_t keeper : keepers(host)) {
    ::kill(keeper, SIGKILL);
    test::wait_until([keeper] {
      const std::string state = stat_field(keeper, 3);
      return state.empty() || state == "Z";
    });
  }
}

bool TwoHosts::wait_until_idle(Host host, Milliseconds timeout) const {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (auto running = workers(host); !running.empty(); running = workers(host)) {
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, running.front(), 0)));
    if (!pidfd) continue;
    const auto left =
        std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
    pollfd entry{pidfd.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) < 1) return false;
  }
  return true;
}

std::uint64_t TwoHosts::vram_used(Host host, std::size_t number) const {
  return used_bytes(words(variable("VRAM", host)).at(number));
}

std::uint64_t TwoHosts::descriptors(Host host) const {
  return count_entries("/proc/" + std::to_string(agent_pid(host)) + "/fd");
}

bool TwoHosts::wait_for_descriptors(Host host, std::uint64_t most) const {
  return test::wait_until([&] { return descriptors(host) <= most; });
}

HostUse TwoHosts::use(Host host) const {
  HostUse use;
  if (!wait_until_idle(host)) use.workers = workers(host).size();
  for (const std::string& mount_point : words(variable("VRAM", host))) {
    use.vram_bytes += used_bytes(mount_point);
  }
  use.runtime_bytes = used_bytes(variable("RUNTIME", host));
  const std::string agent = read_link("/proc/" + std::to_string(agent_pid(host)) + "/exe");
  for (const pid_t pid : processes_in(variable("NS", host))) {
    // Empty: it is ending.
    const std::string program = read_link("/proc/" + std::to_string(pid) + "/exe");
    if (!program.empty() && program != agent) ++use.processes;
  }
  return use;
}

HostUse TwoHosts::use_coming_to(Host host, const HostUse& wanted) const {
  HostUse found;
  test::wait_until([&] { return (found = use(host)) == wanted; });
  return found;
}

UdpClient::UdpClient(const std::string& network_namespace) {
  in_network(network_namespace,
             [this] { socket_.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)); });
  if (!socket_) throw std::system_error(errno, std::generic_category(), "make a socket");
}

std::optional<std::string> UdpClient::ask(const std::string& address, std::uint16_t port,
                                          Milliseconds timeout, const std::string& packet) const {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  ::inet_pton(AF_INET, address.c_str(), &to.sin_addr);
  if (::sendto(socket_.get(), packet.data(), packet.size(), 0,
               reinterpret_cast<const sockaddr*>(&to), sizeof(to)) < 0) {
    return std::nullopt;
  }
  pollfd entry{socket_.get(), POLLIN, 0};
  char answer[1500];
  if (::poll(&entry, 1, static_cast<int>(timeout.count())) != 1) return std::nullopt;
  const ssize_t length = ::recv(socket_.get(), answer, sizeof(answer), 0);
  if (length < 0) return std::nullopt;
  std::string text(answer, static_cast<std::size_t>(length));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::uint64_t received_bytes(const TwoHosts& hosts, Host host) {
  std::uint64_t bytes = 0;
  in_network(hosts.variable("NS", host), [&bytes] {
    const std::string text = read_file("/proc/thread-self/net/dev");
    const auto at = text.find("veth0:");
    if (at != std::string::npos) bytes = std::stoull(text.substr(at + 6));
  });
  return bytes;
}

}  // namespace gcr::e2e
