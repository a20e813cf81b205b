// ring: a parent without CUDA and --ranks processes below it, each with a CUDA context on one of
// the GPUs. The ranks pass tokens round a ring, through memory that each shares with its left
// neighbour, by kernels that wait on the GPU for the output of the neighbour's kernel, as those of
// NCCL do. Each rank has in VRAM a sum over all its tokens.
//
// The parent sends the ranks their next step through pipes, reads their progress from pipes, shares
// a page with them, and writes one line for every --per-line steps: see ring.h. The content of each
// line follows from its number alone, so that a lost, repeated or changed token or message shows in
// it and in all later ones. A rank that finds a wrong value prints a line that begins with "error:"
// and ends; then all end, with status 1. SIGTERM ends it after the lines that the ranks work on.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "src/base/unique_fd.h"
#include "tests/apps/driver.h"
#include "tests/apps/pace.h"
#include "tests/apps/ring_rank.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

/// Above the numbers of the ranks' descriptors.
UniqueFd lifted(int file, std::string_view what) {
  const UniqueFd low(file);
  UniqueFd high(::fcntl(low.get(), F_DUPFD_CLOEXEC, static_cast<int>(kRingDescriptors)));
  if (!high) fail(what, std::strerror(errno));
  return high;
}

struct Ends {
  UniqueFd first, second;
};

Ends make_pipe() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("make a pipe", std::strerror(errno));
  return {lifted(ends[0], "keep a pipe"), lifted(ends[1], "keep a pipe")};
}

Ends make_socketpair() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    fail("make a pair of sockets", std::strerror(errno));
  }
  return {lifted(ends[0], "keep a socket"), lifted(ends[1], "keep a socket")};
}

/// A TCP socket that listens at the address, on a free port.
UniqueFd make_listener(const std::string& at, std::atomic<std::uint16_t>& port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  UniqueFd socket = lifted(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "make a socket");
  if (::inet_pton(AF_INET, at.c_str(), &address.sin_addr) != 1 ||
      ::bind(socket.get(), name, length) != 0 || ::listen(socket.get(), 1) != 0 ||
      ::getsockname(socket.get(), name, &length) != 0) {
    fail("listen at " + at, std::strerror(errno));
  }
  port = ntohs(address.sin_port);
  return socket;
}

void write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    fail("write a line", "standard output does not take it");
  }
}

struct Member {
  pid_t pid = -1;
  UniqueFd orders;
  UniqueFd reports;
};

class Parent {
 public:
  Parent(const RingOptions& options, char** arguments);

  int run();

 private:
  void start(unsigned rank, std::vector<char*> arguments, const UniqueFd& left,
             const UniqueFd& right);
  void order(std::uint64_t step);
  bool collect(std::uint64_t step);
  bool receive(std::size_t rank);
  std::string line(std::uint64_t step) const;
  bool ended_well(pid_t pid, int status);
  int end_all();
  int give_up();

  const RingOptions& options_;
  UniqueFd page_file_;
  RingPage* page_ = nullptr;
  std::vector<UniqueFd> listeners_;
  std::vector<Member> members_;
  std::vector<RingReport> reports_;
};

Parent::Parent(const RingOptions& options, char** arguments)
    : options_(options), members_(options.ranks), reports_(options.ranks) {
  page_file_ = lifted(::memfd_create("ring", MFD_CLOEXEC), "make a shared page");
  void* page = MAP_FAILED;
  if (::ftruncate(page_file_.get(), sizeof(RingPage)) == 0) {
    page =
        ::mmap(nullptr, sizeof(RingPage), PROT_READ | PROT_WRITE, MAP_SHARED, page_file_.get(), 0);
  }
  if (page == MAP_FAILED) fail("make a shared page", std::strerror(errno));
  page_ = static_cast<RingPage*>(page);
  std::vector<Ends> links;  // from each rank to its right
  for (unsigned rank = 0; rank < options.ranks; ++rank) {
    links.push_back(make_socketpair());
    listeners_.push_back(options.tcp ? make_listener(options.address, page_->ports[rank])
                                     : UniqueFd());
  }
  std::vector<char*> words;
  for (char** argument = arguments; *argument != nullptr; ++argument) words.push_back(*argument);
  for (unsigned rank = 0; rank < options.ranks; ++rank) {
    const unsigned left = (rank + options.ranks - 1) % options.ranks;
    start(rank, words, links[left].second, links[rank].first);
  }
  listeners_.clear();
}

