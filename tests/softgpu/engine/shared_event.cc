#include "tests/softgpu/engine/shared_event.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "tests/softgpu/engine/mapping.h"

namespace gcr::softgpu {
namespace {

/// The content of a handle.
struct Card {
  std::uint32_t uid;
  std::int32_t pid;
  std::uint64_t number;
  std::uint64_t place;

  std::string path() const {
    return fmt::format("/dev/shm/softgpu.shm.{:x}.{:x}.{:x}", uid, pid, number);
  }
};
static_assert(sizeof(Card) <= kIpcHandleBytes);

UniqueMapping map_file(const UniqueFd& file) {
  if (!file) return UniqueMapping();
  void* at = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return at == MAP_FAILED ? UniqueMapping() : UniqueMapping(at, kPageBytes);
}

}  // namespace

struct SharedEvent::File {
  static constexpr std::uint64_t kPlaces = kPageBytes / sizeof(Slot);

  Card card;
  UniqueMapping mapping;

  File(const Card& card, UniqueMapping mapping) : card(card), mapping(std::move(mapping)) {}
  ~File() {
    if (card.pid == ::getpid()) ::unlink(card.path().c_str());
  }
  Slot& slot(std::uint64_t place) const {
    return reinterpret_cast<Slot*>(mapping.bytes().data())[place];
  }
  /// kPlaces if all are taken.
  std::uint64_t take() const {
    std::uint64_t place = 0;
    while (place < kPlaces && slot(place).taken.exchange(1) != 0) ++place;
    return place;
  }

  static std::shared_ptr<File> create() {
    Card card{::getuid(), ::getpid(), 0, 0};
    UniqueFd file;
    do {  // above the numbers of an earlier process with this PID
      ++card.number;
      file.reset(::open(card.path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    } while (!file && errno == EEXIST);
    if (!file) return nullptr;
    auto made = std::make_shared<File>(card, UniqueMapping());
    if (::ftruncate(file.get(), kPageBytes) == 0) made->mapping = map_file(file);
    return made->mapping ? made : nullptr;
  }
};

SharedEvent::SharedEvent(std::shared_ptr<File> file, std::uint64_t place)
    : file_(std::move(file)), place_(place) {}

SharedEvent::~SharedEvent() {
  if (file_->card.pid == ::getpid()) slot().taken = 0;
}

SharedEvent::Slot& SharedEvent::slot() const { return file_->slot(place_); }

std::shared_ptr<SharedEvent> SharedEvent::create() {
  static std::mutex mutex;
  static std::weak_ptr<File> newest;  // has room, or had it
  const std::lock_guard lock(mutex);
  std::shared_ptr<File> file = newest.lock();
  if (file && file->card.pid != ::getpid()) file.reset();  // a child of a fork
  std::uint64_t place = file ? file->take() : File::kPlaces;
  if (place == File::kPlaces) {
    file = File::create();
    if (!file) return nullptr;
    newest = file;
    place = file->take();
  }
  Slot& slot = file->slot(place);
  slot.recorded = 0;
  slot.passed = 0;
  return std::shared_ptr<SharedEvent>(new SharedEvent(std::move(file), place));
}

Result SharedEvent::open(std::span<const char, kIpcHandleBytes> handle,
                         std::shared_ptr<SharedEvent>* event) {
  Card card;
  std::memcpy(&card, handle.data(), sizeof(card));
  if (card.pid == ::getpid()) return Result::kInvalidContext;
  if (card.place >= File::kPlaces) return Result::kInvalidValue;
  auto file = std::make_shared<File>(
      card, map_file(UniqueFd(::open(card.path().c_str(), O_RDWR | O_CLOEXEC))));
  if (!file->mapping || file->slot(card.place).taken == 0) return Result::kInvalidValue;
  event->reset(new SharedEvent(std::move(file), card.place));
  return Result::kSuccess;
}

void SharedEvent::write_handle(std::span<char, kIpcHandleBytes> handle) const {
  Card card = file_->card;
  card.place = place_;
  std::ranges::fill(handle, 0);
  std::memcpy(handle.data(), &card, sizeof(card));
}

std::uint64_t SharedEvent::record() { return ++slot().recorded; }

void SharedEvent::passed(std::uint64_t record) {
  std::uint64_t last = slot().passed;
  while (last < record && !slot().passed.compare_exchange_weak(last, record)) {
  }
}

std::uint64_t SharedEvent::last_record() const { return slot().recorded; }

bool SharedEvent::has_passed(std::uint64_t record) const { return slot().passed >= record; }

}  // namespace gcr::softgpu
