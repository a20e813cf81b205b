#include "tests/softgpu/machines.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace gcr::softgpu::test {

Machine::Machine(std::vector<Gpu> gpus) : gpus_(std::move(gpus)) {
  static std::atomic<int> count = 0;
  store_ = "/dev/shm/softgpu-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

Machine::~Machine() {
  for (const Gpu& gpu : gpus_) ::umount2((store_ + "/" + gpu.uuid).c_str(), MNT_DETACH);
  std::error_code ignored;
  std::filesystem::remove_all(store_, ignored);
}

std::vector<std::string> Machine::environment() const {
  std::string devices;
  for (const Gpu& gpu : gpus_) {
    devices += (devices.empty() ? "GPU-" : ",GPU-") + gpu.uuid + ":" + gpu.size;
  }
  return {"SOFTGPU_STORE=" + store_, "SOFTGPU_DEVICES=" + devices};
}

std::uint64_t Machine::used_bytes(std::size_t index) const {
  struct statfs space {};
  if (::statfs((store_ + "/" + gpus_[index].uuid).c_str(), &space) != 0) {
    throw std::runtime_error("no such store");
  }
  return (space.f_blocks - space.f_bfree) * static_cast<std::uint64_t>(space.f_bsize);
}

DeviceNode::DeviceNode() {
  static std::atomic<int> count = 0;
  path_ = "/dev/nvidia-soft-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
  const UniqueFd file(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file || ::ftruncate(file.get(), 4096) != 0) throw std::runtime_error("cannot make " + path_);
}

DeviceNode::~DeviceNode() { ::unlink(path_.c_str()); }

Process::Process(const Machine& machine, std::vector<std::string> command) {
  int to_child[2];
  int from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0) {
    throw std::runtime_error("no pipes");
  }
  std::vector<std::string> variables = machine.environment();
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(to_child[0], STDIN_FILENO);
    ::dup2(from_child[1], STDOUT_FILENO);
    for (std::string& variable : variables) ::putenv(variable.data());
    ::setenv("LD_LIBRARY_PATH", SOFTGPU_DIRECTORY, 1);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(to_child[0]);
  ::close(from_child[1]);
  input_.reset(to_child[1]);
  output_.reset(from_child[0]);
}

Process::~Process() {
  if (pid_ <= 0) return;
  signal(SIGKILL);
  wait();
}

void Process::send(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(input_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("the process reads no more");
  }
}

std::string Process::receive() {
  while (true) {
    const std::size_t end = buffered_.find('\n');
    if (end != std::string::npos) {
      const std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    char chunk[4096];
    const ssize_t received = ::read(output_.get(), chunk, sizeof(chunk));
    if (received <= 0) return "";
    buffered_.append(chunk, static_cast<std::size_t>(received));
  }
}

bool Process::has_output() const {
  pollfd wait{output_.get(), POLLIN, 0};
  return !buffered_.empty() || ::poll(&wait, 1, 0) == 1;
}

std::string Process::ask(const std::string& line) {
  send(line);
  return receive();
}

void Process::signal(int number) { ::kill(pid_, number); }

int Process::wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

std::vector<std::string> mappings_of(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  std::vector<std::string> lines;
  for (std::string line; std::getline(maps, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> descriptors_of(pid_t pid) {
  std::vector<std::string> targets;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    targets.push_back(std::filesystem::read_symlink(entry, gone).string());
  }
  return targets;
}

}  // namespace gcr::softgpu::test
