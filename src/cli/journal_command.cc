#include "src/cli/journal_command.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "migrate-agent/journal/journal_files.h"
#include "src/cli/exit_code.h"
#include "src/control/control_channel.h"

namespace gcr::cli {
namespace {

using control::printable;
using google::protobuf::Struct;
using journal::Record;

struct Printed {
  std::filesystem::path path;
  journal::Contents contents;

  std::int64_t began_ms() const {
    return contents.records.empty() ? 0 : contents.records.front().unix_ms();
  }
};

Status read_file(const std::filesystem::path& path, std::vector<Printed>& out) {
  GCR_ASSIGN(auto contents, journal::read(path));
  out.push_back({path, std::move(contents)});
  return {};
}

Status read_directory(const std::filesystem::path& path, std::vector<Printed>& out) {
  const auto journals = journal::directory_of(path);
  std::error_code ignored;
  const bool is_state_dir = std::filesystem::is_directory(journals, ignored);
  GCR_ASSIGN(const auto entries, journal::list_directory(is_state_dir ? journals : path));
  std::vector<Printed> found;
  for (const journal::Entry& entry : entries) {
    GCR_TRY(read_file(entry.path, found));
  }
  std::ranges::sort(found, {}, &Printed::began_ms);
  std::ranges::move(found, std::back_inserter(out));
  return {};
}

Result<std::vector<Printed>> read_all(const std::vector<std::string>& paths) {
  std::vector<Printed> result;
  for (const std::filesystem::path path : paths) {
    std::error_code ignored;
    const bool several = std::filesystem::is_directory(path, ignored);
    GCR_TRY(several ? read_directory(path, result) : read_file(path, result));
  }
  return result;
}

std::string time_of(const Record& record) {
  const std::chrono::milliseconds time(record.unix_ms());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds.count()),
                     (time - seconds).count());
}

/// The name of the field that the record has: "keeper_started".
std::string kind_of(const Record& record) {
  const auto& reflection = *record.GetReflection();
  const auto* body = record.GetDescriptor()->oneof_decl(0);
  return reflection.GetOneofFieldDescriptor(record, body)->name();
}

std::string about(const journal::Began& began) {
  const bool leaves = began.role() == journal::Began::SOURCE;
  std::string text = fmt::format("{} {}", leaves ? "to" : "from", began.peer());
  if (!began.peer_name().empty()) text += fmt::format(" ({})", began.peer_name());
  for (const auto& member : began.members()) text += fmt::format(", process {}", member.pid());
  return text + fmt::format(", boot {}, command: {}", began.boot_id(), began.command());
}

std::string about(const journal::Restored& restored) {
  std::string text;
  for (const auto& member : restored.members()) text += fmt::format("process {}, ", member.pid());
  return text + fmt::format("init {}", restored.init().pid());
}

/// What there is to say beyond the kind.
std::string about(const Record& record) {
  switch (record.body_case()) {
    case Record::kBegan:
      return about(record.began());
    case Record::kKeeperStarted:
      return fmt::format("keeper {}", record.keeper_started().keeper().pid());
    case Record::kRestored:
      return about(record.restored());
    case Record::kAborted:
      return fmt::format("{}: {}", record.aborted().code(), record.aborted().message());
    case Record::kResolved:
      return fmt::format("{} here, says {}", record.resolved().run_here() ? "run" : "discard",
                         record.resolved().operator_name());
    case Record::kFinished:
      if (record.finished().pid() == 0) return record.finished().text();
      return fmt::format("{}, process {}", record.finished().text(), record.finished().pid());
    default:
      return "";
  }
}

void print_text(const Printed& file) {
  fmt::print("{}\n", printable(file.path.native()));
  for (const Record& record : file.contents.records) {
    const std::string text = printable(about(record));
    fmt::print("  {}  {}{}{}\n", time_of(record), kind_of(record), text.empty() ? "" : "  ", text);
  }
  if (file.contents.torn) fmt::print("  torn: an incomplete last record was left out\n");
  if (file.contents.damage) {
    fmt::print("  damaged: {}\n", printable(file.contents.damage->message()));
  }
}

google::protobuf::util::JsonPrintOptions json_options() {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  return options;
}

Status to_struct(const Record& record, Struct& out) {
  std::string text;
  using namespace google::protobuf::util;
  if (!MessageToJsonString(record, &text, json_options()).ok() ||
      !JsonStringToMessage(text, &out).ok()) {
    return Error(Code::kInternal, "a record cannot be put into JSON");
  }
  return {};
}

Status to_struct(const Printed& file, Struct& out) {
  auto& fields = *out.mutable_fields();
  fields["path"].set_string_value(printable(file.path.native()));
  fields["torn"].set_bool_value(file.contents.torn);
  fields["finished"].set_bool_value(!journal::unfinished(file.contents.records));
  fields["damage"].set_string_value(
      file.contents.damage ? printable(file.contents.damage->message()) : "");
  if (const auto* began = journal::last(file.contents.records, Record::kBegan)) {
    fields["migration_id"].set_string_value(journal::id_of(began->began()).to_string());
    fields["role"].set_string_value(std::string(journal::to_string(began->began().role())));
  }
  auto& records = *fields["records"].mutable_list_value();
  for (const Record& record : file.contents.records) {
    GCR_TRY(to_struct(record, *records.add_values()->mutable_struct_value()));
  }
  return {};
}

Status print_json(const std::vector<Printed>& files) {
  Struct everything;
  auto& list = *(*everything.mutable_fields())["journals"].mutable_list_value();
  for (const Printed& file : files) {
    GCR_TRY(to_struct(file, *list.add_values()->mutable_struct_value()));
  }
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(everything, &text, json_options()).ok()) {
    return Error(Code::kInternal, "the journals cannot be put into JSON");
  }
  fmt::print("{}\n", text);
  return {};
}

}  // namespace

int journal_command(const JournalOptions& options) {
  const auto files = read_all(options.paths);
  Status printed = files ? Status() : Status(files.error());
  if (files && options.json) printed = print_json(*files);
  if (files && !options.json) std::ranges::for_each(*files, print_text);
  if (!printed) {
    fmt::print(stderr, "gcr-migrate: {}\n", printable(printed.error().message()));
    return static_cast<int>(ExitCode::kUsage);
  }
  const bool good = std::ranges::none_of(
      *files, [](const Printed& file) { return file.contents.damage.has_value(); });
  return good ? 0 : 1;
}

}  // namespace gcr::cli
