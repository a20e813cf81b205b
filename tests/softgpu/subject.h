// A process that uses the software GPU on command: one command per line of standard input, one line
// "<CUresult> <value>" of answer. The tests play application and agent with several of these. Its
// argument names a library, CUDA's or HIP's, software or real; they must behave in the same way.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "src/base/unique_fd.h"
#include "tests/softgpu/calls.h"

namespace gcr::softgpu::test {

struct Buffer {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
};

/// A host function that stays until it is released.
struct Blocker {
  std::mutex mutex;
  std::condition_variable changed;
  bool released = false;

  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return released; });
  }
  void release() {
    std::lock_guard lock(mutex);
    released = true;
    changed.notify_all();
  }
};

class Subject {
 public:
  using Command = CUresult (*)(Subject&);
  using Commands = std::map<std::string, Command>;

  /// Initialises the driver, or ends the program.
  explicit Subject(const char* library);

  void add(const Commands& commands) { commands_.insert(commands.begin(), commands.end()); }
  void run(const std::string& line);

  // For the commands: their words, the answer, and state that lives from one command to the next.
  template <class T>
  T next() {
    T value{};
    in >> value;
    return value;
  }
  template <class T>
  void say(const T& value) {
    out_ << ' ' << value;
  }
  /// Gives the buffer the next number and prints it, if `result` is good.
  CUresult keep(CUresult result, const Buffer& buffer);

  CUresult create(Buffer* buffer, CUmemLocation location,
                  CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUresult import_from(const UniqueFd& file, Buffer* buffer);
  /// Maps the buffer at its address, at a new one if it has none, with access for the device.
  CUresult map(Buffer* buffer, int device);
  /// One thread of a kernel of tests/apps/kernels.cu, in the current context.
  CUresult launch(const char* kernel, std::vector<std::uint64_t> arguments);

  Calls cu;
  std::istringstream in;
  std::vector<CUcontext> contexts;
  std::vector<Buffer> buffers;
  CUevent event = nullptr;
  UniqueFd listener;
  Blocker blocker;

 private:
  std::ostringstream out_;
  Commands commands_;
};

/// A descriptor of another process, by two words: PID and number.
UniqueFd fetch_descriptor(Subject& s);

/// Replaces the checkpoint functions by those of the engine's door: HIP has none.
void use_door(Calls& calls);

/// Commands about memory that several processes or devices use.
void add_sharing_commands(Subject& subject);

}  // namespace gcr::softgpu::test
