// amdgpu_plugin.so for the software GPU: behaves to the agent as CRIU's plugin of that name does
// for AMD GPUs. A dump copies the engine's memory into the memory of the stopped process, and gives
// it back when the process resumes; a restore puts it on the devices of the machine that CRIU's
// environment describes, logs which device replaces which, and lets the process continue its GPU
// work.
//
// It asks the engine's door (door.h), whose thread has to run for that while CRIU holds all others.
// A thread that CRIU has stopped within a call of the engine runs as well until it has left that.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/softgpu/engine/door.h"

// CRIU's, from criu-plugin.h, log.h, inventory.h and img-streamer.h.
extern "C" {
void print_on_level(unsigned level, const char* format, ...) __attribute__((format(printf, 2, 3)));
int add_inventory_plugin(const char* name);
int check_and_remove_inventory_plugin(const char* name, std::size_t length);
int criu_get_image_dir(void);
int img_streamer_open(char* name, int flags);
}

namespace {

using gcr::UniqueFd;
using gcr::Uuid;
using gcr::softgpu::DeviceTable;
using gcr::softgpu::DoorOp;
using gcr::softgpu::DoorReply;
using gcr::softgpu::DoorRequest;
using gcr::softgpu::Result;

constexpr char kName[] = "amdgpu_plugin";
constexpr char kDoorThread[] = "softgpu-restore\n";
constexpr std::uint32_t kLockTimeoutMs = 10'000;
constexpr std::uint32_t kQuickLockTimeoutMs = 200;  ///< while only the door's threads run
constexpr std::chrono::microseconds kPause{500};
/// Named like the contents of VRAM, so that it is transferred as those are.
char image_name[] = "amdgpu-softgpu.img";

enum Stage { kDump = 0, kRestore = 2 };
enum Hook { kResumeDevicesLate = 9, kCheckpointDevices = 11 };
enum Level { kError = 1, kInfo = 3 };

#define PLUGIN_ERROR(format, ...)                                               \
  print_on_level(kError, "Error (%s:%d): %s: " format "\n", __FILE__, __LINE__, \
                 kName __VA_OPT__(, ) __VA_ARGS__)
#define PLUGIN_INFO(format, ...) \
  print_on_level(kInfo, "%s: " format "\n", kName __VA_OPT__(, ) __VA_ARGS__)

DeviceTable machine;
std::vector<pid_t> checkpointed;

/// KFD's name of a device: the last digits of its name.
unsigned id_of(const Uuid& uuid) {
  return static_cast<unsigned>(std::stoul(machine.name_of(uuid).substr(12), nullptr, 16));
}

bool read_machine() {
  machine.vendor = gcr::softgpu::Vendor::kAmd;
  if (machine.count > 0 || machine.load_from_environment() == Result::kSuccess) return true;
  PLUGIN_ERROR("this machine has no devices");
  return false;
}

enum class Threads { kDoors, kAll };

/// Those of a process, or of its doors: it has one for each vendor's GPUs.
std::vector<pid_t> threads_of(pid_t pid, Threads which) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  DIR* const directory = ::opendir(tasks.c_str());
  std::vector<pid_t> found;
  while (const dirent* entry = directory != nullptr ? ::readdir(directory) : nullptr) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(tasks + "/" + entry->d_name + "/comm");
    const std::string name{std::istreambuf_iterator<char>(file), {}};
    if (which == Threads::kAll || name == kDoorThread) found.push_back(std::atoi(entry->d_name));
  }
  if (directory != nullptr) ::closedir(directory);
  return found;
}

/// During its lifetime, a thread that CRIU holds runs. A pending stop of its process is delayed
/// until the end.
class RunningThread {
 public:
  RunningThread(pid_t pid, pid_t thread) : pid_(pid), thread_(thread) {
    runs_ = ::ptrace(PTRACE_CONT, thread_, nullptr, nullptr) == 0;
  }
  RunningThread(const RunningThread&) = delete;
  RunningThread& operator=(const RunningThread&) = delete;
  ~RunningThread() {
    if (runs_ && ::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0) {
      int status = 0;
      while (::waitpid(thread_, &status, __WALL) == thread_ && WIFSTOPPED(status) &&
             status >> 16 != PTRACE_EVENT_STOP) {
        pass(status);
      }
    }
    if (stop_again_) ::kill(pid_, SIGSTOP);
  }

  bool runs() const { return runs_; }

  /// Continues it if it has stopped for a signal.
  void continue_if_signalled() {
    int status = 0;
    if (::waitpid(thread_, &status, __WALL | WNOHANG) == thread_ && WIFSTOPPED(status)) {
      pass(status);
    }
  }

