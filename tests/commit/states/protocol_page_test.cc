// proto/PROTOCOL.md shows the tables of the commit, exactly as the code has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/commit/states/support.h"

namespace gcr::commit::test {
namespace {

std::string trimmed(std::string text) {
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(trimmed(part));
  return parts;
}

/// The rows "| in | event: why | record | to |" below this heading, each as "in event record to".
std::set<std::string> rows_below(const std::string& heading) {
  std::ifstream page(GCR_PROTOCOL_PAGE);
  std::set<std::string> rows;
  bool below = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("#")) below = line == heading;
    const auto cells = split(line, '|');
    if (!below || cells.size() != 5 || cells[1] == "in" || cells[1] == "(none)") continue;
    if (cells[1].starts_with("-")) continue;
    for (const std::string& from : split(cells[1], ',')) {
      rows.insert(from + " " + split(cells[2], ':').front() + " " + cells[3] + " " + cells[4]);
    }
  }
  return rows;
}

template <class Role>
std::set<std::string> rows_of_code() {
  std::set<std::string> rows;
  for (const auto& row : Role::rows()) {
    std::ostringstream text;
    text << to_string(row.from) << " " << to_string(row.event) << " " << name_of(row.record) << " "
         << to_string(row.to);
    rows.insert(text.str());
  }
  return rows;
}

TEST(ProtocolPage, ShowsTheSourcesTable) {
  EXPECT_THAT(rows_below("### States of the source"),
              ::testing::ContainerEq(rows_of_code<Source>()));
}

TEST(ProtocolPage, ShowsTheDestinationsTable) {
  EXPECT_THAT(rows_below("### States of the destination"),
              ::testing::ContainerEq(rows_of_code<Destination>()));
}

}  // namespace
}  // namespace gcr::commit::test
