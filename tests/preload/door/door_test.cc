// The door from end to end: an agent reads the state, detaches the memory and attaches it again.
#include "migrate-agent/gpu/access/door/door.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "preload/door_protocol.h"
#include "tests/preload/door/door_helpers.h"
#include "tests/support/threads.h"

namespace gcr::test {
namespace {

class DoorTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_.ask("init");
    context_ = subject_.value("primary 0");
  }

  std::uint64_t filled_buffer(std::uint64_t bytes, int value) {
    const std::uint64_t address = subject_.value(command("alloc", bytes));
    subject_.ask(command("fill", address, bytes, value));
    return address;
  }
  std::uint64_t sum(std::uint64_t address, std::uint64_t bytes) {
    return subject_.value(command("sum", address, bytes));
  }

  Subject subject_;
  std::uint64_t context_ = 0;
};

TEST_F(DoorTest, SummaryListsTheAllocations) {
  filled_buffer(3 * kMiB, 1);
  subject_.ask("alloc 100");
  gpu::Door door = door_of(subject_);
  const door::Summary summary = good(door.hello());
  EXPECT_EQ(summary.tracked_bytes, 6 * kMiB);
  EXPECT_EQ(summary.untracked_bytes, 0u);
  EXPECT_EQ(summary.allocations, 2u);
  EXPECT_EQ(summary.contexts, 1u);
  EXPECT_EQ(summary.blockers, 0u);
  EXPECT_EQ(summary.fallbacks, 0u);
  EXPECT_EQ(summary.gate_closed, 0u);
  EXPECT_EQ(summary.detached, 0u);
  std::string name;
  std::ifstream("/proc/" + std::to_string(subject_.pid()) + "/task/" +
                std::to_string(summary.door_tid) + "/comm") >>
      name;
  EXPECT_EQ(name, "gcr-door");
}

TEST_F(DoorTest, LongInventoryIsCompleteAndOrdered) {
  constexpr std::size_t kBuffers = 2 * door::kMaxEntries - 10;
  for (std::size_t i = 0; i < kBuffers; ++i) subject_.ask(command("alloc", 2 * kMiB));
  gpu::Door door = door_of(subject_);
  const auto entries = good(door.inventory());
  ASSERT_EQ(entries.size(), kBuffers);
  for (std::size_t i = 1; i < entries.size(); ++i) EXPECT_LT(entries[i - 1].id, entries[i].id);
  for (const door::DoorEntry& entry : entries) {
    EXPECT_EQ(entry.size_bytes, 2 * kMiB);
    EXPECT_EQ(entry.flags, door::kMappedByLibrary);
  }
}

TEST_F(DoorTest, TenDetachesAndAttachesKeepEveryByte) {
  std::map<std::uint64_t, std::uint64_t> sums;
  for (int i = 0; i < 66; ++i) {
    const std::uint64_t address = filled_buffer(2 * kMiB, i);
    sums[address] = sum(address, 2 * kMiB);
  }
  for (int cycle = 0; cycle < 10; ++cycle) {
    gpu::Door door = door_of(subject_);
    const auto before = good(door.inventory());
    detach_and_attach(door);
    const auto after = good(door.inventory());
    ASSERT_EQ(before.size(), after.size());
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i].id, after[i].id);
    const auto some = std::next(sums.begin(), cycle * 6);
    EXPECT_EQ(sum(some->first, 2 * kMiB), some->second);
    subject_.ask(command("fill", some->first, 2 * kMiB, 100 + cycle));
    some->second = sum(some->first, 2 * kMiB);
  }
  for (const auto& [address, expected] : sums) EXPECT_EQ(sum(address, 2 * kMiB), expected);
}

TEST_F(DoorTest, DetachedMemoryIsHeldOnlyByTheAgent) {
  filled_buffer(16 * kMiB, 5);
  const std::uint64_t with_buffer = subject_.ask("info").at(0);
  gpu::Door door = door_of(subject_);
  const auto descriptors_before = subject_.ask("descriptors");
  Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  EXPECT_LE(subject_.ask("descriptors").at(0), descriptors_before.at(0));
  good(door.attach(std::move(held)));
  good(door.resume());
  EXPECT_EQ(subject_.ask("info").at(0), with_buffer);
}

