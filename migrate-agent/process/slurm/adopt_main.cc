// gcr-slurm-adopt: speaks to the extern step of a Slurm job on this host, by Slurm's own
// library, so that neither the agent nor a worker ever loads that. Started by the agent; adopter.h
// has its arguments.
//
// It tells Slurm's library the node and its spool directory, and so needs neither slurm.conf nor
// MUNGE: the step knows root by the socket (SO_PEERCRED).
#include <dlfcn.h>
#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/process/slurm/adopter.h"
#include "src/base/unique_fd.h"

namespace gcr::slurm {
namespace {

using adopter::Exit;

/// Of slurm/slurm.h: no component of a heterogeneous job, and the extern step.
constexpr std::uint32_t kNoComponent = 0xfffffffe;
constexpr std::uint32_t kExternStep = 0xfffffffc;

/// The library's API versions: the first that is known to have these functions, and the first whose
/// slurm_step_id_t begins with a further id.
constexpr long kSlurm2205 = 38;
constexpr long kSlurm2411 = 42;

/// slurm_step_id_t. Before Slurm 24.11 it begins at `job`.
struct StepId {
  std::uint64_t unique = 0;
  std::uint32_t job = 0;
  std::uint32_t component = kNoComponent;
  std::uint32_t step = kExternStep;
};

struct Library {
  long (*version)() = nullptr;
  int (*connect)(const char* spool, const char* node, void* step_id,
                 std::uint16_t* protocol) = nullptr;
  int (*add)(int fd, std::uint16_t protocol, pid_t pid) = nullptr;
  uid_t (*owner)(int fd, std::uint16_t protocol) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

template <class... Words>
Exit fail(Exit exit, fmt::format_string<Words...> format, Words&&... words) {
  fmt::print(stderr, format, std::forward<Words>(words)...);
  std::fputc('\n', stderr);
  return exit;
}

template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

struct Order {
  const char* library;
  const char* spool;
  const char* node;
  std::uint32_t job;
  std::optional<uid_t> owner{};  ///< none: the question who it is
  std::vector<pid_t> processes{};
};

std::optional<Order> order_of(std::span<char* const> words) {
  constexpr std::size_t kJob = 4;
  if (words.size() <= kJob || words.size() == kJob + 2) return std::nullopt;
  const auto job = parse<std::uint32_t>(words[kJob]);
  if (!job || *job == 0 || *job >= kExternStep) return std::nullopt;
  Order order{words[1], words[2], words[3], *job};
  if (words.size() == kJob + 1) return order;
  order.owner = parse<uid_t>(words[kJob + 1]);
  if (!order.owner) return std::nullopt;
  for (const char* word : words.subspan(kJob + 2)) {
    const auto pid = parse<pid_t>(word);
    if (!pid || *pid <= 1) return std::nullopt;
    order.processes.push_back(*pid);
  }
  return order;
}

/// Whether a process listens at the step's socket. Slurm's library does not keep errno.
bool has_step(const Order& order) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path =
      fmt::format("{}/{}_{}.{}", order.spool, order.node, order.job, kExternStep);
  if (path.size() >= sizeof(address.sun_path)) return true;
  path.copy(address.sun_path, path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    return true;
  }
  return errno != ENOENT && errno != ECONNREFUSED;
}

Exit add_all(const Library& slurm, int fd, std::uint16_t protocol, const Order& order) {
  for (const pid_t pid : order.processes) {
    const int error = slurm.add(fd, protocol, pid);
    if (error == 0 || (::kill(pid, 0) != 0 && errno == ESRCH)) continue;
    return fail(Exit::kFailed, "the extern step of job {} does not take process {}", order.job,
                pid);
  }
  return Exit::kDone;
}

Exit carry_out(const Library& slurm, const Order& order) {
  StepId id;
  id.job = order.job;
  const bool old = slurm.version() >> 16 < kSlurm2411;
  std::uint16_t protocol = 0;
  const UniqueFd step(
      slurm.connect(order.spool, order.node, old ? static_cast<void*>(&id.job) : &id, &protocol));
  if (!step) {
    if (has_step(order)) {
      return fail(Exit::kFailed, "the extern step of job {} does not answer", order.job);
    }
    return fail(Exit::kNoStep, "job {} has no extern step on node {}", order.job, order.node);
  }
  const uid_t owner = slurm.owner(step.get(), protocol);
  if (owner == static_cast<uid_t>(-1)) {
    return fail(Exit::kFailed, "the extern step of job {} does not say whose it is", order.job);
  }
  if (!order.owner) {
    fmt::print("{}\n", owner);
    return Exit::kDone;
  }
  if (owner != *order.owner) {
    return fail(Exit::kNoStep, "job {} is of user {}, not of user {}", order.job, owner,
                *order.owner);
  }
  return add_all(slurm, step.get(), protocol, order);
}

Exit run(std::span<char* const> words) {
  const auto order = order_of(words);
  if (!order) {
    return fail(Exit::kUsage,
                "gcr-slurm-adopt is started by migrate-agent: LIBRARY SPOOL NODE JOB "
                "[UID PID...]");
  }
  void* const library = ::dlopen(order->library, RTLD_NOW | RTLD_LOCAL);
  Library slurm;
  if (library == nullptr || !find(library, "slurm_api_version", slurm.version) ||
      !find(library, "stepd_connect", slurm.connect) ||
      !find(library, "stepd_add_extern_pid", slurm.add) ||
      !find(library, "stepd_get_uid", slurm.owner)) {
    return fail(Exit::kNoLibrary, "cannot use Slurm's library: {}", ::dlerror());
  }
  if (slurm.version() >> 16 < kSlurm2205) {
    return fail(Exit::kNoLibrary, "{} is older than Slurm 22.05", order->library);
  }
  return carry_out(slurm, *order);
}

}  // namespace
}  // namespace gcr::slurm

int main(int argc, char** argv) {
  return static_cast<int>(gcr::slurm::run({argv, static_cast<std::size_t>(argc)}));
}
