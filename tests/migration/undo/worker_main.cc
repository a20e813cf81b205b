// A worker that the tests kill. It takes a process apart in the same steps as the source, and
// resumes it. It prints a line after each step, and waits forever at the given one.
//
//   recovery_worker move PID STOP KEEPER CRIU SCRATCH    STOP: a step, or "never"
//   recovery_worker dump PID CRIU REAPER SCRATCH STOP    a process without CUDA, into files
//   recovery_worker call PID CALL...                     the driver's calls, each printed before
//   recovery_worker restore CRIU REAPER IMAGES STOP      a dumped process, at the destination
//   recovery_worker recover PID START KEEPER START SCRATCH
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/access/gates.h"
#include "migrate-agent/gpu/device/cuda/driver.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/process/pages/zero_pages.h"
#include "tests/criu/whole_runs.h"

namespace gcr::undo::test {
namespace {

constexpr std::chrono::seconds kPatience{60};

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::cerr << "worker: " << result.error().message() << std::endl;
  std::exit(1);
}
void must(const Status& status) {
  if (status) return;
  std::cerr << "worker: " << status.error().message() << std::endl;
  std::exit(1);
}

struct Arguments {
  pid_t pid;
  std::string stop;
  std::string keeper;
  std::string criu;
  std::filesystem::path scratch;
};

/// Takes the steps of the source, from the export to the undo.
class Move {
 public:
  explicit Move(Arguments arguments)
      : arguments_(std::move(arguments)),
        driver_(must(device::cuda::load())),
        control_(driver_->control(arguments_.pid)),
        door_(must(gpu::Door::open(arguments_.pid))) {}

  void run() {
    must(take_apart());
    must(put_together());
  }

 private:
  procfs::Process process() const { return must(procfs::Process::open(arguments_.pid)); }

  void reached(const std::string& step, const std::string& more = "") {
    std::cout << step << more << std::endl;
    while (step == arguments_.stop) ::pause();
  }

  Status take_over() {
    GCR_ASSIGN(const auto allocations, door_.allocations());
    std::vector<std::uint64_t> ids;
    for (const auto& allocation : allocations) ids.push_back(allocation.local_id);
    GCR_ASSIGN(held_, door_.take(ids));
    return {};
  }

  Status start_keeper() {
    GCR_ASSIGN(keeper::Keeper keeper, keeper::Keeper::start(arguments_.keeper));
    const journal::ProcessId id = keeper.id();
    reached("keeper", " " + std::to_string(id.pid()) + " " + std::to_string(id.start_time()));
    GCR_TRY(gpu::Gates({{door_.pid(), &door_}}).quiesce(kPatience, kPatience));
    reached("gated");
    std::vector<keeper::BufferDescriptor> kept;
    for (const auto& buffer : held_) {
      kept.push_back({{gpu::kRoot, buffer.allocation.local_id}, buffer.descriptor.get()});
    }
    GCR_TRY(keeper.arm(kept));
    reached("armed");
    return {};
  }

  Status take_apart() {
    GCR_TRY(take_over());
    const auto reaper = std::filesystem::path(arguments_.keeper).replace_filename("gcr-reaper");
    GCR_ASSIGN(auto dump, criu::PreparedDump::create({{arguments_.criu}, reaper}, arguments_.pid,
                                                     arguments_.scratch));
    reached("prepared");
    GCR_TRY(start_keeper());
    GCR_TRY(door_.detach());
    reached("detached");
    GCR_TRY(control_->lock(kPatience));
    reached("locked");
    GCR_TRY(control_->checkpoint());
    reached("checkpointed");
    GCR_TRY(process::drop_zero_pages(door_, process()));
    reached("dropped");
    GCR_TRY(dump.run([](const std::string&, UniqueFd content) -> Status {
      char bytes[65536];
      while (::read(content.get(), bytes, sizeof(bytes)) > 0) {
      }
      return {};
    }));
    reached("dumped");
    return {};
  }

