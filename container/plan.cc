#include "container/plan.h"

#include <fmt/format.h>

#include <utility>

#include "container/c_library.h"
#include "container/notes.h"

namespace gcr::container {
namespace {

std::optional<std::string> unfit_with_image(const Spec& spec, const std::filesystem::path& bundle) {
  if (auto reason = unfit(spec)) return reason;
  const auto root = root_of(spec, bundle);
  if (root.empty()) return "it has no root directory";
  if (const Status fits = check_c_library(root); !fits) return fits.error().message();
  return std::nullopt;
}

Plan leave(const std::string& reason) {
  Plan plan;
  plan.note = "left as it is: " + reason;
  return plan;
}

/// Refuses a container whose job has left, so that its program does not run twice.
Status check_left(const Spec& spec, const RuntimeConfig& config, Plan& plan) {
  const std::string id = id_in_group(control_group_of(spec));
  if (id.empty()) return {};
  const auto left = has_note(config.state, id);
  // Without root, for example. Such a container has had no job that an agent could have moved.
  if (!left) plan.note = "whether its job has left is not known: " + left.error().message();
  if (!left || !*left) return {};
  return Error(
      Code::kRefused,
      fmt::format("its job has left: remove the container, or {} to start its program anew",
                  (config.state / id).string()));
}

/// Sets the key if the container has not received a job yet.
Status plan_receipt(const std::string& key, const RuntimeConfig& config, Plan& plan) {
  GCR_ASSIGN(const bool before, has_note(config.state, key));
  if (before) {
    plan.note = "it has received a job before: its program is started";
    return {};
  }
  plan.note = "it waits for the job of migration " + key;
  plan.insertion->key = key;
  plan.receives = true;
  return {};
}

}  // namespace

Result<Plan> plan_container(const Spec& spec, const std::filesystem::path& bundle,
                            const RuntimeConfig& config) {
  if (const auto reason = out_of_scope(spec)) return leave(*reason);
  GCR_ASSIGN(const auto key, receive_key(spec));
  if (const auto reason = unfit_with_image(spec, bundle)) {
    if (!key) return leave(*reason);
    return Error(Code::kRefused, "it cannot receive a job: " + *reason);
  }
  Plan plan;
  GCR_TRY(check_left(spec, config, plan));
  GCR_ASSIGN(const auto init, find_init(config));
  GCR_ASSIGN(const auto library, find_library(config));
  plan.insertion = Insertion{init, library, std::nullopt, config.allow_userfaultfd};
  if (key) GCR_TRY(plan_receipt(*key, config, plan));
  return plan;
}

}  // namespace gcr::container