TEST_F(DoorTest, FreeWorksAfterAMove) {
  const std::uint64_t before = subject_.ask("info").at(0);
  const std::uint64_t address = filled_buffer(16 * kMiB, 5);
  {
    gpu::Door door = door_of(subject_);
    detach_and_attach(door);
  }
  subject_.ask(command("free", address));
  EXPECT_EQ(subject_.ask("info").at(0), before);
}

TEST_F(DoorTest, DescriptorsMayExceedTheProgramsLimit) {
  Subject small{with_descriptor_limit(64)};
  small.ask("init");
  small.ask("primary 0");
  std::uint64_t address = 0;
  for (int i = 0; i < 40; ++i) address = small.value(command("alloc", 2 * kMiB));
  gpu::Door door = door_of(small);
  for (int cycle = 0; cycle < 3; ++cycle) {
    detach_and_attach(door);
    small.ask(command("sum", address, 2 * kMiB));
  }
}

TEST_F(DoorTest, WorkContinuesAfterAnAttach) {
  const std::uint64_t address = filled_buffer(2 * kMiB, 0);
  subject_.ask(command("work", context_, address));
  gpu::Door door = door_of(subject_);
  for (int cycle = 0; cycle < 5; ++cycle) detach_and_attach(door);
  const auto worked = subject_.ask("rest");
  ASSERT_EQ(worked.size(), 2u);
  EXPECT_EQ(worked[1], 0u) << "calls failed";
  const std::uint64_t expected = filled_buffer(2 * kMiB, static_cast<int>(worked[0] % 256));
  EXPECT_EQ(sum(address, 2 * kMiB), sum(expected, 2 * kMiB));
}

TEST_F(DoorTest, DetachNeedsAClosedGate) {
  filled_buffer(2 * kMiB, 1);
  gpu::Door door = door_of(subject_);
  const Held held = take_over(door);
  const Status detached = door.detach();
  ASSERT_FALSE(detached);
  EXPECT_EQ(detached.error().code(), Code::kRefused);
  EXPECT_NE(detached.error().message().find("the gate is open"), std::string::npos);
}

TEST_F(DoorTest, DetachNeedsAllDescriptorsAtTheAgent) {
  const std::uint64_t address = filled_buffer(2 * kMiB, 1);
  {
    gpu::Door earlier = door_of(subject_);
    take_over(earlier);
  }
  gpu::Door door = door_of(subject_);
  good(quiesce(door, kLong, kNoLease));
  const Status detached = door.detach();
  ASSERT_FALSE(detached);
  EXPECT_EQ(detached.error().code(), Code::kNotFound);
  good(door.resume());
  subject_.ask(command("sum", address, 2 * kMiB));
}

TEST_F(DoorTest, AttachingWaitsForTheLastDescriptor) {
  const std::uint64_t first = filled_buffer(2 * kMiB, 1);
  filled_buffer(2 * kMiB, 2);
  const std::uint64_t expected = sum(first, 2 * kMiB);
  gpu::Door door = door_of(subject_);
  Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  Held rest;
  rest.push_back(std::move(held.back()));
  held.pop_back();
  const Status attached = door.attach(std::move(held));
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error().code(), Code::kNotFound);
  const Status opened = door.resume();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kRefused);
  good(door.attach(std::move(rest)));
  good(door.resume());
  EXPECT_EQ(sum(first, 2 * kMiB), expected);
}

TEST_F(DoorTest, WrongDescriptorIsRefused) {
  const std::uint64_t address = filled_buffer(2 * kMiB, 1);
  const std::uint64_t expected = sum(address, 2 * kMiB);
  gpu::Door door = door_of(subject_);
  Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd writing(ends[1]);
  Held wrong;
  wrong.emplace_back(held.front().first, UniqueFd(ends[0]));
  EXPECT_FALSE(door.attach(std::move(wrong)));
  EXPECT_EQ(good(door.hello()).detached, 1u);
  good(door.attach(std::move(held)));
  good(door.resume());
  EXPECT_EQ(sum(address, 2 * kMiB), expected);
}