 private:
  void pass(int status) {
    const bool is_signal = status >> 16 == 0;
    const int signal = is_signal ? WSTOPSIG(status) : 0;
    stop_again_ = stop_again_ || signal == SIGSTOP;
    const auto passed = static_cast<std::intptr_t>(signal == SIGSTOP ? 0 : signal);
    ::ptrace(PTRACE_CONT, thread_, nullptr, reinterpret_cast<void*>(passed));
  }

  pid_t pid_;
  pid_t thread_;
  bool runs_ = false;
  bool stop_again_ = false;
};

/// kNotInitialized: it has no door for these GPUs.
Result ask(pid_t pid, DoorRequest request, Threads meanwhile = Threads::kDoors) {
  request.version = gcr::softgpu::kDoorVersion;
  std::vector<std::unique_ptr<RunningThread>> running;
  for (const pid_t thread : threads_of(pid, meanwhile)) {
    running.push_back(std::make_unique<RunningThread>(pid, thread));
    if (running.back()->runs()) continue;
    PLUGIN_ERROR("cannot let thread %d run: %s", thread, std::strerror(errno));
    return Result::kOperatingSystem;
  }
  if (running.empty()) return Result::kNotInitialized;
  Result result = Result::kUnknown;
  std::atomic<bool> answered = false;
  std::thread caller([&] {
    DoorReply reply{};
    result = gcr::softgpu::ask_door(machine, pid, request, &reply);
    answered = true;
  });
  while (!answered) {
    for (const auto& thread : running) thread->continue_if_signalled();
    std::this_thread::sleep_for(kPause);
  }
  caller.join();
  const bool is_tried_again = result == Result::kNotReady && meanwhile == Threads::kDoors;
  if (result && result != Result::kNotInitialized && !is_tried_again) {
    PLUGIN_ERROR("process %d refuses %u: %d", pid, static_cast<unsigned>(request.op),
                 static_cast<int>(result.code()));
  }
  return result;
}

Result ask(pid_t pid, DoorOp op) {
  DoorRequest request{};
  request.op = op;
  return ask(pid, request);
}

/// Not ready is a process with a thread that was stopped within a call, or with running work.
Result lock(pid_t pid) {
  DoorRequest request{};
  request.op = DoorOp::kLock;
  request.timeout_ms = kQuickLockTimeoutMs;
  const Result locked = ask(pid, request);
  if (locked != Result::kNotReady) return locked;
  request.timeout_ms = kLockTimeoutMs;
  return ask(pid, request, Threads::kAll);
}

/// The machine's devices replace those of `before`, in their order.
DoorRequest restore_request(const std::vector<Uuid>& before) {
  DoorRequest request{};
  request.version = gcr::softgpu::kDoorVersion;
  request.op = DoorOp::kRestore;
  request.device_count = static_cast<std::uint32_t>(machine.count);
  for (int i = 0; i < machine.count; ++i) {
    const gcr::softgpu::Device& device = machine.devices[i];
    request.devices[i] = {device.uuid, device.total_bytes, device.mounted ? 1U : 0U, 0};
  }
  request.pair_count = static_cast<std::uint32_t>(before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    request.pairs[i] = {before[i], machine.devices[i].uuid};
  }
  return request;
}

bool restore_gpu(pid_t pid, const std::vector<Uuid>& before) {
  return !ask(pid, restore_request(before)) && !ask(pid, DoorOp::kUnlock);
}

std::vector<Uuid> devices_here() {
  std::vector<Uuid> found;
  for (int i = 0; i < machine.count; ++i) found.push_back(machine.devices[i].uuid);
  return found;
}

/// As amdgpu_plugin.so: CRIU's options are no stable interface for plugins.
bool streams() {
  std::ifstream file("/proc/self/cmdline");
  const std::string arguments{std::istreambuf_iterator<char>(file), {}};
  return arguments.find(std::string("\0--stream\0", 10)) != std::string::npos;
}

bool write_image() {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  const UniqueFd file(streams() ? img_streamer_open(image_name, flags)
                                : ::openat(criu_get_image_dir(), image_name, flags, 0600));
  for (const Uuid& uuid : devices_here()) {
    if (::write(file.get(), uuid.bytes.data(), uuid.bytes.size()) !=
        static_cast<ssize_t>(uuid.bytes.size())) {
      PLUGIN_ERROR("cannot write %s: %s", image_name, std::strerror(errno));
      return false;
    }
  }
  return true;
}

