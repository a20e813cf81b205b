#include "src/cli/exit_code.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <iterator>

#include "src/control/wire.h"

namespace gcr::cli {
namespace {

constexpr std::array kTable{
    ExitCodeRow{ExitCode::kMigrated, "migrated", "migrated; of other commands: done"},
    ExitCodeRow{ExitCode::kFailed, "failed", "failed; the process runs on at SRC"},
    ExitCodeRow{ExitCode::kUsage, "usage", "wrong usage, or a file that it names cannot be used"},
    ExitCodeRow{ExitCode::kRefused, "refused",
                "refused in preflight, or an order that cannot be followed; nothing was touched"},
    ExitCodeRow{ExitCode::kUnreachable, "unreachable",
                "an agent cannot be reached; nothing was touched"},
    ExitCodeRow{ExitCode::kNotAuthorised, "not-authorised", "not authorised; nothing was touched"},
    ExitCodeRow{ExitCode::kUnknown, "unknown",
                "contact was lost and the outcome is not known here; the agents settle it, and "
                "`gcr-migrate status SRC ID` tells"},
    ExitCodeRow{ExitCode::kCancelled, "cancelled", "cancelled; the process runs on at SRC"},
    ExitCodeRow{ExitCode::kUnconfirmed, "unconfirmed",
                "committed, but DST has not confirmed yet: the process will not run at SRC again; "
                "the agents go on, and `gcr-migrate status SRC ID` tells"},
    ExitCodeRow{ExitCode::kEnded, "ended",
                "the process ended by itself before it was moved; it runs nowhere"},
};

/// --help is read on terminals.
constexpr std::size_t kColumns = 96;

void append_wrapped(std::string& text, std::string_view words, std::size_t indent) {
  std::size_t column = indent;
  while (!words.empty()) {
    const auto end = words.find(' ');
    const std::string_view word = words.substr(0, end);
    if (column > indent && column + 1 + word.size() > kColumns) {
      text += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) text += ' ';
    column += word.size() + (column > indent ? 1 : 0);
    text += word;
    words = end == std::string_view::npos ? "" : words.substr(end + 1);
  }
  text += '\n';
}

}  // namespace

std::span<const ExitCodeRow> exit_codes() { return kTable; }

std::string exit_code_table() {
  std::string text;
  for (const ExitCodeRow& row : kTable) {
    const std::string head = fmt::format("  {}  {:<15} ", static_cast<int>(row.code), row.name);
    text += head;
    append_wrapped(text, row.meaning, head.size());
  }
  return text;
}

ExitCode untouched_exit_code(Code code) {
  switch (code) {
    case Code::kUnavailable:
    case Code::kTimeout:
      return ExitCode::kUnreachable;
    case Code::kPermissionDenied:
      return ExitCode::kNotAuthorised;
    case Code::kCancelled:
      return ExitCode::kCancelled;
    default:
      return ExitCode::kRefused;
  }
}

int fail(ExitCode exit_code, const Error& error) {
  fmt::print(stderr, "gcr-migrate: {}\n", control::printable(error.message()));
  return static_cast<int>(exit_code);
}

}  // namespace gcr::cli
