// The memory of a job's stopped processes in one dump: what CRIU leaves out, and what was sent.
//
// CRIU asks when it has stopped all processes (choose()). From then on nothing writes to the memory
// that it leaves out: CRIU itself writes only to what it maps, and for moments to code. So what the
// rounds did not make true is sent at once, while CRIU goes on with the dump. When the
// dump is over, CRIU's own list of the pages that were left out is compared with what was sent
// (take()), and the rest follows.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "migrate-agent/criu/memory/left_out_memory.h"
#include "migrate-agent/migration/source/changed_memory.h"
#include "migrate-agent/process/pages/private_memory.h"
#include "migrate-agent/process/pages/process_memory.h"
#include "migrate-agent/process/pages/shared_memory.h"
#include "migrate-agent/transfer/images/sink.h"
#include "src/base/address_ranges.h"
#include "src/base/read_memory.h"

namespace gcr::migration {

/// The pages of each shared memory, by inode.
using SharedPages = std::map<std::uint32_t, AddressRanges>;

/// Sends shared memories, and gives the pages that each has. Writes to them cannot be tracked: all
/// pages are read. `last`: see images::Sink::take_memory().
Result<SharedPages> send_shared_memory(images::Sink& sink,
                                       const std::vector<process::SharedMemory>& memories,
                                       bool last);

/// For one dump of the tree under `root`. choose() runs on CRIU's thread, all else on the caller's.
class StoppedMemory : public criu::SeparateMemory {
 public:
  /// `known` is what the rounds have learnt. `changed` and `sink` outlive this object, which
  /// outlives CRIU's use of it. Its destruction waits for what is being sent.
  StoppedMemory(pid_t root, std::map<pid_t, process::KnownMemory> known,
                const ChangedMemory& changed, process::MayMove may_move, images::Sink& sink);
  StoppedMemory(const StoppedMemory&) = delete;
  StoppedMemory& operator=(const StoppedMemory&) = delete;
  ~StoppedMemory() override { wait_until_sent(); }

  /// Opens the memory of all processes, for all further reads. Before it is asked whether they may
  /// be moved: what a process executes after that is not read. May be called again.
  Status open();

  /// Private memory of one process alone, and shared memory that can be read; what cannot be read
  /// goes through CRIU. Begins to send it.
  criu::LeftOut choose(pid_t task) override;

  /// Sends those of `pages`, all that a task has, that neither the rounds nor choose() made true.
  /// Errors of reading and sending. With the fault point source.memory.check armed, compares all
  /// pages with what was sent: kDataLoss if one was written and the kernel did not know it.
  Status take(const std::string& name, pid_t task, const AddressRanges& pages) override;

  /// After the dump: sends which pages each shared memory had.
  Status send_shared_maps();

 private:
  void begin_shared();
  Result<AddressRanges> send_changed(pid_t task, const AddressRanges& mappings) const;
  Result<ReadMemory> reader_of(pid_t task) const;
  void wait_until_sent() const;

  const pid_t root_;
  process::PrivateMemory memory_;
  const ChangedMemory& changed_;
  const process::MayMove may_move_;
  images::Sink& sink_;
  const bool check_all_;
  std::map<pid_t, ReadMemory> opened_;
  std::map<pid_t, AddressRanges> mappings_;  ///< that CRIU leaves out, of each task
  std::map<pid_t, std::shared_future<Result<AddressRanges>>> sent_;  ///< pages of them
  std::vector<criu::launch::SharedMemoryId> shared_;                 ///< that CRIU leaves out
  std::shared_future<Result<SharedPages>> shared_sent_;
};

}  // namespace gcr::migration
