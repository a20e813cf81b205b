#include "src/control/ask.h"

#include <fmt/format.h>

namespace gcr::control {
namespace {

using proto::Envelope;

/// Returns whether `reply` belongs to `request`: in control.proto a reply's number is its request's
/// plus one.
bool belongs_to(const Envelope& reply, const Envelope& request) {
  return reply.body_case() == request.body_case() + 1 ||
         (request.has_commit_request() && reply.has_copy_lost());
}

const std::string& kind_of(const Envelope& message) {
  return Envelope::descriptor()->FindFieldByNumber(message.body_case())->message_type()->name();
}

std::string describe(const AgentAddress& agent) {
  return "the agent at " + agent.endpoint.to_string();
}

}  // namespace

asio::awaitable<Result<Envelope>> ask(const AgentAddress& agent, Uuid migration,
                                      const Envelope& question) {
  if (agent.name && agent.name->empty()) {
    co_return Error(
        Code::kPermissionDenied,
        fmt::format(
            "{} has no name in the journal, so its identity cannot be checked; it is not asked",
            describe(agent)));
  }
  const Preface preface{ConnectionKind::kControl, migration};
  GCR_CO_ASSIGN(const auto channel,
                co_await ControlChannel::connect(agent.endpoint, preface, agent.tls, agent.silence,
                                                 agent.own_host));
  const std::string& name = channel->peer().common_name;
  if (agent.name && name != *agent.name) {
    co_return Error(
        Code::kPermissionDenied,
        fmt::format("{} is \"{}\", not \"{}\"", describe(agent), printable(name), *agent.name));
  }
  co_return co_await channel->call(question, agent.silence);
}

asio::awaitable<Result<Envelope>> ask_for_reply(const AgentAddress& agent, Uuid migration,
                                                const Envelope& question) {
  auto answer = co_await ask(agent, migration, question);
  co_return check_reply(question, std::move(answer), describe(agent));
}

Result<Envelope> check_reply(const Envelope& request, Result<Envelope> answer,
                             const std::string& who) {
  if (!answer || belongs_to(*answer, request)) return answer;
  if (answer->has_failure()) return from_failure(answer->failure());
  return Error(Code::kProtocol,
               fmt::format("{} answered {} with {}", who, kind_of(request), kind_of(*answer)));
}

}  // namespace gcr::control
