#include "tests/e2e/checkpoints.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::e2e {
namespace {

std::vector<std::string> joined_words(std::vector<std::string> words,
                                      const std::vector<std::string>& options) {
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

}  // namespace

std::map<std::string, std::string> last_line(const CommandResult& result) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(result.out);
  std::string line;
  for (std::string next; std::getline(lines, next);) line = next;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    fields[word.substr(0, equals)] = equals == word.npos ? "" : word.substr(equals + 1);
  }
  return fields;
}

std::uint64_t number(const std::map<std::string, std::string>& fields, const std::string& name) {
  const auto found = fields.find(name);
  return found == fields.end() ? UINT64_MAX : std::stoull(found->second);
}

void end(App& app) {
  app.program().signal(SIGKILL);
  ASSERT_TRUE(app.program().wait(kPatience));
}

/// The init of its namespace, its parent, ends after it.
void end(pid_t pid) {
  ASSERT_GT(pid, 1);
  const pid_t init = std::stoi(procfs::status_field(std::to_string(pid), "PPid"));
  ASSERT_GT(init, 1);
  const UniqueFd gone(static_cast<int>(::syscall(SYS_pidfd_open, init, 0)));
  ASSERT_TRUE(gone);
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  pollfd ended{gone.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&ended, 1, static_cast<int>(kPatience.count())), 1);
}

CommandResult CheckpointTest::checkpoint(pid_t pid, const std::vector<std::string>& options) const {
  return hosts_.order(Host::kA,
                      joined_words({"checkpoint", std::to_string(pid), store()}, options));
}

CommandResult CheckpointTest::restore(Host host, const std::vector<std::string>& options) const {
  return hosts_.order(host, joined_words({"restore", store_at(host)}, options));
}

CommandResult CheckpointTest::ask_store(const std::string& question,
                                        const std::vector<std::string>& options) const {
  const auto words = joined_words(
      {hosts_.variable("GCR_CLI"), question, store(), "--ca", hosts_.directory() + "/tls/ca.crt"},
      options);
  return run(hosts_.on_host(Host::kA, words), kPatience);
}

void CheckpointTest::expect_good() const {
  const CommandResult verified = ask_store("verify");
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
}

void CheckpointTest::expect_counter(Host host, const std::vector<std::string>& options,
                                    int answer) const {
  const CommandResult restored = restore(host, options);
  ASSERT_EQ(restored.exit_code, 0) << restored.out << restored.err;
  const UdpClient client(hosts_.variable("NS", Host::kA));
  EXPECT_EQ(ask_counter(client, hosts_, host), answer);
  EXPECT_TRUE(counter_is_intact(client, hosts_, host));
  end(static_cast<pid_t>(number(last_line(restored), "pid")));
}

std::vector<std::string> CheckpointTest::files() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store())) {
    if (entry.is_regular_file()) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> CheckpointTest::checkpoints() const {
  std::vector<std::string> found = files();
  std::erase_if(found, [](const std::string& file) { return !file.ends_with(".checkpoint"); });
  return found;
}

}  // namespace gcr::e2e
