// One table of exit statuses: --help and the documentation agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "tests/src/cli/process.h"

namespace gcr::cli::test {
namespace {

/// Status, then name and meaning.
using Table = std::map<int, std::string>;

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(std::string(GCR_SOURCE_DIR) + "/" + path).rdbuf();
  EXPECT_NE(text.str(), "") << path;
  return text.str();
}

/// "  3  refused   what it means", and further lines with a deeper indentation.
Table table_of_help() {
  const std::string help = run_cli({"--help"}).out;
  const std::regex begin("^  ([0-9]+)  ([a-z-]+) +(.*)$"), more("^ {15,}(\\S.*)$");
  Table table;
  std::istringstream lines(help.substr(help.find("Exit status:")));
  std::string line;
  std::getline(lines, line);
  for (int status = -1; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, begin)) {
      status = std::stoi(match[1]);
      table[status] = match[2].str() + ": " + match[3].str();
    } else if (status >= 0 && std::regex_match(line, match, more)) {
      table[status] += " " + match[1].str();
    } else {
      break;
    }
  }
  return table;
}

/// "| 3 | refused | what it means |".
Table table_of_page(const std::string& path) {
  const std::regex row("^\\| ([0-9]+) \\| ([a-z-]+) \\| (.*) \\|$");
  Table table;
  std::istringstream lines(content(path));
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    table[std::stoi(match[1])] = match[2].str() + ": " + match[3].str();
  }
  return table;
}

TEST(ExitCodes, HelpListsEveryStatus) {
  const Table table = table_of_help();
  ASSERT_EQ(table.size(), 10U);
  EXPECT_EQ(table.begin()->first, 0);
  EXPECT_EQ(table.rbegin()->first, 9);
}

TEST(ExitCodes, DocumentationListsTheSame) {
  EXPECT_EQ(table_of_page("docs/exit-codes.md"), table_of_help());
}

TEST(ExitCodes, ManualPageListsEach) {
  const std::string page = content("docs/man/gcr-migrate.1");
  const auto begin = page.find(".Sh EXIT STATUS"), end = page.find(".El", begin);
  ASSERT_NE(end, std::string::npos);
  const std::string list = page.substr(begin, end - begin);
  const std::regex item("\n\\.It ([0-9]+)\n");
  std::vector<int> listed, known;
  for (auto at = std::sregex_iterator(list.begin(), list.end(), item); at != std::sregex_iterator();
       ++at) {
    listed.push_back(std::stoi((*at)[1]));
  }
  for (const auto& row : table_of_help()) known.push_back(row.first);
  EXPECT_EQ(listed, known);
}

}  // namespace
}  // namespace gcr::cli::test
