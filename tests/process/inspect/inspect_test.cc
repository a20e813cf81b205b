// What inspect() reports of real processes: a test for every blocker, and for harmless objects.
#include "migrate-agent/process/inspect/inspect.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stop_token>
#include <thread>

#include "migrate-agent/linux/cgroups/limits.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/process/inspect/surroundings.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::SizeIs;
using namespace std::string_literals;

constexpr int kReadyFd = 3;
/// The parent of all kernel threads. A PID namespace shows none of them.
constexpr pid_t kKernelThreads = 2;
constexpr unsigned long kIsKernelThread = 0x0020'0000;  // PF_KTHREAD, include/linux/sched.h

bool is_kernel_thread(pid_t pid) {
  const auto stat = procfs::read_stat(pid);
  return stat && (stat->flags & kIsKernelThread) != 0;
}

class Inspecting : public testing::Test {
 protected:
  Inspecting() {
    std::string path = "/dev/shm/gcr-process-test-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) directory_ = path;
  }
  ~Inspecting() override {
    end();
    fs::remove_all(directory_);
  }

  /// Ends the program that start() has started, if there is one.
  void end() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }

  fs::path make_file(const std::string& name, std::size_t bytes = 4096) {
    std::ofstream(directory_ / name) << "x";
    fs::resize_file(directory_ / name, bytes);
    return directory_ / name;
  }

  /// Starts the program with `arguments` and waits until it has executed them. `before_exec` runs
  /// in the child, after its standard streams were set to /dev/null.
  void start(
      const std::vector<std::string>& arguments, const std::function<void()>& before_exec = [] {},
      const std::string& program = GCR_HELD_PROGRAM) {
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const UniqueFd reading(ready[0]);
    UniqueFd writing(::fcntl(ready[1], F_DUPFD_CLOEXEC, 100));
    ::close(ready[1]);
    std::vector<const char*> argv{program.c_str()};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setsid();
      const int nothing = ::open("/dev/null", O_RDWR);
      for (int fd = 0; fd < 3; ++fd) ::dup2(nothing, fd);
      before_exec();
      ::dup2(writing.get(), kReadyFd);
      ::close_range(kReadyFd + 1, ~0u, 0);
      ::execv(argv[0], const_cast<char* const*>(argv.data()));
      ::_exit(127);
    }
    writing.reset();
    char byte = 0;
    ASSERT_EQ(::read(reading.get(), &byte, 1), 0);  // end of file: it is ready, or dead
    ASSERT_EQ(::waitpid(pid_, nullptr, WNOHANG), 0) << "the program has ended";
  }

  Inspection inspect_child() {
    auto inspection = inspect(pid_, Together({pid_}));
    EXPECT_TRUE(inspection) << inspection.error().message();
    return inspection ? *inspection : Inspection{};
  }

  static std::vector<std::string> ids(const Inspection& inspection) {
    std::vector<std::string> ids;
    for (const proto::Finding& finding : inspection.findings.list()) ids.push_back(finding.id());
    return ids;
  }

  static std::vector<std::string> paths(
      const google::protobuf::RepeatedPtrField<proto::FileFact>& files) {
    std::vector<std::string> paths;
    for (const proto::FileFact& file : files) paths.push_back(file.path());
    return paths;
  }

  fs::path directory_;
  pid_t pid_ = -1;
};

TEST_F(Inspecting, PlainProcessHasFactsAndNoFindings) {
  start({"pipe", "pair", "listen"});
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), IsEmpty());
  EXPECT_THAT(found.facts.command(), HasSubstr("held_program pipe pair listen"));
  EXPECT_EQ(found.facts.threads(), 1u);
  EXPECT_GT(found.facts.resident_bytes(), 0u);
  EXPECT_EQ(found.facts.pid_in_namespace(), pid_);
  EXPECT_FALSE(found.facts.under_preload());
  EXPECT_THAT(paths(found.facts.files()), Contains(GCR_HELD_PROGRAM));
  EXPECT_THAT(paths(found.facts.files()), Contains(HasSubstr("libc.so")));
  findings::Findings compared(findings::Side::kDestination);
  compare_files(found.facts.files(), found.facts.credentials(), compared);
  EXPECT_THAT(compared.list(), IsEmpty());
}

TEST_F(Inspecting, PreloadLibraryIsRecognisedByName) {
  start({"map", make_file("libgcr-preload.so").string()});
  EXPECT_TRUE(inspect_child().facts.under_preload());
}

