#include "migrate-agent/settlement/checkpoints.h"

#include "migrate-agent/store/writer.h"
#include "src/base/log.h"

namespace gcr::settlement {
namespace {

Result<store::Directory> directory_of(const journal::Began& began) {
  return store::Directory::open(began.store(), {began.uid(), began.gid()});
}

}  // namespace

Status publish_checkpoint(const journal::Journal& journal) {
  GCR_ASSIGN(const auto directory, directory_of(journal.began()));
  return store::publish(directory, journal.migration(), journal.began().checkpoint());
}

void discard_checkpoint(const journal::Journal& journal) {
  if (!takes_checkpoint(journal.began())) return;
  const auto discard = [&]() -> Status {
    GCR_ASSIGN(const auto directory, directory_of(journal.began()));
    return store::discard(directory, journal.migration(), journal.began().checkpoint());
  };
  const Status discarded = discard();
  if (discarded || discarded.error().code() == Code::kNotFound) return;
  spdlog::warn("files of a checkpoint stay: {}", discarded.error().message());
}

}  // namespace gcr::settlement