/// The software GPU's memory is a file.
void copy(const UniqueFd& to, const UniqueFd& from, std::uint64_t bytes) {
  std::string content(bytes, '\0');
  ASSERT_EQ(::pread(from.get(), content.data(), bytes, 0), static_cast<ssize_t>(bytes));
  ASSERT_EQ(::pwrite(to.get(), content.data(), bytes, 0), static_cast<ssize_t>(bytes));
}

TEST_F(DoorTest, AttachMayCopyIntoNewMemory) {
  const std::uint64_t first = filled_buffer(2 * kMiB, 1);
  const std::uint64_t second = filled_buffer(6 * kMiB, 2);
  const std::uint64_t expected = sum(first, 2 * kMiB) + sum(second, 6 * kMiB);
  gpu::Door door = door_of(subject_);
  Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  std::vector<std::uint64_t> ids;
  for (const auto& [id, descriptor] : held) ids.push_back(id);
  good(door.offer(std::move(held)));
  for (const gpu::Replacement& one : good(door.replace(ids))) {
    copy(one.made, one.given, one.allocation.size_bytes);
  }
  EXPECT_FALSE(door.replace(ids)) << "nothing is offered any more";
  good(door.attach({}));
  good(door.resume());
  EXPECT_EQ(sum(first, 2 * kMiB) + sum(second, 6 * kMiB), expected);
  detach_and_attach(door);
  EXPECT_EQ(sum(first, 2 * kMiB) + sum(second, 6 * kMiB), expected);
}

TEST_F(DoorTest, DescriptorGivenAfterTheCopyReplacesIt) {
  const std::uint64_t address = filled_buffer(2 * kMiB, 1);
  const std::uint64_t expected = sum(address, 2 * kMiB);
  gpu::Door door = door_of(subject_);
  Held held = take_over(door);
  const std::vector<std::uint64_t> ids{held.front().first};
  EXPECT_FALSE(door.replace(ids)) << "it is not detached";
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  EXPECT_FALSE(door.replace(ids)) << "nothing was offered";
  EXPECT_FALSE(door.replace(std::vector<std::uint64_t>{4711}));
  good(door.offer(std::move(held)));
  Held given;
  given.emplace_back(ids[0], std::move(good(door.replace(ids)).front().given));
  good(door.attach(std::move(given)));
  good(door.resume());
  EXPECT_EQ(sum(address, 2 * kMiB), expected);
}

TEST_F(DoorTest, UnknownAllocationsAreNotFound) {
  gpu::Door door = door_of(subject_);
  const std::vector<std::uint64_t> ids{4711};
  const auto exported = door.take(ids);
  ASSERT_FALSE(exported);
  EXPECT_EQ(exported.error().code(), Code::kNotFound);
}

TEST_F(DoorTest, ManagedMemoryIsABlockerUntilFreed) {
  filled_buffer(2 * kMiB, 1);
  const std::uint64_t managed = subject_.value(command("managed", 4 * kMiB));
  gpu::Door door = door_of(subject_);
  EXPECT_EQ(good(door.hello()).blockers, door::kManagedMemory);
  const Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  const Status detached = door.detach();
  ASSERT_FALSE(detached);
  EXPECT_NE(detached.error().message().find("managed memory"), std::string::npos);
  good(door.resume());
  subject_.ask(command("free", managed));
  EXPECT_EQ(good(door.hello()).blockers, 0u);
}