TEST_F(Inspecting, OpenFilesAreListedAndWritableOnesWithoutSize) {
  const fs::path reading = make_file("reading", 100);
  const fs::path writing = make_file("writing", 200);
  start({"open", reading.string(), "write", writing.string()}, [this] {
    if (::chdir(directory_.c_str()) != 0) ::_exit(1);
  });
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), IsEmpty());
  EXPECT_THAT(paths(found.facts.files()), IsSupersetOf({reading.string(), writing.string(),
                                                        directory_.string(), "/"s, "/dev/null"s}));
  for (const proto::FileFact& file : found.facts.files()) {
    if (file.path() == reading) {
      EXPECT_EQ(file.size_bytes(), 100u);
      EXPECT_EQ(file.access(), static_cast<unsigned>(R_OK));
    } else if (file.path() == writing) {
      EXPECT_FALSE(file.has_size_bytes());
      EXPECT_EQ(file.access(), static_cast<unsigned>(W_OK));
    }
  }
}

TEST_F(Inspecting, AbsentProcessIsNotFound) {
  start({});
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  EXPECT_EQ(inspect(pid_, Together({pid_})).error().code(), Code::kNotFound);
  EXPECT_FALSE(procfs::read_stat(pid_));
  EXPECT_EQ(pid_in_namespace(pid_).error().code(), Code::kNotFound);
  EXPECT_EQ(inspect(-1, Together({})).error().code(), Code::kNotFound);
  EXPECT_EQ(inspect(0, Together({})).error().code(), Code::kNotFound);
  pid_ = -1;
}

TEST_F(Inspecting, ZombieIsNotFound) {
  start({});
  ::kill(pid_, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(inspect(pid_, Together({pid_})).error().code(), Code::kNotFound);
}

TEST_F(Inspecting, StartTimeDistinguishesReusedPids) {
  start({});
  const auto theirs = procfs::read_stat(pid_);
  ASSERT_TRUE(theirs);
  EXPECT_EQ(theirs->start_time, procfs::read_stat(pid_)->start_time);
  EXPECT_GE(theirs->start_time, procfs::read_stat("self")->start_time);
}

TEST_F(Inspecting, KernelThreadsInitAndTheAgentAreRefused) {
  std::vector<pid_t> pids = {1, ::getpid(), ::getppid()};
  if (is_kernel_thread(kKernelThreads)) pids.push_back(kKernelThreads);
  for (const pid_t pid : pids) {
    const auto found = inspect(pid, Together({pid}));
    ASSERT_TRUE(found) << pid << ": " << found.error().message();
    EXPECT_THAT(ids(*found), Contains("not-ours")) << pid;
  }
}

TEST_F(Inspecting, SharingWithinAJobDoesNotBlock) {
  start({"memfd", "child"});
  const auto tree = procfs::tree(pid_);
  ASSERT_EQ(tree.size(), 2u);
  const Together together({tree.begin(), tree.end()});
  for (const pid_t pid : tree) {
    const auto found = inspect(pid, together);
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_THAT(ids(*found), IsEmpty());
  }
  ::kill(tree.back(), SIGKILL);
}

TEST_F(Inspecting, OtherNamespacesBlockAndAreNamed) {
  start({}, [] {
    if (::unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) ::_exit(1);
  });
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("namespaces"));
  EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("net, uts"));
}

TEST_F(Inspecting, FilesOutsideTheMountNamespaceBlock) {
  start({}, [] {
    if (::unshare(CLONE_NEWNS) != 0) ::_exit(1);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; ++fd) ::dup2(nothing, fd);
  });
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
  end();
  start({}, [] {
    if (::unshare(CLONE_NEWNS) != 0) ::_exit(1);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (const int fd : {1, 2}) ::dup2(nothing, fd);
  });
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("foreign-mount"));
  EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("standard input is /dev/null"));
}

/// Attempts of a process to mislead the agent that examines it.
class HostileProcess : public Inspecting {
 protected:
  /// Starts a program in a mount namespace of its own, after `mounting`.
  void start_apart(const std::function<bool()>& mounting) {
    start({}, [&] {
      if (::unshare(CLONE_NEWNS) != 0 ||
          ::mount(nullptr, "/", nullptr, MS_PRIVATE | MS_REC, nullptr) != 0 || !mounting()) {
        ::_exit(1);
      }
      const int nothing = ::open("/dev/null", O_RDWR);
      for (int fd = 0; fd < 3; ++fd) ::dup2(nothing, fd);
    });
  }