void Parent::start(unsigned rank, std::vector<char*> arguments, const UniqueFd& left,
                   const UniqueFd& right) {
  Ends orders = make_pipe();
  Ends reports = make_pipe();
  std::string option = "--rank";
  std::string number = std::to_string(rank);
  arguments.insert(arguments.end(), {option.data(), number.data(), nullptr});
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  const std::pair<int, RingDescriptor> given[] = {
      {orders.first.get(), kRingOrders}, {reports.second.get(), kRingReports},
      {left.get(), kRingLeft},           {right.get(), kRingRight},
      {page_file_.get(), kRingPage},     {listeners_[rank].get(), kRingListener},
  };
  for (const auto& [file, as] : given) {
    if (file >= 0) ::posix_spawn_file_actions_adddup2(&actions, file, as);
  }
  const int error = ::posix_spawn(&members_[rank].pid, "/proc/self/exe", &actions, nullptr,
                                  arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail("start a rank", std::strerror(error));
  members_[rank].orders = std::move(orders.second);
  members_[rank].reports = std::move(reports.first);
}

void Parent::order(std::uint64_t step) {
  for (const Member& member : members_) {
    // An ended rank is noticed when its report is waited for.
    if (::write(member.orders.get(), &step, sizeof(step)) < 0 && errno != EPIPE) {
      fail("order a step", std::strerror(errno));
    }
  }
}

/// Reads the rank's report, which has arrived; false: the rank has ended.
bool Parent::receive(std::size_t rank) {
  ssize_t length = 0;
  do {
    length = ::read(members_[rank].reports.get(), &reports_[rank], sizeof(RingReport));
  } while (length < 0 && errno == EINTR);
  return length == sizeof(RingReport);
}

/// Waits until every rank has reported that step; false: one has ended.
bool Parent::collect(std::uint64_t step) {
  while (true) {
    std::vector<pollfd> waits;
    bool complete = true;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      const bool pending = reports_[rank].step < step;
      complete = complete && !pending;
      // A rank that ends is noticed even if it is not waited for.
      waits.push_back({members_[rank].reports.get(), pending ? short{POLLIN} : short{0}, 0});
    }
    if (complete) return true;
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;  // a signal
    for (std::size_t rank = 0; rank < waits.size(); ++rank) {
      if ((waits[rank].revents & POLLIN) != 0 ? !receive(rank) : waits[rank].revents != 0) {
        return false;
      }
    }
  }
}

std::string Parent::line(std::uint64_t step) const {
  RingDigest digest;
  std::uint64_t passed = 0;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    digest.add(reports_[rank].sum, reports_[rank].received);
    passed += page_->passed[rank][step / options_.per_line % (kRingAhead + 1)];
  }
  return ring_line(step, passed, digest.value());
}

int Parent::run() {
  Pace pace(options_.period_ms);
  std::uint64_t ordered = 0;
  std::uint64_t printed = 0;
  while (printed < ordered || !termination_requested()) {
    pace.begin_step();
    while (!termination_requested() && ordered < printed + kRingAhead * options_.per_line) {
      order(ordered += options_.per_line);
    }
    if (printed == ordered) break;
    if (!collect(printed + options_.per_line)) return give_up();
    printed += options_.per_line;
    write_line(line(printed));
    if (!termination_requested()) pace.end_step();
  }
  return end_all();
}

/// The rank with this process, whose status waitpid has returned; false: it failed, and a line
/// reports it.
bool Parent::ended_well(pid_t pid, int status) {
  const auto member = std::ranges::find(members_, pid, &Member::pid);
  if (member == members_.end()) return true;
  member->pid = -1;
  if (status == 0) return true;
  write_line("error: rank " + std::to_string(member - members_.begin()) + " ended " +
             (WIFSIGNALED(status) ? "by signal " + std::to_string(WTERMSIG(status))
                                  : "with status " + std::to_string(WEXITSTATUS(status))));
  return false;
}

int Parent::end_all() {
  for (Member& member : members_) member.orders.reset();
  bool good = true;
  while (std::ranges::any_of(members_, [](const Member& member) { return member.pid > 0; })) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, 0);
    if (pid > 0) good = ended_well(pid, status) && good;
  }
  return good ? 0 : 1;
}

/// After one has ended: the others wait for it, some on their GPUs.
int Parent::give_up() {
  int status = 0;
  pid_t pid = -1;
  while ((pid = ::waitpid(-1, &status, 0)) < 0 && errno == EINTR) {
  }
  if (ended_well(pid, status)) write_line("error: a rank ended too early");
  for (const Member& member : members_) {
    if (member.pid <= 0) continue;
    ::kill(member.pid, SIGKILL);
    while (::waitpid(member.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  return 1;
}

/// Returns the mistake in the options, or "".
std::string fault_of(const RingOptions& options) {
  return options.rank >= static_cast<int>(options.ranks) ? "--rank is the parent's to give" : "";
}

void describe(gcr::test::CommandLine& line, RingOptions& options) {
  line.add("--ranks", options.ranks, "processes in the ring").within(2, kRingMaxRanks);
  line.add("--gpus", options.gpus, "GPUs that they are spread over (0: all)");
  line.add("--per-line", options.per_line, "steps of every rank between two lines").positive();
  line.add("--period-ms", options.period_ms, "the pace of lines, if the ranks keep it")
      .within(0.0, 60000.0);
  line.add("--skew-ms", options.skew_ms, "rank R begins each line R times as late")
      .within(0.0, 1000.0);
  line.add("--words", options.words, "words of payload with a token").within(0, 1 << 20);
  line.add_size("--vram", options.vram_bytes, "more VRAM for each rank, examined at the end");
  line.add_size("--piece", options.piece_bytes, "size of its buffers (default 64M)").positive();
  line.add_flag("--host-memory", options.host_memory, "some ranks share memory of the host");
  line.add_flag("--legacy-ipc", options.legacy_ipc, "some ranks share VRAM by legacy IPC");
  line.add_flag("--graph", options.graph, "launch the steps of a line as a graph");
  line.add_flag("--tcp", options.tcp, "neighbours talk over TCP rather than Unix sockets");
  line.add("--address", options.address, "where they listen, with --tcp");
  line.add("--rank", options.rank, "be that rank: the parent gives it");
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  gcr::apps::RingOptions options;
  gcr::test::CommandLine line("Passes tokens round a ring of processes that share GPU memory");
  gcr::apps::describe(line, options);
  line.parse(argc, argv);
  const std::string fault = gcr::apps::fault_of(options);
  if (!fault.empty()) line.refuse(fault);
  if (options.rank >= 0) return gcr::apps::run_ring_rank(options);
  gcr::apps::catch_termination();
  ::signal(SIGPIPE, SIG_IGN);
  return gcr::apps::Parent(options, argv).run();
}