TEST_F(DoorTest, ManagedVariablesAreABlockerUntilUnloaded) {
  filled_buffer(2 * kMiB, 1);
  gpu::Door door = door_of(subject_);
  for (const int of_library : {0, 1}) {
    const auto variable = subject_.ask(command("managed_variable", of_library));
    EXPECT_EQ(good(door.hello()).blockers, door::kManagedMemory);
    subject_.ask(command("unload", variable.at(1), of_library));
    EXPECT_EQ(good(door.hello()).blockers, 0u);
  }
}

// ---- finding the door ----

TEST_F(DoorTest, SecondAgentIsRefusedUntilTheFirstLeaves) {
  {
    const gpu::Door first = door_of(subject_);
    const auto second = gpu::Door::open(subject_.pid());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kUnavailable);
  }
  EXPECT_TRUE(gpu::Door::open(subject_.pid()));
}

TEST_F(DoorTest, AgentThatLeavesSoonIsWaitedFor) {
  std::optional<gpu::Door> looks = door_of(subject_);
  std::atomic<pid_t> tid = 0;
  auto second = std::async(std::launch::async, [&] {
    tid = ::gettid();
    return gpu::Door::open(subject_.pid(), std::chrono::minutes(5));
  });
  while (tid == 0) std::this_thread::yield();
  wait_until_in(tid, SYS_clock_nanosleep);  // between two tries
  looks.reset();
  EXPECT_TRUE(second.get());
}

TEST_F(DoorTest, DoorIsFoundEvenWhileItIsInUse) {
  Subject plain{without_library()};
  plain.ask("descriptors");
  const gpu::Door held = door_of(subject_);
  EXPECT_TRUE(gpu::has_door(subject_.pid()));
  EXPECT_FALSE(gpu::has_door(plain.pid()));
  EXPECT_FALSE(gpu::has_door(0x3fffffff));
}

TEST(FindDoorTest, MissingProcessIsNotFound) {
  const auto door = gpu::Door::open(0x3fffffff);
  ASSERT_FALSE(door);
  EXPECT_EQ(door.error().code(), Code::kNotFound);
  EXPECT_NE(door.error().message().find("there is no process"), std::string::npos);
}

TEST(FindDoorTest, MissingLibraryAndUnusedCudaAreDistinguished) {
  Subject plain{without_library()};
  plain.ask("descriptors");
  const auto none = gpu::Door::open(plain.pid());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kNotFound);
  EXPECT_NE(none.error().message().find("gcr-migrate run"), std::string::npos);

  Subject idle;
  idle.ask("descriptors");
  const auto not_yet = gpu::Door::open(idle.pid());
  ASSERT_FALSE(not_yet);
  EXPECT_EQ(not_yet.error().code(), Code::kNotFound);
  EXPECT_NE(not_yet.error().message().find("has initialised neither CUDA nor HIP"),
            std::string::npos);
}

TEST(FindDoorTest, OtherProtocolVersionIsNamed) {
  const UniqueFd card(::memfd_create(door::kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const door::DoorCard content{door::kMagic, door::kVersion + 1, 0, ::getpid(), 0};
  ASSERT_EQ(::write(card.get(), &content, sizeof(content)), static_cast<ssize_t>(sizeof(content)));
  ASSERT_EQ(::fcntl(card.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  const auto door = gpu::Door::open(::getpid());
  ASSERT_FALSE(door);
  EXPECT_EQ(door.error().code(), Code::kUnsupported);
}

TEST(FindDoorTest, ProcessInAPidNamespaceIsReached) {
  Subject inside{in_new_pid_namespace()};
  inside.ask("init");
  inside.ask("primary 0");
  const std::uint64_t address = inside.value(command("alloc", 2 * kMiB));
  gpu::Door door = door_of(inside);
  EXPECT_LT(good(door.hello()).door_tid, 100);
  detach_and_attach(door);
  inside.ask(command("sum", address, 2 * kMiB));
}

TEST_F(DoorTest, EndedProcessIsReported) {
  gpu::Door door = door_of(subject_);
  ASSERT_EQ(::kill(subject_.pid(), SIGKILL), 0);
  const auto summary = door.hello();
  ASSERT_FALSE(summary);
  EXPECT_EQ(summary.error().code(), Code::kNotFound);
}

// ---- bad packets ----

/// The agent's end, without the protocol rules of agent::Door.
UniqueFd raw_socket(pid_t pid) {
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (target.string().find(door::kMemfdName) == std::string::npos) continue;
    door::DoorCard card{};
    std::ifstream(entry.path(), std::ios::binary)
        .read(reinterpret_cast<char*>(&card), sizeof(card));
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), card.agent_fd, 0)));
  }
  return UniqueFd();
}

