// The speed and the cost of a transport: two processes, each in the named network namespace, if
// any, the one sending from a ring of slots like the mover's, the other receiving into a region.
// Prints one line of JSON.
//
// Only the time between the first write and the return of the flush counts. CPU times are those of
// the processes (getrusage), so they include the kernel's work for them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "migrate-agent/linux/hostmem/landing_region.h"
#include "src/base/units.h"
#include "tests/bench/copied_bytes.h"
#include "tests/support/command_line.h"
#include "tests/support/test_certificates.h"
#include "transport/rdma/rdma.h"
#include "transport/tcp/tcp.h"

namespace gcr::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr transport::RegionId kRegion = 1;
constexpr const char* kToken = "transport_bandwidth";

struct Options {
  std::string sender_namespace;    ///< a path like /run/netns/NAME; empty: this one
  std::string receiver_namespace;  ///< as sender_namespace
  std::string address = "127.0.0.1";
  unsigned lanes = 4;
  bool tls = false;
  bool rdma = false;
  bool unregistered = false;  ///< the ring is not added as a source
  std::uint64_t write_bytes = 2 * kMiB;
  std::uint64_t ring_bytes = 128 * kMiB;
  std::uint64_t region_bytes = kGiB;
  std::uint64_t window_bytes = 0;  ///< 0: the region has its own memory
  std::string pages = "hugetlb";
  bool unpopulated = false;
  bool copy = false;
  bool count_copies = false;
  double seconds = 2;
  double warmup_seconds = 0.3;
  std::uint64_t total_bytes = 0;  ///< 0: `seconds` decides
};

/// The resources that a process has used so far.
struct Usage {
  double user_s = 0;
  double system_s = 0;
  std::uint64_t copied_bytes = 0;  ///< in user mode, by the C library's functions

  Usage operator-(const Usage& before) const {
    return {user_s - before.user_s, system_s - before.system_s, copied_bytes - before.copied_bytes};
  }
};

Usage usage() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return {seconds(used.ru_utime), seconds(used.ru_stime), copied_bytes()};
}

/// What the receiver sends over the socketpair: the port first, then a Usage for each request.
class Link {
 public:
  explicit Link(UniqueFd fd) : fd_(std::move(fd)) {}

  template <class T>
  Status send_value(const T& value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (::send(fd_.get(), &value, sizeof value, MSG_NOSIGNAL) == sizeof value) return {};
    return Error(Code::kUnavailable, "the other process has ended");
  }
  template <class T>
  Result<T> receive_value() const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (::recv(fd_.get(), &value, sizeof value, 0) == sizeof value) return value;
    return Error(Code::kUnavailable, "the other process has ended");
  }

 private:
  UniqueFd fd_;
};

Status enter_namespace(const std::string& path) {
  if (path.empty()) return {};
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::setns(fd.get(), CLONE_NEWNET) != 0) {
    return Error::from_errno(errno, fmt::format("entering {}", path));
  }
  return {};
}

// ---- the receiver ----

/// A region to receive into: the landing region, or pages of 4 KiB.
struct Region {
  hostmem::LandingRegion landing;
  UniqueMapping small;
  std::span<std::byte> bytes;
};