  /// The findings about removed files.
  std::vector<std::string> unreadable() {
    std::vector<std::string> found;
    const Inspection inspection = inspect_child();
    for (const proto::Finding& finding : inspection.findings.list()) {
      if (finding.id() == "deleted-file-access") found.push_back(finding.found());
    }
    return found;
  }

  void expect_refused(const std::string& words) {
    const Inspection found = inspect_child();
    ASSERT_THAT(ids(found), ElementsAre("mount-namespace"));
    EXPECT_THAT(found.findings.list()[0].found(), HasSubstr(words));
    end();
  }
};

TEST_F(HostileProcess, FileMountedOverAMappedFileIsNotOpened) {
  const fs::path file = make_file("mapped");
  const fs::path fifo = directory_ / "fifo";
  const fs::path device = directory_ / "device";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ASSERT_EQ(::mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)), 0);
  for (const fs::path& covering : {fifo, device}) {
    start({"map", file, "cover", file, covering});
    const UniqueFd opened(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    ASSERT_GE(::inotify_add_watch(opened.get(), covering.c_str(), IN_OPEN), 0);
    const Inspection found = inspect_child();
    const auto fact = std::ranges::find(found.facts.files(), file.string(), &proto::FileFact::path);
    ASSERT_NE(fact, found.facts.files().end());
    EXPECT_TRUE(S_ISREG(fact->mode())) << "the file itself, not what covers it";
    char event[4096];
    EXPECT_LT(::read(opened.get(), event, sizeof(event)), 0) << covering << " was opened";
    end();
  }
}

TEST_F(HostileProcess, FakeProcInItsMountNamespaceBlocks) {
  start_apart([] { return ::mount("none", "/proc", "tmpfs", 0, nullptr) == 0; });
  expect_refused("/proc is not a procfs");
  start_apart([] { return ::mount("/proc/1", "/proc", nullptr, MS_BIND, nullptr) == 0; });
  expect_refused("/proc is not a procfs");
  start_apart([] {
    const std::string own = "/proc/" + std::to_string(::getpid());
    return ::mount("/proc/1", own.c_str(), nullptr, MS_BIND, nullptr) == 0;
  });
  expect_refused("something is mounted over /proc/");
  start_apart([] {
    return ::mount("/proc/sys", "/proc/sys", nullptr, MS_BIND, nullptr) == 0 &&
           ::mount("none", "/proc/sys/kernel", "tmpfs", 0, nullptr) == 0;
  });
  expect_refused("something is mounted over /proc/sys/kernel");
}

TEST_F(HostileProcess, ReadOnlyProcDoesNotBlock) {
  start_apart([] {
    return ::mount("/proc/sys", "/proc/sys", nullptr, MS_BIND, nullptr) == 0 &&
           ::mount(nullptr, "/proc/sys", nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0 &&
           ::mount("/dev/null", "/proc/kmsg", nullptr, MS_BIND, nullptr) == 0;
  });
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
}

TEST_F(HostileProcess, ItsOwnProcFilesDoNotBlock) {
  for (const char* file :
       {"mem", "maps", "smaps", "environ", "auxv", "pagemap", "status", "task"}) {
    start({"open", fs::path("/proc/self") / file});
    EXPECT_THAT(ids(inspect_child()), IsEmpty()) << file;
    end();
  }
  start({"open", "/proc/cpuinfo", "open", "/proc/sys/kernel/pid_max"});
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
}

/// Concurrent programs share libraries with it, and the kernel counts them.
TEST_F(HostileProcess, ChangingProcFilesDoNotBlock) {
  const std::jthread others([](const std::stop_token& end) {
    while (!end.stop_requested()) EXPECT_EQ(std::system("/bin/true"), 0);
  });
  for (const char* file : {"smaps", "smaps_rollup", "numa_maps"}) {
    if (!fs::exists(fs::path("/proc/self") / file)) continue;  // not every kernel has the last
    start({"open", fs::path("/proc/self") / file});
    for (int i = 0; i < 50; ++i) ASSERT_THAT(ids(inspect_child()), IsEmpty()) << file;
    end();
  }
}

/// A process that shares the descriptor would read another process, or a more privileged program.
TEST_F(HostileProcess, ProcFilesOfOtherProcessesBlock) {
  const fs::path another = "/proc/" + std::to_string(::getpid());
  for (const fs::path& file :
       {another / "mem", another / "maps", another / "fd", another, fs::path("/proc/1/status")}) {
    start({"open", file});
    const Inspection found = inspect_child();
    ASSERT_THAT(ids(found), ElementsAre("proc-file")) << file;
    EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("of another process"));
    end();
  }
}

