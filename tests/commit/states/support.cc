#include "tests/commit/states/support.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace gcr::commit::test {

StateDir::StateDir() {
  std::string pattern = std::filesystem::temp_directory_path() / "gcr-commit-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

StateDir::~StateDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Record record_of(Record::BodyCase kind, std::string_view event) {
  Record record;
  const auto* field = Record::descriptor()->FindFieldByNumber(kind);
  Record::GetReflection()->MutableMessage(&record, field);
  if (kind == Record::kResolved) {
    record.mutable_resolved()->set_run_here(event == "resolved_run_here");
  }
  return record;
}

std::string_view name_of(Record::BodyCase kind) {
  return Record::descriptor()->FindFieldByNumber(kind)->message_type()->name();
}

std::vector<Record> journal_of(journal::Role role, std::vector<Record> records) {
  Record began;
  began.mutable_began()->set_role(role);
  records.insert(records.begin(), std::move(began));
  return records;
}

}  // namespace gcr::commit::test