Result<Region> make_region(const Options& options) {
  const std::uint64_t bytes =
      options.window_bytes != 0 ? options.window_bytes : options.region_bytes;
  Region region;
  if (options.pages == "4k") {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return Error::from_errno(errno, "mapping the region");
    region.small = UniqueMapping(at, bytes);
    region.bytes = region.small.bytes();
    (void)::madvise(at, bytes, MADV_NOHUGEPAGE);
    if (!options.unpopulated) (void)::madvise(at, bytes, MADV_POPULATE_WRITE);
    return region;
  }
  const auto policy = options.pages == "hugetlb" ? hostmem::HugepagePolicy::kRequire
                                                 : hostmem::HugepagePolicy::kNever;
  GCR_ASSIGN(region.landing, hostmem::LandingRegion::create(bytes, policy));
  region.bytes = region.landing.bytes();
  // its pages are freed; hugepages are reserved again, so that no other process takes them
  if (options.unpopulated) {
    void* const at = region.bytes.data();
    const std::size_t size = region.bytes.size();
    bool emptied = false;
    if (region.landing.huge()) {
      emptied = ::munmap(at, size) == 0 &&
                ::mmap(at, size, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_HUGETLB | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    } else {
      emptied = ::madvise(at, size, MADV_DONTNEED) == 0;
    }
    if (!emptied) return Error::from_errno(errno, "emptying the region");
  }
  return region;
}

/// A receiver that reads into another buffer first: every byte is copied once more.
Status copy_landed(std::span<const std::byte> landed) {
  thread_local std::vector<std::byte> elsewhere;
  elsewhere.resize(std::max(elsewhere.size(), landed.size()));
  std::memcpy(elsewhere.data(), landed.data(), landed.size());
  return {};
}

/// With its own memory, or through a window of that.
Status open_region(transport::Receiver& receiver, const Options& options,
                   std::span<std::byte> memory) {
  if (options.window_bytes == 0) return receiver.add_region(kRegion, memory);
  const auto take = [](transport::RegionId, std::uint64_t, const transport::Place&) -> Status {
    return {};
  };
  GCR_TRY(receiver.open_window({memory, take}));
  return receiver.add_windowed_region(kRegion, options.region_bytes);
}

struct Listener {
  UniqueFd socket;
  std::uint16_t port = 0;
};

Result<Listener> listen_at(const std::string& address) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  socklen_t length = sizeof at;
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* const generic = reinterpret_cast<sockaddr*>(&at);
  if (::inet_pton(AF_INET, address.c_str(), &at.sin_addr) != 1 ||
      ::bind(fd.get(), generic, length) != 0 || ::listen(fd.get(), 64) != 0 ||
      ::getsockname(fd.get(), generic, &length) != 0) {
    return Error::from_errno(errno, fmt::format("listening at {}", address));
  }
  return Listener{std::move(fd), ntohs(at.sin_port)};
}

/// Replies with the resources that this process has used, until the sender has ended.
void answer_usage(const Link& link) {
  while (link.receive_value<char>() && link.send_value(usage())) {
  }
}

Status receive_rdma(const Options& options, std::span<std::byte> region, const Link& link) {
  GCR_ASSIGN(const auto receiver, transport::listen_rdma({.addresses = {{.host = options.address}},
                                                          .token = kToken,
                                                          .max_lanes = options.lanes}));
  GCR_TRY(open_region(*receiver, options, region));
  GCR_TRY(link.send_value(receiver->addresses().front().port));
  answer_usage(link);
  return receiver->health();
}

Status receive(const Options& options, SSL_CTX* tls, const Link& link) {
  GCR_TRY(enter_namespace(options.receiver_namespace));
  GCR_ASSIGN(Region region, make_region(options));
  if (options.rdma) return receive_rdma(options, region.bytes, link);
  transport::TcpReceiverOptions how{.token = kToken, .max_lanes = options.lanes};
  if (options.tls) {
    how.tls = tls;
    how.verify_peer = [](SSL*) { return Status{}; };
  }
  if (options.copy) {
    how.on_landed = [&](transport::RegionId, std::uint64_t offset, std::uint64_t length) {
      return copy_landed(region.bytes.subspan(offset, length));
    };
  }
  const auto receiver = transport::receive_tcp(std::move(how));
  GCR_TRY(open_region(*receiver, options, region.bytes));
  GCR_ASSIGN(const Listener listener, listen_at(options.address));
  std::jthread acceptor([&] {
    for (;;) {
      UniqueFd socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket || !receiver->add_connection(std::move(socket))) return;
    }
  });
  GCR_TRY(link.send_value(listener.port));
  answer_usage(link);
  ::shutdown(listener.socket.get(), SHUT_RDWR);
  return receiver->health();
}

// ---- the sender ----