TEST_F(HostileProcess, ProcFilesOpenedBeforeAnExecveBlock) {
  for (const char* file : {"mem", "maps", "smaps", "environ", "auxv", "pagemap"}) {
    start({}, [file] {
      ::dup2(::open((fs::path("/proc/self") / file).c_str(), O_RDONLY), STDIN_FILENO);
    });
    const Inspection found = inspect_child();
    ASSERT_THAT(ids(found), ElementsAre("proc-file")) << file;
    EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("before an execve"));
    end();
  }
}

TEST_F(HostileProcess, FilesOfAnotherProcfsBlock) {
  start_apart([this] { return ::mount("proc", directory_.c_str(), "proc", 0, nullptr) == 0; });
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
  end();
  start({}, [this] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_PRIVATE | MS_REC, nullptr) != 0 ||
        ::mount("proc", directory_.c_str(), "proc", 0, nullptr) != 0) {
      ::_exit(1);
    }
    const int nothing = ::open("/dev/null", O_RDWR);
    for (int fd = 1; fd < 3; ++fd) ::dup2(nothing, fd);
    ::dup2(::open((directory_ / "self" / "status").c_str(), O_RDONLY), STDIN_FILENO);
  });
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("proc-file"));
  EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("not the one at /proc"));
}

TEST_F(HostileProcess, ForeignUserNamespaceOfItsMountsBlocks) {
  start({}, [] {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(1);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; ++fd) ::dup2(nothing, fd);
  });
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), Contains("mount-namespace"));
  EXPECT_THAT(ids(found), Contains("namespaces"));
}

TEST_F(Inspecting, GpuDriverFilesDoNotBlock) {
  std::string store = "/dev/nvidia-test-XXXXXX";
  ASSERT_NE(::mkdtemp(store.data()), nullptr);
  const fs::path file = fs::path(store) / "vram";
  std::ofstream(file) << std::string(4096, 'v');
  start({"share", file.string(), "open", file.string(), "link", file.string(),
         (fs::path(store) / "other").string(), "delete", file.string()});
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
  fs::remove_all(store);
}

TEST_F(Inspecting, UnexplainedControlDescriptorsAreCounted) {
  const auto made = [&](const char* name) {
    std::string path = (directory_ / name).string();
    std::ofstream(path) << std::string(4096, 'c');
    return path;
  };
  const std::string device = made("control");
  start({"open", device});
  EXPECT_EQ(unexplained_descriptors(pid_, device), 0u) << "CUDA's own";
  end();
  start({"open", device, "open", device, "open", device});
  EXPECT_EQ(unexplained_descriptors(pid_, device), 2u);
  end();
  start({"share", made("libnvidia-ml.so.1"), "open", device, "open", device, "open", device});
  EXPECT_EQ(unexplained_descriptors(pid_, device), 1u) << "one of them is NVML's";
}

TEST_F(Inspecting, TerminalBlocks) {
  const UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0);
  const std::string name = ::ptsname(master.get());
  start({}, [&name] { ::dup2(::open(name.c_str(), O_RDWR), STDIN_FILENO); });
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("terminal"));
  EXPECT_THAT(found.findings.list()[0].found(),
              HasSubstr("standard input is the terminal " + name));
}

TEST_F(Inspecting, PipeToAnOutsiderBlocksAndNamesIt) {
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  const UniqueFd reading(pipes[0]);
  const UniqueFd writing(pipes[1]);
  start({}, [&] { ::dup2(writing.get(), STDOUT_FILENO); });
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("outside-pipe"));
  EXPECT_THAT(found.findings.list()[0].found(),
              HasSubstr("standard output is a pipe to process " + std::to_string(::getpid())));
}

TEST_F(Inspecting, SocketToAnOutsiderBlocks) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  start({}, [&] { ::dup2(theirs.get(), STDERR_FILENO); });
  theirs.reset();
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("outside-socket"));
  EXPECT_THAT(found.findings.list()[0].found(), HasSubstr(std::to_string(::getpid())));
}

