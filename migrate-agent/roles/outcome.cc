#include "migrate-agent/roles/outcome.h"

#include "migrate-agent/preflight/host_facts.h"

namespace gcr::agent {
namespace {

using asio::awaitable;

awaitable<Result<proto::Envelope>> ask(const AgentAddress& agent, const Uuid& migration,
                                       const proto::Envelope& request) {
  auto reply = co_await ask_agent(agent, migration, request);
  if (reply && reply->has_failure()) co_return control::from_failure(reply->failure());
  co_return reply;
}

}  // namespace

Result<proto::Envelope> as_commit_answer(Result<proto::Envelope> reply) {
  if (!reply || reply->has_commit_reply() || reply->has_copy_lost()) return reply;
  return Error(Code::kProtocol, "the destination answered the commit with something else");
}

Error copy_lost(const proto::CopyLost& answer) {
  return Error(Code::kNotFound, "the destination lost its copy before that ran: " +
                                    control::printable(answer.reason()));
}

awaitable<Result<proto::Envelope>> deliver_commit(const AgentAddress& destination,
                                                  const Uuid& migration) {
  proto::Envelope request;
  request.mutable_commit_request()->set_migration_id(to_bytes(migration));
  co_return as_commit_answer(co_await ask(destination, migration, request));
}

awaitable<Result<proto::OutcomeReply::Outcome>> ask_outcome(const AgentAddress& source,
                                                            const Uuid& migration) {
  proto::Envelope request;
  request.mutable_outcome_request()->set_migration_id(to_bytes(migration));
  auto reply = co_await ask(source, migration, request);
  GCR_CO_TRY(reply);
  if (!reply->has_outcome_reply()) {
    co_return Error(Code::kProtocol, "the source answered the question with something else");
  }
  co_return reply->outcome_reply().outcome();
}

}  // namespace gcr::agent
