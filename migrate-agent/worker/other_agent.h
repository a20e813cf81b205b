// The other agent of a migration, for questions on connections of their own.
#pragma once

#include <memory>

#include "migrate-agent/config/config.h"
#include "migrate-agent/journal/journal.h"
#include "src/base/result.h"
#include "src/control/ask.h"

namespace gcr::agent {

/// As the journal that begins so knows it. kInvalidArgument if that has no address of it.
Result<control::AgentAddress> other_agent(const journal::Began& began, const Config& config,
                                          std::shared_ptr<asio::ssl::context> tls);

}  // namespace gcr::agent
