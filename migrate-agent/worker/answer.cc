#include "migrate-agent/worker/answer.h"

#include "src/control/wire.h"

namespace gcr::agent {

registry::Answer to_answer(const Status& status) {
  registry::Answer answer;
  if (status) return answer;
  answer.set_code(std::string(to_string(status.error().code())));
  answer.set_message(status.error().message());
  return answer;
}

Status from_answer(const registry::Answer& answer) {
  if (answer.code().empty()) return {};
  proto::Failure refusal;
  refusal.set_code(answer.code());
  refusal.set_message(answer.message());
  return control::from_failure(refusal);
}

}  // namespace gcr::agent