TEST_F(Inspecting, SocketWithinTheJobIsFineThoughTheAgentHasACopy) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd one(pair[0]);
  const UniqueFd agents(pair[1]);
  start({}, [&] {
    ::dup2(one.get(), STDOUT_FILENO);
    ::dup2(agents.get(), STDERR_FILENO);
  });
  one.reset();
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
}

TEST_F(Inspecting, UnacceptedTcpConnectionBlocks) {
  start({"connect"});
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("tcp-established", "tcp-established"));
  EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("wait there to be accepted: 1"));
  EXPECT_THAT(found.findings.list()[1].found(), HasSubstr("not accepted yet"));
}

TEST_F(Inspecting, TcpConnectionWithinTheJobIsListed) {
  start({"accept"});
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), IsEmpty());
  ASSERT_EQ(found.facts.sockets_size(), 3);
  EXPECT_EQ(found.facts.sockets(0).remote_address(), "");
  const proto::BoundSocket& one = found.facts.sockets(1);
  const proto::BoundSocket& other = found.facts.sockets(2);
  EXPECT_EQ(one.address(), "127.0.0.1");
  EXPECT_EQ(one.remote_address(), "127.0.0.1");
  EXPECT_EQ(one.port(), other.remote_port());
  EXPECT_EQ(one.remote_port(), other.port());
}

/// In scripts/guest: see tests/vm.
TEST_F(Inspecting, TcpConnectionWithTlsInTheKernelBlocks) {
  start({"tls"});
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("socket-kind"));
  EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("with tls in the kernel"));
}

TEST_F(Inspecting, TcpConnectionToAnOutsiderBlocksUnlessReset) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd inside(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), generic, length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), generic, &length), 0);
  ASSERT_EQ(::connect(inside.get(), generic, length), 0);
  const UniqueFd outside(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(outside);
  start({}, [&] { ::dup2(inside.get(), STDOUT_FILENO); });
  inside.reset();
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("tcp-established"));
  const std::string said = found.findings.list()[0].found();
  EXPECT_THAT(said, HasSubstr("standard output is a TCP connection from 127.0.0.1:"));
  EXPECT_THAT(said, HasSubstr(" to 127.0.0.1:" + std::to_string(ntohs(address.sin_port))));
  EXPECT_THAT(said, HasSubstr("in process " + std::to_string(::getpid())));
  const auto closing = inspect(pid_, Together({pid_}), OutsideTcp::kClose);
  ASSERT_TRUE(closing);
  EXPECT_THAT(ids(*closing), ElementsAre("tcp-reset"));
  EXPECT_FALSE(closing->findings.has_blocker());
}

TEST_F(Inspecting, IoUringBlocks) {
  start({"io_uring"});
  EXPECT_THAT(ids(inspect_child()), Contains("io-uring"));
}

TEST_F(Inspecting, UnknownDeviceBlocksAndMemoryDevicesDoNot) {
  start({"open", "/dev/kmsg", "open", "/dev/zero", "open", "/dev/urandom"});
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("device"));
  EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("/dev/kmsg"));
}

TEST_F(Inspecting, InfiniBandDeviceHasItsOwnRemedy) {
  start({"open", "/dev/infiniband/uverbs0"}, [] {
    constexpr unsigned kMessages = 11;  // as /dev/kmsg
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/dev", "tmpfs", 0, nullptr) != 0 ||
        ::mkdir("/dev/infiniband", 0755) != 0 ||
        ::mknod("/dev/infiniband/uverbs0", S_IFCHR | 0600, makedev(1, kMessages)) != 0) {
      ::_exit(1);
    }
  });
  const Inspection inspection = inspect_child();
  const auto& found = inspection.findings.list();
  const auto device = std::ranges::find(found, "device"s, &proto::Finding::id);
  ASSERT_NE(device, found.end());
  EXPECT_THAT(device->remedy(), HasSubstr("NCCL_IB_DISABLE=1"));
}

TEST_F(Inspecting, SystemVMemoryBlocksOnlyInTheHostsNamespace) {
  start({"sysv"});
  EXPECT_THAT(ids(inspect_child()), ElementsAre("system-v"));
  end();
  start({"sysv"}, [] {
    if (::unshare(CLONE_NEWIPC) != 0) ::_exit(1);
  });
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
}

