#include "migrate-agent/worker/ask_agent.h"

#include <fmt/format.h>

namespace gcr::agent {

asio::awaitable<Result<proto::Envelope>> ask_agent(const AgentAddress& agent, Uuid migration,
                                                   const proto::Envelope& question) {
  if (agent.name.empty()) {
    co_return Error(Code::kPermissionDenied,
                    fmt::format("the journal does not say whose the agent at {} is: nothing that "
                                "it says can be believed",
                                agent.endpoint.to_string()));
  }
  const control::Preface preface{control::ConnectionKind::kControl, migration};
  auto channel = co_await control::ControlChannel::connect(agent.endpoint, preface, agent.tls,
                                                           agent.silence, agent.own_host);
  GCR_CO_TRY(channel);
  const std::string& name = (*channel)->peer().common_name;
  if (name != agent.name) {
    co_return Error(Code::kPermissionDenied,
                    fmt::format("the agent at {} is \"{}\", not \"{}\"", agent.endpoint.to_string(),
                                control::printable(name), agent.name));
  }
  const Status sent = co_await (*channel)->send(question);
  GCR_CO_TRY(sent);
  for (;;) {
    auto answer = co_await (*channel)->receive(agent.silence);
    if (!answer || !answer->has_alive()) co_return answer;
  }
}

}  // namespace gcr::agent
