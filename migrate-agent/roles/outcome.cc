#include "migrate-agent/roles/outcome.h"

namespace gcr::agent {

using asio::awaitable;

Result<proto::Envelope> as_commit_answer(Result<proto::Envelope> reply) {
  if (!reply || reply->has_commit_reply() || reply->has_copy_lost()) return reply;
  return Error(Code::kProtocol, "the destination answered the commit with something else");
}

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