door::DoorRequest valid_request(door::Op op) {
  door::DoorRequest request{};
  request.version = door::kVersion;
  request.op = op;
  request.session = 1;
  return request;
}

TEST_F(DoorTest, GarbageIsRefused) {
  const std::uint64_t address = filled_buffer(2 * kMiB, 9);
  const UniqueFd socket = raw_socket(subject_.pid());
  ASSERT_TRUE(socket);
  std::vector<std::string> packets;
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, sizeof(door::DoorRequest) - 1,
                                 sizeof(door::DoorRequest) + 1, std::size_t{60000}}) {
    packets.emplace_back(size, '\xa5');
  }
  const auto add = [&](const door::DoorRequest& request) {
    packets.emplace_back(reinterpret_cast<const char*>(&request), sizeof(request));
  };
  door::DoorRequest request = valid_request(door::Op::kHello);
  request.version = 99;
  add(request);
  request = valid_request(static_cast<door::Op>(77));
  add(request);
  request = valid_request(door::Op::kExport);
  request.count = door::kMaxEntries + 1;
  add(request);
  request = valid_request(door::Op::kHello);
  request.session = 0;
  add(request);
  add(valid_request(door::Op::kDetach));
  add(valid_request(door::Op::kAttach));
  request = valid_request(door::Op::kOffer);
  request.count = 1;  // without a descriptor
  add(request);
  for (const std::string& packet : packets) {
    ASSERT_EQ(::send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(packet.size()));
    door::DoorReply reply{};
    ASSERT_EQ(::recv(socket.get(), &reply, sizeof(reply), 0), static_cast<ssize_t>(sizeof(reply)));
    EXPECT_EQ(reply.outcome, door::Outcome::kBadRequest);
    EXPECT_EQ(reply.summary.detached, 0u);
  }
  gpu::Door door = door_of(subject_);
  detach_and_attach(door);
  subject_.ask(command("sum", address, 2 * kMiB));
}

TEST_F(DoorTest, UnexpectedDescriptorsAreClosed) {
  const auto before = subject_.ask("descriptors");
  const UniqueFd socket = raw_socket(subject_.pid());
  door::DoorRequest request = valid_request(door::Op::kHello);
  iovec piece{&request, sizeof(request)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  const int standard_error = STDERR_FILENO;
  std::memcpy(CMSG_DATA(part), &standard_error, sizeof(int));
  ASSERT_EQ(::sendmsg(socket.get(), &message, 0), static_cast<ssize_t>(sizeof(request)));
  door::DoorReply reply{};
  ASSERT_EQ(::recv(socket.get(), &reply, sizeof(reply), 0), static_cast<ssize_t>(sizeof(reply)));
  EXPECT_EQ(reply.outcome, door::Outcome::kOk);
  EXPECT_EQ(subject_.ask("descriptors"), before);
}

TEST_F(DoorTest, UnreadRepliesDoNotReachTheNextAgent) {
  filled_buffer(2 * kMiB, 1);
  {
    const UniqueFd socket = raw_socket(subject_.pid());
    door::DoorRequest request = valid_request(door::Op::kExport);
    request.count = 1;
    request.ids[0] = 1;
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(::send(socket.get(), &request, sizeof(request), 0),
                static_cast<ssize_t>(sizeof(request)));
    }
  }
  gpu::Door door = door_of(subject_);
  EXPECT_EQ(good(door.hello()).allocations, 1u);
  detach_and_attach(door);
}

}  // namespace
}  // namespace gcr::test