TEST_F(Inspecting, IpcNamespaceSharedWithAnOutsiderBlocks) {
  start({"memfd", "child"}, [] {
    if (::unshare(CLONE_NEWIPC) != 0) ::_exit(1);
  });
  const auto tree = procfs::tree(pid_);
  ASSERT_EQ(tree.size(), 2u);
  const auto alone = inspect(tree[1], Together({tree[1]}));
  ASSERT_TRUE(alone);
  ASSERT_THAT(ids(*alone), Contains("namespaces"));
  EXPECT_THAT(findings::reason_of(alone->findings.list()),
              HasSubstr("its IPC namespace is also that of process " + std::to_string(tree[0])));
  auto together = inspect(pid_, Together({tree.begin(), tree.end()}));
  ASSERT_TRUE(together);
  EXPECT_THAT(ids(*together), IsEmpty());
  ::kill(tree[1], SIGKILL);
}

TEST_F(Inspecting, OnlyLargeDeletedFilesBlock) {
  const fs::path small = make_file("small");
  const fs::path sparse = make_file("sparse", kDeletedFileLimitBytes + 1);
  start({"write", small.string(), "delete", small.string(), "write", sparse.string(), "delete",
         sparse.string()});
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
  end();
  const fs::path large = directory_ / "large";
  start({"fill", large.string(), "write", large.string(), "delete", large.string()});
  EXPECT_THAT(ids(inspect_child()), ElementsAre("deleted-file", "deleted-file"))
      << "held and mapped";
}

TEST_F(HostileProcess, RemovedWriteOnlyFileBlocks) {
  constexpr uid_t kUnprivileged = 65'534;
  const auto start_with = [&](mode_t mode, int flags) {
    const std::string file = make_file("service.log");
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    start({}, [&] {
      ::dup2(::open(file.c_str(), flags), STDOUT_FILENO);  // as a service passes it on
      if (::setgid(kUnprivileged) != 0 || ::setuid(kUnprivileged) != 0) ::_exit(1);
    });
    fs::remove(file);
  };
  start_with(0600, O_WRONLY | O_APPEND);
  const std::string log = directory_.native() + "/service.log (deleted)";
  EXPECT_THAT(unreadable(), ElementsAre("descriptor 1, " + log +
                                        ", is a removed file that the process may not read"));
  end();
  start_with(0600, O_PATH);
  EXPECT_THAT(unreadable(), SizeIs(1)) << "held, and not open";
  end();
  start_with(0600, O_RDWR);
  EXPECT_THAT(unreadable(), IsEmpty()) << "it can read it by its descriptor";
  end();
  start_with(0644, O_WRONLY);
  EXPECT_THAT(unreadable(), IsEmpty()) << "it could open it for reading";
}

TEST_F(HostileProcess, RemovedUnreadableProgramBlocks) {
  const std::string program = std::string(GCR_HELD_PROGRAM) + "-removed";
  const auto drop_privileges = [] {
    if (::setgid(65'534) != 0 || ::setuid(65'534) != 0) ::_exit(1);
  };
  const auto start_with = [&](mode_t mode) {
    fs::copy_file(GCR_HELD_PROGRAM, program, fs::copy_options::overwrite_existing);
    ASSERT_EQ(::chmod(program.c_str(), mode), 0);
    start({}, drop_privileges, program);
    fs::remove(program);
  };
  start_with(0711);
  EXPECT_THAT(unreadable(), SizeIs(1));
  end();
  start_with(0755);
  EXPECT_THAT(unreadable(), IsEmpty());
}

TEST_F(Inspecting, NamedTmpfsFilesDoNotBlock) {
  start({"share", make_file("file").string()});
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
}

TEST_F(Inspecting, SharedMemoryBlocksIfAnotherProcessMapsIt) {
  start({"memfd"});
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
  end();
  start({"memfd", "child"});
  const pid_t child = procfs::tree(pid_).at(1);
  const auto found = inspect(child, Together({child}));
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_THAT(ids(*found), ElementsAre("shared-memory"));
  ::kill(child, SIGKILL);
}

TEST_F(Inspecting, SharingWithANewChildDoesNotBlock) {
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  UniqueFd reading(pipes[0]);
  UniqueFd writing(pipes[1]);
  start({"memfd", "child"}, [&] {
    ::dup2(reading.get(), STDIN_FILENO);
    ::dup2(writing.get(), STDOUT_FILENO);
  });
  reading.reset();
  writing.reset();
  EXPECT_THAT(ids(inspect_child()), IsEmpty());  // only the parent is known
  ::kill(procfs::tree(pid_).at(1), SIGKILL);
}

