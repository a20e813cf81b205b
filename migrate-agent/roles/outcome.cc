#include "migrate-agent/roles/outcome.h"

#include <fmt/format.h>

#include "migrate-agent/preflight/host_facts.h"

namespace gcr::agent {
namespace {

using asio::awaitable;
using control::ControlChannel;

/// One request on a connection of its own. The peer says that it is alive while it is at work.
awaitable<Result<proto::Envelope>> ask(const PeerAgent& peer, const Uuid& migration,
                                       const proto::Envelope& request) {
  const control::Preface preface{control::ConnectionKind::kControl, migration};
  auto channel = co_await ControlChannel::connect(peer.endpoint, preface, peer.tls, peer.silence,
                                                  peer.own_host);
  GCR_CO_TRY(channel);
  if (!peer.name.empty() && (*channel)->peer().common_name != peer.name) {
    co_return Error(Code::kPermissionDenied,
                    fmt::format("the agent at {} is \"{}\", not \"{}\"", peer.endpoint.to_string(),
                                (*channel)->peer().common_name, peer.name));
  }
  const Status sent = co_await (*channel)->send(request);
  GCR_CO_TRY(sent);
  for (;;) {
    auto reply = co_await (*channel)->receive(peer.silence);
    GCR_CO_TRY(reply);
    if (reply->has_alive()) continue;
    if (reply->has_failure()) co_return control::from_failure(reply->failure());
    co_return reply;
  }
}

}  // namespace

awaitable<Result<proto::CommitReply>> deliver_commit(const PeerAgent& destination,
                                                     const Uuid& migration) {
  proto::Envelope request;
  request.mutable_commit_request()->set_migration_id(to_bytes(migration));
  auto reply = co_await ask(destination, migration, request);
  GCR_CO_TRY(reply);
  if (!reply->has_commit_reply()) {
    co_return Error(Code::kProtocol, "the destination answered the commit with something else");
  }
  co_return std::move(*reply->mutable_commit_reply());
}

awaitable<Result<proto::OutcomeReply::Outcome>> ask_outcome(const PeerAgent& source,
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
