#include "tests/commit/journal/support.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gcr::journal::test {

StateDir::StateDir(const std::filesystem::path& parent) {
  std::string pattern = parent / "gcr-journal-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

StateDir::~StateDir() { std::filesystem::remove_all(path_); }

Began source_began() {
  Began began;
  began.set_peer("node2:7411");
  began.add_members()->set_pid(4711);
  began.mutable_members(0)->set_start_time(815);
  began.set_command("python3 serve.py");
  return began;
}

Record keeper_started(int pid) {
  Record record;
  record.mutable_keeper_started()->mutable_keeper()->set_pid(pid);
  return record;
}

Record committed() {
  Record record;
  record.mutable_committed();
  return record;
}

Record aborted(const std::string& message) {
  Record record;
  record.mutable_aborted()->set_code("io");
  record.mutable_aborted()->set_message(message);
  return record;
}

Record finished() {
  Record record;
  record.mutable_finished()->set_text("the process runs at node2");
  return record;
}

Journal begin(const std::filesystem::path& state_dir, const Uuid& migration,
              const std::string& ordered_by) {
  Began began = source_began();
  began.set_ordered_by(ordered_by);
  auto journal = Journal::create(state_dir, migration, Began::SOURCE, std::move(began));
  if (!journal) throw std::runtime_error(journal.error().message());
  return std::move(*journal);
}

std::vector<std::byte> bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_bytes(const std::filesystem::path& file, std::span<const std::byte> bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

void in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

pid_t start_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  while (true) ::pause();
}

void kill_and_reap(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace gcr::journal::test