TEST_F(Inspecting, PipeToAnEndedMemberDoesNotBlock) {
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  UniqueFd reading(pipes[0]);
  UniqueFd writing(pipes[1]);
  start({}, [&] { ::dup2(reading.get(), STDIN_FILENO); });
  const pid_t other = ::fork();
  if (other == 0) {
    ::pause();
    ::_exit(0);
  }
  reading.reset();
  writing.reset();
  const Together together({pid_});
  const std::string link = fs::read_symlink("/proc/" + std::to_string(pid_) + "/fd/0");
  EXPECT_EQ(together.outsider(link), other);
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  EXPECT_EQ(together.outsider(link), 0);
}

TEST_F(Inspecting, UndumpableKernelObjectsBlock) {
  start({"bpf", "queue", "pidfd", std::to_string(::getpid())});
  EXPECT_THAT(ids(inspect_child()), ElementsAre("kernel-object", "kernel-object", "kernel-object"));
}

TEST_F(Inspecting, UndumpableSocketsBlock) {
  start({"multipath"});
  const Inspection found = inspect_child();
  ASSERT_THAT(ids(found), ElementsAre("socket-kind"));
  EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("MPTCP"));
}

TEST_F(Inspecting, BoundSocketsAreListed) {
  start({"listen"});
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), IsEmpty());
  ASSERT_EQ(found.facts.sockets_size(), 1);
  EXPECT_EQ(found.facts.sockets(0).protocol(), "tcp");
  EXPECT_EQ(found.facts.sockets(0).address(), "127.0.0.1");
  EXPECT_NE(found.facts.sockets(0).port(), 0u);
}

TEST_F(Inspecting, NamedPipesAreListed) {
  const fs::path pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  start({"fifo", pipe.string()});
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), IsEmpty());
  EXPECT_THAT(paths(found.facts.files()), Contains(pipe.string()));
}

TEST_F(Inspecting, AnotherRootDirectoryBlocks) {
  start({"root", directory_.string()});
  EXPECT_THAT(ids(inspect_child()), Contains("root-directory"));
}

TEST_F(Inspecting, HardlyComparableFilesAreAWarning) {
  const fs::path large = make_file("large", 257 << 20);  // more than is hashed
  start({"map", large.string()});
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), ElementsAre("file-by-size"));
  EXPECT_FALSE(found.findings.has_blocker());
}

TEST_F(Inspecting, MappedFilesAreReadDespiteReplacedNames) {
  const fs::path hidden = make_file("hidden", 100);
  start({"map", hidden.string(), "hide", directory_.string()});
  const Inspection found = inspect_child();
  const auto file = std::ranges::find(found.facts.files(), hidden.string(), &proto::FileFact::path);
  ASSERT_NE(file, found.facts.files().end());
  EXPECT_EQ(file->size_bytes(), 100u);
  EXPECT_EQ(file->sha256().size(), 32u);
}

TEST_F(Inspecting, MappingWithANumaPolicyIsAWarning) {
  start({"bind"});
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), ElementsAre("numa-mappings"));
  EXPECT_THAT(found.findings.list()[0].found(), HasSubstr("1 of its mappings"));
}

TEST_F(Inspecting, SealedMemoryBlocks) {
  start({"seal"});
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), ElementsAre("mseal"));
}

TEST_F(Inspecting, CpuAffinityIsAWarning) {
  if (std::thread::hardware_concurrency() < 2) FAIL() << "two CPUs are needed";
  start({"cpu"});
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), ElementsAre("cpu-affinity"));
  EXPECT_FALSE(found.findings.has_blocker());
}

TEST_F(Inspecting, ControlGroupLimitsAreFacts) {
  const auto hierarchy = cgroups::find(cgroups::hierarchies(), "pids");
  ASSERT_TRUE(hierarchy);
  const std::string name = "gcr-process-test-" + std::to_string(::getpid());
  proto::GroupLimits limits;
  limits.set_processes(10);
  ASSERT_TRUE(cgroups::apply_limits({*hierarchy}, name, limits));
  start({});
  const fs::path group = hierarchy->mount / name;
  std::ofstream(group / "cgroup.procs") << pid_;
  const Inspection found = inspect_child();
  end();
  EXPECT_EQ(::rmdir(group.c_str()), 0);
  EXPECT_THAT(ids(found), IsEmpty());
  EXPECT_EQ(found.facts.limits().processes(), 10u);
}