  Status put_together() {
    GCR_TRY(criu::resume_stopped(process()));
    reached("resumed");
    GCR_TRY(control_->restore({}));
    reached("restored");
    GCR_TRY(control_->unlock());
    reached("unlocked");
    gpu::LocalDescriptors descriptors;
    for (auto& buffer : held_) {
      descriptors.emplace_back(buffer.allocation.local_id, std::move(buffer.descriptor));
    }
    GCR_TRY(door_.offer(std::move(descriptors)));
    reached("offered");
    GCR_TRY(door_.attach({}));
    reached("attached");
    GCR_TRY(door_.resume());
    reached("done");
    return {};
  }

  const Arguments arguments_;
  const std::shared_ptr<const device::Driver> driver_;
  const std::unique_ptr<device::Control> control_;
  gpu::Door door_;
  std::vector<gpu::ExportedAllocation> held_;
};

void call(pid_t pid, const std::vector<std::string>& names) {
  const auto control = must(device::cuda::load())->control(pid);
  const std::map<std::string, std::function<Status()>> calls{
      {"lock", [&] { return control->lock(kPatience); }},
      {"checkpoint", [&] { return control->checkpoint(); }},
      {"restore", [&] { return control->restore({}); }},
      {"unlock", [&] { return control->unlock(); }},
  };
  for (const std::string& name : names) {
    std::cout << name << std::endl;
    must(calls.at(name)());
  }
  std::cout << "done" << std::endl;
  for (;;) ::pause();
}

/// Dumps the process into files.
void dump(pid_t pid, const criu::Command& criu, const std::string& scratch,
          const std::string& stop) {
  auto prepared = must(criu::PreparedDump::create(criu, pid, scratch));
  std::cout << "prepared" << std::endl;
  while (stop == "prepared") ::pause();
  must(prepared.run(criu::to_files(scratch)));
  std::cout << "dumped" << std::endl;
  for (;;) ::pause();
}

std::string describe(pid_t pid) {
  return " " + std::to_string(pid) + " " +
         std::to_string(procfs::read_stat(pid).value().start_time);
}

/// Restores a process and leaves it stopped, or dies before that.
void restore(const std::string& criu, const std::string& reaper, const std::string& images,
             const std::string& stop) {
  std::cout << "restoring" << std::endl;
  criu::RestoredTree tree = must(criu::restore({{criu}, reaper}, images));
  std::cout << "restored" << describe(tree.pid()) << describe(tree.init().pid()) << std::endl;
  while (stop == "restored") ::pause();
  tree.release();
  std::cout << "released" << std::endl;
  for (;;) ::pause();
}

journal::ProcessId process_id(const std::string& pid, const std::string& start_time) {
  journal::ProcessId id;
  id.set_pid(std::stoi(pid));
  id.set_start_time(std::stoull(start_time));
  return id;
}

void recover(const std::vector<std::string>& words) {
  std::cout << "begun" << std::endl;
  const Lost lost{.members = {process_id(words[1], words[2])},
                  .keeper = process_id(words[3], words[4]),
                  .detaching = true,
                  .scratch = words[5],
                  .group = {},
                  .homes = {}};
  must(bring_back(lost));
  std::cout << "done" << std::endl;
}

}  // namespace
}  // namespace gcr::undo::test

int main(int argc, char** argv) {
  using namespace gcr::undo::test;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 6 && words[0] == "move") {
    Move({std::stoi(words[1]), words[2], words[3], words[4], words[5]}).run();
  } else if (words.size() == 6 && words[0] == "recover") {
    recover(words);
  } else if (words.size() == 6 && words[0] == "dump") {
    dump(std::stoi(words[1]), {{words[2]}, words[3]}, words[4], words[5]);
  } else if (words.size() == 5 && words[0] == "restore") {
    restore(words[1], words[2], words[3], words[4]);
  } else if (words.size() >= 3 && words[0] == "call") {
    call(std::stoi(words[1]), {words.begin() + 2, words.end()});
  } else {
    return 2;
  }
  return 0;
}
