#include "container/seccomp.h"

#include <algorithm>
#include <iterator>

namespace gcr::container {
namespace {

constexpr const char* kCall = "userfaultfd";
constexpr const char* kAllow = "SCMP_ACT_ALLOW";
constexpr const char* kLog = "SCMP_ACT_LOG";

bool allows(const Spec& object, const char* key) {
  const auto action = object.find(key);
  return action != object.end() && (*action == kAllow || *action == kLog);
}

bool names_call(const Spec& rule) {
  const auto names = rule.find("names");
  return names != rule.end() && names->is_array() &&
         std::ranges::find(*names, Spec(kCall)) != names->end();
}

bool has_conditions(const Spec& rule) {
  const auto conditions = rule.find("args");
  return conditions != rule.end() && !conditions->empty();
}

/// Runtimes skip rules whose action is the default one. So where the default allows the call, it is
/// taken out of the rules that refuse it.
void remove_call(Spec& rules) {
  for (Spec& rule : rules) {
    if (!names_call(rule)) continue;
    Spec::array_t& names = rule["names"].get_ref<Spec::array_t&>();
    std::erase(names, Spec(kCall));
  }
  std::erase_if(rules.get_ref<Spec::array_t&>(), [](const Spec& rule) {
    const auto names = rule.find("names");
    return names != rule.end() && names->is_array() && names->empty();
  });
}

}  // namespace

// The first rule that names the call decides; one with conditions allows only some calls.
bool allows_userfaultfd(const Spec& seccomp) {
  if (!seccomp.is_object()) return false;
  const auto rules = seccomp.find("syscalls");
  if (rules != seccomp.end()) {
    for (const Spec& rule : *rules) {
      if (names_call(rule)) return !has_conditions(rule) && allows(rule, "action");
    }
  }
  return allows(seccomp, "defaultAction");
}

void allow_userfaultfd(Spec& seccomp) {
  if (!seccomp.is_object() || allows_userfaultfd(seccomp)) return;
  Spec& rules = seccomp["syscalls"];
  if (rules.is_null()) rules = Spec::array();
  if (!rules.is_array()) return;
  if (seccomp.value("defaultAction", Spec()) == kAllow) return remove_call(rules);
  rules.insert(rules.begin(), Spec{{"names", {kCall}}, {"action", kAllow}});
}

}  // namespace gcr::container