TEST_F(Inspecting, MpsClientBlocks) {
  std::ofstream(directory_ / "control") << "";
  start({}, [this] { ::setenv("CUDA_MPS_PIPE_DIRECTORY", directory_.c_str(), 1); });
  EXPECT_THAT(ids(inspect_child()), ElementsAre("mps"));
}

TEST_F(Inspecting, ProcessOfAnotherUserNeedsAPrivilegedAgent) {
  constexpr uid_t kUnprivileged = 65'534;
  start({}, [] {
    if (::setgid(kUnprivileged) != 0 || ::setuid(kUnprivileged) != 0) ::_exit(1);
  });
  const Inspection found = inspect_child();
  EXPECT_EQ(found.facts.uid(), kUnprivileged);
  EXPECT_EQ(found.facts.gid(), kUnprivileged);
  EXPECT_EQ(found.facts.capabilities(), 0u);
  const pid_t limited = ::fork();
  if (limited == 0) {
    ::prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE);  // fails if it has ended already
    const auto seen = inspect(pid_, Together({pid_}));
    if (!seen) ::_exit(2);
    const auto found_ids = ids(*seen);
    ::_exit(std::ranges::find(found_ids, "agent-capabilities") != found_ids.end() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(limited, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(Inspecting, LimitsAndIdsAreFacts) {
  start({});
  const proto::ProcessFacts facts = inspect_child().facts;
  EXPECT_EQ(facts.uid(), 0u);
  EXPECT_EQ(facts.user(), "root");
  EXPECT_EQ(facts.group(), "root");
  EXPECT_NE(facts.capabilities(), 0u);
  EXPECT_GT(facts.mappings(), 5u);
  EXPECT_GT(facts.open_files_limit(), 0u);
  EXPECT_EQ(facts.hugepages_size(), 0);
}

TEST_F(Inspecting, FileOpenedByARemovedLinkBlocksUnlessOnTmpfs) {
  const auto open_link_and_delete = [this](const fs::path& directory) {
    const std::string file = directory / "file";
    std::ofstream(file) << "content";
    start({"open", file, "map", file, "link", file, directory / "other", "delete", file});
  };
  open_link_and_delete(directory_);
  EXPECT_THAT(ids(inspect_child()), IsEmpty());
  end();
  // Programs are built on a disk.
  std::string disk = fs::path(GCR_HELD_PROGRAM).parent_path() / "inspect-test-XXXXXX";
  ASSERT_NE(::mkdtemp(disk.data()), nullptr);
  open_link_and_delete(disk);
  EXPECT_THAT(ids(inspect_child()), ElementsAre("deleted-file", "deleted-file"))
      << "held and mapped";
  fs::remove_all(disk);
}

TEST_F(Inspecting, TracerBlocks) {
  start({});
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr), 0);
  EXPECT_THAT(ids(inspect_child()), ElementsAre("traced"));
}

TEST_F(Inspecting, StoppedProcessIsAWarning) {
  start({});
  ::kill(pid_, SIGSTOP);
  ASSERT_TRUE(procfs::wait_until_stopped(pid_));
  const Inspection found = inspect_child();
  EXPECT_THAT(ids(found), ElementsAre("stopped"));
  EXPECT_FALSE(found.findings.has_blocker());
}

TEST_F(Inspecting, AllFindingsAreReportedAtOnce) {
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  const UniqueFd reading(pipes[0]);
  const UniqueFd writing(pipes[1]);
  start({"connect", "io_uring", "sysv"}, [&] { ::dup2(writing.get(), STDOUT_FILENO); });
  EXPECT_THAT(ids(inspect_child()),
              testing::IsSupersetOf({"outside-pipe", "tcp-established", "io-uring", "system-v"}));
}

TEST(Procfs, TextOfAnEndingProcessIsEmpty) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const UniqueFd file(
      ::open(("/proc/" + std::to_string(child) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(file);
  const std::string same_file = "/proc/self/fd/" + std::to_string(file.get());
  EXPECT_NE(procfs::read_text(same_file), "");
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(procfs::read_text(same_file), "");
}

}  // namespace
}  // namespace gcr::process
