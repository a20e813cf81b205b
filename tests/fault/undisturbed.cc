#include "tests/fault/undisturbed.h"

#include <fcntl.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "src/base/unique_fd.h"
#include "tests/e2e/command.h"

namespace gcr::fault::test {
namespace {

class Undisturbed {
 public:
  Undisturbed(const e2e::TwoHosts& hosts, const Program& program, const std::string& output)
      : line_begins_(program.line_begins), path_(output) {
    // It does not outlive this program. Where VRAM is a file system, it has one of its own.
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
  }

  std::string next() {
    const auto complete = [this](const std::string& text) {
      for (std::size_t end = 0; (end = text.find('\n', at_)) != std::string::npos; at_ = end + 1) {
        const auto line = std::string_view(text).substr(at_, end - at_);
        if (!line.starts_with(line_begins_)) continue;
        line_ = line;
        at_ = end + 1;
        return true;
      }
      return false;
    };
    if (e2e::wait_for_content(path_, complete, e2e::kHangs)) return line_;
    throw std::runtime_error("the undisturbed program prints nothing more");
  }

 private:
  const std::string line_begins_;
  const std::string path_;
  std::unique_ptr<e2e::Program> program_;
  std::size_t at_ = 0;
  std::string line_;
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
