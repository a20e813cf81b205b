#include "migrate-agent/roles/outcome.h"

namespace gcr::agent {

using asio::awaitable;

Error copy_lost(const proto::CopyLost& answer) {
  return Error(Code::kNotFound, "the destination lost its copy before that ran: " +
                                    control::printable(answer.reason()));
}

awaitable<Result<proto::Envelope>> deliver_commit(const control::AgentAddress& destination,
                                                  const Uuid& migration) {
  proto::Envelope request;
  request.mutable_commit_request()->set_migration_id(to_bytes(migration));
  co_return co_await control::ask_for_reply(destination, migration, request);
}

awaitable<Result<proto::OutcomeReply::Outcome>> ask_outcome(const control::AgentAddress& source,
                                                            const Uuid& migration) {
  proto::Envelope request;
  request.mutable_outcome_request()->set_migration_id(to_bytes(migration));
  const auto reply = co_await control::ask_for_reply(source, migration, request);
  GCR_CO_TRY(reply);
  co_return reply->outcome_reply().outcome();
}

}  // namespace gcr::agent
