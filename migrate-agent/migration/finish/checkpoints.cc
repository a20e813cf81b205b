#include "migrate-agent/migration/finish/checkpoints.h"

#include "src/base/log.h"
#include "store/upkeep.h"
#include "store/writer.h"

namespace gcr::finish {
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
  spdlog::warn("cannot remove the files of an aborted checkpoint: {}", discarded.error().message());
}

void end_restore(const journal::Journal& journal, const control::TlsFiles& tls, bool done) {
  const journal::Began& began = journal.began();
  if (!began.once()) return;
  const auto end = [&]() -> Status {
    GCR_ASSIGN(const auto directory, directory_of(began));
    return done ? store::end_restore(directory, journal.migration(), tls)
                : store::cancel_restore(directory, began.checkpoint(), journal.migration());
  };
  const Status ended = end();
  if (ended || (!done && ended.error().code() == Code::kNotFound)) return;
  spdlog::warn("{}: {}",
               done ? "cannot remove the restored checkpoint"
                    : "cannot release the checkpoint after a failed restore",
               ended.error().message());
}

}  // namespace gcr::finish