std::vector<Uuid> read_image() {
  const UniqueFd file(::openat(criu_get_image_dir(), image_name, O_RDONLY | O_CLOEXEC));
  std::vector<Uuid> found;
  for (Uuid uuid; ::read(file.get(), uuid.bytes.data(), uuid.bytes.size()) ==
                  static_cast<ssize_t>(uuid.bytes.size());) {
    found.push_back(uuid);
  }
  return found;
}

int init(int stage) {
  if (stage == kRestore) check_and_remove_inventory_plugin(kName, sizeof(kName) - 1);
  return 0;
}

/// Asks as soon as the process runs again, unless it ends before: until then its memory has to stay
/// as it was dumped. A separate process does that, which holds nothing of CRIU.
void restore_gpu_once_running(pid_t pid) {
  if (::fork() != 0) return;
  ::setsid();
  if (::chdir("/") != 0) ::_exit(1);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) ::dup2(nothing, fd);
  std::vector<bool> kept(1024);
  for (int i = 0; i < machine.count; ++i) {
    const auto fd = static_cast<std::size_t>(machine.devices[i].directory.get());
    if (fd < kept.size()) kept[fd] = true;
  }
  for (std::size_t fd = STDERR_FILENO + 1; fd < kept.size(); ++fd) {
    if (!kept[fd]) ::close(static_cast<int>(fd));
  }
  ::close_range(static_cast<unsigned>(kept.size()), ~0U, 0);
  DoorReply reply{};
  DoorRequest unlock{};
  unlock.version = gcr::softgpu::kDoorVersion;
  unlock.op = DoorOp::kUnlock;
  if (!gcr::softgpu::ask_door(machine, pid, restore_request(devices_here()), &reply)) {
    gcr::softgpu::ask_door(machine, pid, unlock, &reply);
  }
  ::_exit(0);
}

/// A dumped process gets its GPU back if it resumes, as with the real plugin.
void finish(int stage, int result) {
  if (stage != kDump) return;
  for (const pid_t pid : checkpointed) {
    if (result != 0) restore_gpu(pid, devices_here());
    if (result == 0) restore_gpu_once_running(pid);
  }
  checkpointed.clear();
}

int checkpoint_devices(int pid) {
  if (threads_of(pid, Threads::kDoors).empty()) return 0;
  if (!read_machine()) return -1;
  const Result locked = lock(pid);
  if (locked == Result::kNotInitialized) return 0;
  if (locked) return -1;
  const bool is_first = checkpointed.empty();
  if ((is_first && (add_inventory_plugin(kName) != 0 || !write_image())) ||
      ask(pid, DoorOp::kCheckpoint)) {
    ask(pid, DoorOp::kUnlock);
    return -1;
  }
  checkpointed.push_back(pid);
  return 0;
}

int resume_devices_late(int pid) {
  if (threads_of(pid, Threads::kDoors).empty()) return 0;
  const std::vector<Uuid> before = read_image();
  if (!read_machine()) return -1;
  const Result found = ask(pid, DoorOp::kState);
  if (found == Result::kNotInitialized) return 0;
  if (before.empty() || before.size() > static_cast<std::size_t>(machine.count)) {
    PLUGIN_ERROR("%zu devices do not fit on %d", before.size(), machine.count);
    return -1;
  }
  PLUGIN_INFO("===Maps===============");
  for (std::size_t i = 0; i < before.size(); ++i) {
    PLUGIN_INFO("GPU: 0x%04X -> 0x%04X", id_of(before[i]), id_of(machine.devices[i].uuid));
  }
  PLUGIN_INFO("======================");
  return restore_gpu(pid, before) ? 0 : -1;
}

/// More than the number of hooks of each release.
constexpr std::size_t kHooks = 32;

struct Descriptor {
  const char* name;
  int (*init)(int stage);
  void (*exit)(int stage, int result);
  unsigned version;
  unsigned max_hooks;
  void* hooks[kHooks];
};

}  // namespace

/// For CRIU 4.2, whose plugins have 13 hooks. The agent reads it from the file.
extern "C" __attribute__((visibility("default"))) Descriptor CR_PLUGIN_DESC;
Descriptor CR_PLUGIN_DESC = {kName, init, finish, 2 << 8, 13, {}};

namespace {

__attribute__((constructor)) void register_hooks() {
  CR_PLUGIN_DESC.hooks[kCheckpointDevices] = reinterpret_cast<void*>(checkpoint_devices);
  CR_PLUGIN_DESC.hooks[kResumeDevicesLate] = reinterpret_cast<void*>(resume_devices_late);
}

}  // namespace
