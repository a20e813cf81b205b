#include "src/cli/agent_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/control/ask.h"

namespace gcr::cli {

Result<std::shared_ptr<asio::ssl::context>> tls_for(const control::Endpoint& agent,
                                                    const control::TlsFiles& files) {
  if (agent.is_local()) return std::shared_ptr<asio::ssl::context>();
  return control::make_tls_context(files);
}

asio::awaitable<Result<proto::Envelope>> ask(const Agent& agent, const proto::Envelope& question,
                                             std::chrono::milliseconds timeout) {
  const control::AgentAddress address{agent.endpoint, agent.tls, std::nullopt, "", timeout};
  co_return co_await control::ask_for_reply(address, {}, question);
}

asio::awaitable<Result<Uuid>> find_migration(const Agent& agent, const std::string& id) {
  if (const auto whole = Uuid::parse(id)) co_return *whole;
  proto::Envelope question;
  question.mutable_list_request()->set_finished(true);
  const auto answer = co_await ask(agent, question);
  GCR_CO_TRY(answer);
  std::set<Uuid> found;
  for (const proto::MigrationStatus& status : answer->list_reply().migrations()) {
    const Uuid uuid = to_uuid(status.migration_id());
    if (uuid.to_string().starts_with(id)) found.insert(uuid);
  }
  if (found.size() == 1) co_return *found.begin();
  if (found.empty()) {
    co_return Error(Code::kNotFound,
                    fmt::format("the agent at {} has no migration whose id begins with {}",
                                agent.endpoint.to_string(), id));
  }
  std::string names;
  for (const Uuid& uuid : found) names += " " + uuid.to_string();
  co_return Error(Code::kInvalidArgument,
                  fmt::format("{} migrations begin with {}:{}", found.size(), id, names));
}

}  // namespace gcr::cli
