#include "tests/fault/oracle.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <system_error>

#include "tests/apps/ticker.h"

namespace gcr::fault::test {

Oracle::Oracle(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!file_) throw std::system_error(errno, std::generic_category(), "open " + path);
}

std::uint64_t Oracle::look() {
  char bytes[1 << 16];
  for (;;) {
    const ssize_t length = ::read(file_.get(), bytes, sizeof(bytes));
    if (length < 0) throw std::system_error(errno, std::generic_category(), "read the output");
    if (length == 0) return steps_;
    rest_.append(bytes, static_cast<std::size_t>(length));
    std::size_t begin = 0;
    for (auto end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n', begin)) {
      judge(std::string_view(rest_).substr(begin, end - begin));
      begin = end + 1;
    }
    rest_.erase(0, begin);
  }
}

void Oracle::judge(std::string_view line) {
  const std::uint64_t step = steps_ + 1;
  const std::string expected =
      fmt::format("{0} {0} {0} {1:016x}", step, apps::ticker_checksum(step));
  if (line == expected) {
    steps_ = step;
  } else if (complaint_.empty()) {
    complaint_ = fmt::format("after step {} came \"{}\" and not \"{}\"", steps_, line, expected);
  }
}

}  // namespace gcr::fault::test