/// Memory filled with bytes that differ from slot to slot.
Result<UniqueMapping> make_ring(std::uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return Error::from_errno(errno, "mapping the ring");
  UniqueMapping ring(at, bytes);
  (void)::madvise(at, bytes, MADV_HUGEPAGE);
  for (std::uint64_t i = 0; i < bytes; i += sizeof i) {
    const std::uint64_t word = i * 0x9e3779b97f4a7c15;
    std::memcpy(ring.bytes().data() + i, &word, sizeof word);
  }
  return ring;
}

class Writers {
 public:
  Writers(transport::Channel& channel, const Options& options, std::span<const std::byte> ring)
      : channel_(channel), options_(options), ring_(ring) {}

  /// Writes for `seconds`, or `total_bytes` if that is not 0, with as many threads as are useful;
  /// flushes; returns the bytes written.
  Result<std::uint64_t> run(double seconds, std::uint64_t total_bytes) {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds));
    const std::uint64_t first = next_;
    std::vector<Status> results(channel_.useful_writers());
    {
      std::vector<std::jthread> threads;
      for (Status& result : results) {
        threads.emplace_back([&, first] {
          while (result && (total_bytes != 0 ? (next_ - first) * options_.write_bytes < total_bytes
                                             : Clock::now() < end)) {
            result = write(next_++);
          }
        });
      }
    }
    for (const Status& result : results) GCR_TRY(result);
    GCR_TRY(channel_.flush());
    return (next_ - first) * options_.write_bytes;
  }

 private:
  Status write(std::uint64_t number) {
    const std::uint64_t size = options_.write_bytes;
    const std::uint64_t slot = number % (ring_.size() / size);
    const std::uint64_t place = number % (options_.region_bytes / size);
    return channel_.write(kRegion, place * size, ring_.subspan(slot * size, size));
  }

  transport::Channel& channel_;
  const Options& options_;
  std::span<const std::byte> ring_;
  std::atomic<std::uint64_t> next_ = 0;
};

Result<Usage> receiver_usage(const Link& link) {
  GCR_TRY(link.send_value('?'));
  return link.receive_value<Usage>();
}

void print(const Options& options, double seconds, std::uint64_t bytes, const Usage& sender,
           const Usage& receiver) {
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  const auto copied = [&](const Usage& used) {
    if (!options.count_copies) return std::string("null");
    return fmt::format("{:.6f}",
                       static_cast<double>(used.copied_bytes) / static_cast<double>(bytes));
  };
  fmt::print(
      "{{\"tls\": {}, \"rdma\": {}, \"lanes\": {}, \"write_bytes\": {}, \"region_bytes\": {}, "
      "\"window_bytes\": {}, \"pages\": \"{}\", "
      "\"populated\": {}, \"copy\": {}, \"seconds\": {:.6f}, \"bytes\": {}, \"gb_per_s\": {:.6f}, "
      "\"sender_user_s_per_gb\": {:.6f}, \"sender_system_s_per_gb\": {:.6f}, "
      "\"receiver_user_s_per_gb\": {:.6f}, \"receiver_system_s_per_gb\": {:.6f}, "
      "\"sender_copied_per_byte\": {}, \"receiver_copied_per_byte\": {}}}\n",
      options.tls, options.rdma, options.lanes, options.write_bytes, options.region_bytes,
      options.window_bytes, options.pages, !options.unpopulated, options.copy, seconds, bytes,
      gigabytes / seconds, sender.user_s / gigabytes, sender.system_s / gigabytes,
      receiver.user_s / gigabytes, receiver.system_s / gigabytes, copied(sender), copied(receiver));
}

Result<std::unique_ptr<transport::Channel>> connect(const Options& options, SSL_CTX* tls,
                                                    std::uint16_t port) {
  if (options.rdma) {
    return transport::connect_rdma({{.host = options.address, .port = port}},
                                   {.lanes = options.lanes, .token = kToken});
  }
  transport::TcpOptions how{.lanes = options.lanes, .token = kToken};
  if (options.tls) {
    how.tls = tls;
    how.verify_peer = [](SSL*) { return Status{}; };
  }
  return transport::connect({{options.address, port}}, how);
}

