// The agent at the door of an application: any answers of the application, and any content of its
// card. This process plays the application too.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <thread>

#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/send_packet.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::gpu;
using std::chrono::milliseconds;

constexpr milliseconds kDeadline{500};

/// The application's answer to one request: replies with the requested version and sequence number
/// unless the input overrides them, or bytes; with descriptors.
enum ReplyFlag : std::uint8_t { kOtherVersion = 1, kOtherSequence = 2, kNoReply = 4, kMore = 8 };

/// The application's side of the door: answers as long as there is input, then closes; at once if
/// it has sent nothing that the agent could read as an answer, so that the agent does not wait
/// long.
void play_application(UniqueFd socket, Input input) {
  door::DoorRequest request{};
  bool answered = true;
  while (answered && !input.empty() && ::recv(socket.get(), &request, sizeof request, 0) > 0) {
    answered = false;
    for (bool more = true; more && !input.empty();) {
      const auto flags = input.number<std::uint8_t>();
      const std::size_t descriptors = input.number<std::uint8_t>() % (door::kMaxEntries + 1);
      const auto some = input.bytes(input.number<std::uint16_t>());
      more = (flags & kMore) != 0;
      if ((flags & kNoReply) != 0) {
        send_packet(socket.get(), some, descriptors);
        continue;
      }
      door::DoorReply reply{};
      std::memcpy(&reply, some.data(), std::min(some.size(), sizeof reply));
      if ((flags & kOtherVersion) == 0) reply.version = door::kVersion;
      if ((flags & kOtherSequence) == 0) reply.sequence = request.sequence;
      answered = answered || (flags & kOtherSequence) == 0;
      send_packet(socket.get(), std::as_bytes(std::span(&reply, 1)), descriptors);
    }
  }
  ::shutdown(socket.get(), SHUT_RDWR);
}

/// The library's entries in the descriptor table.
UniqueFd make_card(const door::DoorCard& card) {
  UniqueFd file(::memfd_create(door::kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(::pwrite(file.get(), &card, sizeof card, 0) == sizeof card, "a card");
  require(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0,
          "seals");
  return file;
}

void ask(gpu::Door& door, std::uint8_t what) {
  const std::array<std::uint64_t, 3> ids = {1, 2, 3};
  const std::array<gpu::Door::Pages, 1> pages = {{{4096, 4096}}};
  switch (what % 11) {
    case 0:
      return (void)door.hello(kDeadline);
    case 1:
      return (void)door.allocations();
    case 2:
      if (const auto buffers = door.take(ids)) {
        require(buffers->size() == ids.size(), "one descriptor for each");
        for (const auto& buffer : *buffers) require(bool(buffer.descriptor), "a descriptor");
      }
      return;
    case 3:
      return (void)door.hold(milliseconds(1), milliseconds(1));
    case 4:
      return (void)door.detach();
    case 5:
      return (void)door.attach({});
    case 6:
      return (void)door.drop_pages(pages);
    case 7:
      return (void)door.step(milliseconds(1));
    case 8:
      return (void)door.watch_memory();
    case 9:
      if (const auto registered = door.registered_memory()) {
        require(std::ranges::is_sorted(*registered, {}, &gpu::Door::Pages::address), "an order");
      }
      return;
    default:
      return (void)door.resume();
  }
}

std::ptrdiff_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

void converse(Input input) {
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "a door");
  UniqueFd application(ends[0]);
  const UniqueFd agents(ends[1]);
  door::DoorCard card{door::kMagic, door::kVersion, agents.get(), ::getpid(), 0};
  const auto lie = input.number<std::uint8_t>();
  if (lie == 1) card.agent_fd = input.number<std::int32_t>();
  if (lie == 2) card.version = input.number<std::uint32_t>();
  const UniqueFd file = make_card(card);
  auto door = gpu::Door::open(::getpid(), gpu::Door::kLockPatience, kDeadline);
  if (!door) return;
  const auto questions = input.bytes(input.number<std::uint8_t>() % 8);
  std::thread player(play_application, std::move(application), input);
  for (const std::byte what : questions) ask(*door, std::to_integer<std::uint8_t>(what));
  ::shutdown(agents.get(), SHUT_RDWR);
  player.join();
}

void take(Input input) {
  static const UniqueFd made_once(::eventfd(0, EFD_CLOEXEC));
  (void)procfs::own_proc();  // as this
  send_packet(-1, {}, 0);
  const std::ptrdiff_t before = descriptors();
  converse(input);
  require(descriptors() == before, "no descriptor stays");
}

std::string reply(const door::DoorReply& reply, std::uint8_t flags, std::uint8_t descriptors) {
  // Without unused entries.
  const std::size_t size =
      offsetof(door::DoorReply, entries) + sizeof(door::DoorEntry) * reply.count;
  return Script()
      .number(flags)
      .number(descriptors)
      .number(static_cast<std::uint16_t>(size))
      .text({reinterpret_cast<const char*>(&reply), size});
}

}  // namespace

std::vector<std::string> seeds() {
  door::DoorReply good{};
  good.outcome = door::Outcome::kOk;
  good.last = 1;
  good.summary.allocations = 3;
  door::DoorReply three = good;
  three.count = 3;
  for (std::uint64_t i = 0; i < 3; ++i) three.entries[i].id = i + 1;
  door::DoorReply part = three;
  part.last = 0;
  door::DoorReply refused{};
  refused.outcome = door::Outcome::kDriver;
  refused.driver_result = 2;
  refused.last = 1;
  const auto questions = [](std::string_view what) {
    return Script()
        .number<std::uint8_t>(0)
        .number(static_cast<std::uint8_t>(what.size()))
        .text(what);
  };
  using namespace std::string_view_literals;
  return {questions("\0\1\2"sv)
              .text(reply(good, 0, 0))
              .text(reply(part, kMore, 0))
              .text(reply(three, 0, 0))
              .text(reply(three, 0, 3)),
          questions("\3\4\5\6\7"sv)
              .text(reply(good, kOtherSequence | kMore, 0))
              .text(reply(good, 0, 0))
              .text(reply(refused, 0, 0))
              .text(reply(good, kOtherVersion, 1)),
          questions("\x08\x09"sv).text(reply(good, 0, 1)).text(reply(three, 0, 0))};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
