#include "tests/fault/oracle.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace gcr::fault::test {

Oracle::Oracle(const std::string& path, const Program& program)
    : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)),
      next_(program.lines()),
      final_error_begin_(program.final_error),
      line_begins_(program.line_begins) {
  if (!file_) throw std::system_error(errno, std::generic_category(), "open " + path);
}

std::uint64_t Oracle::read_new_lines() {
  char bytes[1 << 16];
  for (;;) {
    const ssize_t length = ::read(file_.get(), bytes, sizeof(bytes));
    if (length < 0) throw std::system_error(errno, std::generic_category(), "read the output");
    if (length == 0) return lines_;
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
  if (line.starts_with(line_begins_) && expected_.empty()) expected_ = next_();
  if (line == expected_) {
    ++lines_;
    expected_.clear();
  } else if (!line.starts_with(line_begins_)) {
    return;
  } else if (!final_error_begin_.empty() && line.starts_with(final_error_begin_)) {
    final_error_ = line;
  } else if (complaint_.empty()) {
    complaint_ = fmt::format("after line {} came \"{}\" and not \"{}\"", lines_, line, expected_);
  }
}

}  // namespace gcr::fault::test