Status send(const Options& options, SSL_CTX* tls, const Link& link) {
  GCR_TRY(enter_namespace(options.sender_namespace));
  GCR_ASSIGN(const UniqueMapping ring, make_ring(options.ring_bytes));
  GCR_ASSIGN(const std::uint16_t port, link.receive_value<std::uint16_t>());
  GCR_ASSIGN(const auto channel, connect(options, tls, port));
  if (!options.unregistered) GCR_TRY(channel->add_source(ring.bytes()));
  Writers writers(*channel, options, ring.bytes());
  // A region can be touched for the first time only once.
  if (options.total_bytes == 0) GCR_TRY(writers.run(options.warmup_seconds, 0));
  GCR_ASSIGN(const Usage receiver_before, receiver_usage(link));
  const Usage sender_before = usage();
  const auto start = Clock::now();
  GCR_ASSIGN(const std::uint64_t bytes, writers.run(options.seconds, options.total_bytes));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const Usage sender = usage() - sender_before;
  GCR_ASSIGN(const Usage receiver_after, receiver_usage(link));
  print(options, seconds, bytes, sender, receiver_after - receiver_before);
  return {};
}

// ---- both ----

int report_failure(const char* who, const Status& status) {
  if (status) return 0;
  fmt::print(stderr, "bench_transport: {}: {}\n", who, status.error().message());
  return 1;
}

/// The receiver is a child, which ends with this process.
int measure(const Options& options) {
  if (options.count_copies) start_counting_copies();
  const test::TestContexts& contexts = test::test_contexts();
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return 1;
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ours.reset();
    std::_Exit(report_failure("receiver",
                              receive(options, contexts.server.get(), Link(std::move(theirs)))));
  }
  theirs.reset();
  int result = 1;
  {
    const Link link(std::move(ours));
    result = report_failure("sender", send(options, contexts.client.get(), link));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return result != 0 || status != 0 ? 1 : 0;
}

void add_options(gcr::test::CommandLine& line, Options& options) {
  line.add("--sender-namespace", options.sender_namespace, "Path of a network namespace");
  line.add("--receiver-namespace", options.receiver_namespace, "Path of a network namespace");
  line.add("--address", options.address, "The receiver's IPv4 address");
  line.add("--lanes", options.lanes).within(1, 64);
  line.add_flag("--tls", options.tls);
  line.add_flag("--rdma", options.rdma, "At an address that has a device").excludes("--tls");
  line.add_flag("--unregistered", options.unregistered, "The sender's memory is not registered");
  line.add_size("--write", options.write_bytes, "Bytes per write");
  line.add_size("--ring", options.ring_bytes, "Bytes that are sent from");
  line.add_size("--region", options.region_bytes, "Bytes to land in");
  line.add_size("--window", options.window_bytes, "Land through a window of that size instead");
  line.add("--pages", options.pages, "Of the region; ordinary: large ones if they come")
      .one_of({"hugetlb", "ordinary", "4k"});
  line.add_flag("--unpopulated", options.unpopulated, "The region's pages are not there at first");
  line.add_flag("--copy", options.copy, "The receiver copies all that has landed")
      .excludes("--window");
  line.add_flag("--count-copies", options.count_copies, "Else copied_per_byte is null");
  line.add("--seconds", options.seconds).within(0.01, 3600.0);
  line.add("--warmup", options.warmup_seconds).within(0.0, 3600.0);
  line.add_size("--total", options.total_bytes, "Bytes to write, without warm-up");
}

int run(int argc, char** argv) {
  Options options;
  gcr::test::CommandLine line("How fast a transport is, and what it costs.");
  add_options(line, options);
  line.parse(argc, argv);
  if (options.write_bytes == 0 || options.write_bytes > options.ring_bytes ||
      options.write_bytes > options.region_bytes) {
    fmt::print(stderr, "bench_transport: a write must fit the ring and the region\n");
    return 2;
  }
  return measure(options);
}

}  // namespace
}  // namespace gcr::bench

int main(int argc, char** argv) { return gcr::bench::run(argc, argv); }
