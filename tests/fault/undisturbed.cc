#include "tests/fault/undisturbed.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/unique_fd.h"
#include "tests/e2e/command.h"

namespace gcr::fault::test {
namespace {

class Undisturbed {
 public:
  Undisturbed(const e2e::TwoHosts& hosts, const Program& program, const std::string& output)
      : line_begins_(program.line_begins) {
    // It does not outlive this program. If VRAM is a file system, it has its own.
    std::vector<std::string> words{"setpriv",
                                   "--pdeathsig",
                                   "KILL",
                                   "unshare",
                                   "--mount",
                                   "--net",
                                   "--pid",
                                   "--fork",
                                   "--kill-child",
                                   "--mount-proc",
                                   "sh",
                                   "-c",
                                   "ip link set lo up; exec \"$@\"",
                                   "undisturbed",
                                   "env",
                                   "SOFTGPU_STORE=" + output + ".vram"};
    words.insert(words.end(), program.command.begin(), program.command.end());
    const UniqueFd file(::open(output.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644));
    program_ = std::make_unique<e2e::Program>(hosts.on_host(e2e::Host::kA, words),
                                              e2e::Streams{-1, file.get(), file.get()});
    printed_.reset(::open(output.c_str(), O_RDONLY | O_CLOEXEC));
    next_ = wait_for_line();
  }

  std::string next() {
    return next_.empty() ? wait_for_line() : std::exchange(next_, std::string());
  }

 private:
  static constexpr e2e::Milliseconds kInterval{10};

  std::string wait_for_line() {
    const auto end = std::chrono::steady_clock::now() + e2e::kHangs;
    for (;;) {
      const std::size_t length = text_.find('\n');
      if (length == std::string::npos) {
        if (read_more()) continue;
        if (std::chrono::steady_clock::now() > end) break;
        std::this_thread::sleep_for(kInterval);
        continue;
      }
      std::string line = text_.substr(0, length);
      text_.erase(0, length + 1);
      if (line.starts_with(line_begins_)) return line;
    }
    throw std::runtime_error("the undisturbed program prints nothing more");
  }

  /// Reads the new output; false if there was none.
  bool read_more() {
    char bytes[1 << 16];
    const ssize_t length = ::read(printed_.get(), bytes, sizeof(bytes));
    if (length > 0) text_.append(bytes, static_cast<std::size_t>(length));
    return length > 0;
  }

  const std::string line_begins_;
  UniqueFd printed_;
  std::unique_ptr<e2e::Program> program_;
  std::string text_;  ///< read, and not returned yet
  std::string next_;  ///< the first line, until it is returned
};

}  // namespace

std::function<std::string()> run_undisturbed(const e2e::TwoHosts& hosts, const Program& program) {
  static std::atomic<unsigned> started{0};
  const auto copy = std::make_shared<Undisturbed>(
      hosts, program,
      hosts.directory() + "/undisturbed-" + std::to_string(started.fetch_add(1)) + ".out");
  return [copy] { return copy->next(); };
}

}  // namespace gcr::fault::test
