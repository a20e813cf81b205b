#include "container/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "container/messages.h"
#include "container/seccomp.h"

namespace gcr::container {
namespace {

constexpr std::string_view kPreload = "LD_PRELOAD=";
constexpr std::string_view kPreloadSeparators = ": ";
/// Programs that work only as PID 1; podman takes all but the first one for systemd.
constexpr std::string_view kInitSystems[] = {"/init", "/sbin/init", "/usr/sbin/init",
                                             "/usr/local/sbin/init"};

/// Returns a member of an object; null if there is none.
const Spec& member(const Spec& object, const char* name) {
  static const Spec kNone;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() ? kNone : *found;
}

std::string text(const Spec& object, const char* name) {
  const Spec& found = member(object, name);
  return found.is_string() ? found.get<std::string>() : std::string();
}

std::string annotation(const Spec& spec, const char* name) {
  return text(member(spec, "annotations"), name);
}

bool is_list_of_texts(const Spec& list) {
  return list.is_array() &&
         std::ranges::all_of(list, [](const Spec& element) { return element.is_string(); });
}

bool is_init_system(const std::string& program) {
  return std::ranges::find(kInitSystems, program) != std::end(kInitSystems) ||
         std::filesystem::path(program).filename() == "systemd";
}

bool has_pid_namespace(const Spec& spec) {
  const Spec& namespaces = member(member(spec, "linux"), "namespaces");
  return namespaces.is_array() && std::ranges::any_of(namespaces, [](const Spec& each) {
           return text(each, "type") == "pid" && text(each, "path").empty();
         });
}

/// Returns where a mount is, without a final slash.
std::string destination(const Spec& mount) {
  std::string path = std::filesystem::path(text(mount, "destination")).lexically_normal().string();
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// In such a /dev the engine leaves no mount points behind, neither in the image nor on the host.
bool has_own_devices(const Spec& spec) {
  bool own = false;
  for (const Spec& mount : member(spec, "mounts")) {
    if (destination(mount) == "/dev") own = text(mount, "type") == "tmpfs";
  }
  return own;
}

bool has_mount_in_folder(const Spec& spec) {
  const std::string inside = std::string(kFolder) + "/";
  return std::ranges::any_of(member(spec, "mounts"), [&](const Spec& mount) {
    const std::string path = destination(mount);
    return path == kFolder || path.starts_with(inside);
  });
}

std::string receive_prefix() { return std::string(kReceiveVariable) + "="; }

std::string receive_variable(const Spec& spec) {
  const std::string prefix = receive_prefix();
  for (const Spec& variable : member(member(spec, "process"), "env")) {
    const std::string& each = variable.get_ref<const std::string&>();
    if (each.starts_with(prefix)) return each.substr(prefix.size());
  }
  return {};
}

bool lists(std::string_view preload, std::string_view library) {
  while (!preload.empty()) {
    const std::size_t end = std::min(preload.find_first_of(kPreloadSeparators), preload.size());
    if (preload.substr(0, end) == library) return true;
    preload.remove_prefix(std::min(end + 1, preload.size()));
  }
  return false;
}

/// Puts the library first in LD_PRELOAD.
void insert_preload(Spec& variables) {
  bool found = false;
  for (Spec& variable : variables) {
    std::string& each = variable.get_ref<std::string&>();
    if (!each.starts_with(kPreload)) continue;
    found = true;
    const std::string list = each.substr(kPreload.size());
    if (lists(list, kLibraryPath)) continue;
    each = fmt::format("{}{}{}{}", kPreload, kLibraryPath, list.empty() ? "" : ":", list);
  }
  if (!found) variables.push_back(fmt::format("{}{}", kPreload, kLibraryPath));
}

void insert_variables(Spec& process) {
  Spec& variables = process["env"];
  if (variables.is_null()) variables = Spec::array();
  std::erase_if(variables.get_ref<Spec::array_t&>(), [](const Spec& variable) {
    return variable.get_ref<const std::string&>().starts_with(receive_prefix());
  });
  insert_preload(variables);
}

void insert_arguments(Spec& spec, const std::optional<std::string>& key) {
  const bool tracked = allows_userfaultfd(member(member(spec, "linux"), "seccomp"));
  Spec before{kInitPath, key ? kModeReceive : tracked ? kModeRunTracked : kModeRun};
  if (key) before.push_back(*key);
  Spec& words = spec["process"]["args"];
  words.insert(words.begin(), before.begin(), before.end());
}

Spec mount_of(const char* destination, const std::filesystem::path& source) {
  return {{"destination", destination},
          {"type", "bind"},
          {"source", source.string()},
          {"options", {"bind", "ro", "nosuid", "nodev"}}};
}

}  // namespace

Result<Spec> parse_spec(const std::string& text) {
  try {
    Spec spec = Spec::parse(text);
    if (spec.is_object()) return spec;
  } catch (const Spec::parse_error& error) {
    return Error(Code::kInvalidArgument, fmt::format("not JSON: {}", error.what()));
  }
  return Error(Code::kInvalidArgument, "not a JSON object");
}

std::optional<std::string> out_of_scope(const Spec& spec) {
  const Spec& process = member(spec, "process");
  if (!process.is_object()) return "it has no process";
  const Spec& words = member(process, "args");
  if (!is_list_of_texts(words) || words.empty()) return "it has no program";
  if (words.front() == kInitPath) return "it has been edited already";
  if (is_init_system(words.front().get<std::string>())) {
    return "its program is an init system, which must be PID 1";
  }
  if (annotation(spec, "io.kubernetes.cri.container-type") == "sandbox" ||
      annotation(spec, "io.kubernetes.cri-o.ContainerType") == "sandbox") {
    return "it is the sandbox of a pod";
  }
  if (annotation(spec, kOffAnnotation) == "true") {
    return fmt::format("its annotation {} is true", kOffAnnotation);
  }
  return std::nullopt;
}

std::optional<std::string> unfit(const Spec& spec) {
  const Spec& variables = member(member(spec, "process"), "env");
  if (!variables.is_null() && !is_list_of_texts(variables)) return "its environment is not a list";
  if (!has_pid_namespace(spec)) return "it has no PID namespace of its own";
  if (!has_own_devices(spec)) return "its /dev is not a tmpfs of its own";
  if (has_mount_in_folder(spec)) return fmt::format("something is mounted on {} in it", kFolder);
  return std::nullopt;
}

Result<std::optional<std::string>> receive_key(const Spec& spec) {
  const Spec& variables = member(member(spec, "process"), "env");
  const std::string annotated = annotation(spec, kReceiveAnnotation);
  const std::string variable = is_list_of_texts(variables) ? receive_variable(spec) : "";
  const std::string& key = annotated.empty() ? variable : annotated;
  if (key.empty()) return std::nullopt;
  const char* name = annotated.empty() ? kReceiveVariable : kReceiveAnnotation;
  if (!is_key(key)) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("{} must be the key of a migration, {} hexadecimal digits", name, kKeyDigits));
  }
  if (!variable.empty() && variable != key) {
    return Error(Code::kInvalidArgument, fmt::format("{} and {} have different keys",
                                                     kReceiveAnnotation, kReceiveVariable));
  }
  return key;
}

std::filesystem::path root_of(const Spec& spec, const std::filesystem::path& bundle) {
  const std::string path = text(member(spec, "root"), "path");
  return path.empty() ? std::filesystem::path() : bundle / path;
}

std::string control_group_of(const Spec& spec) {
  return text(member(spec, "linux"), "cgroupsPath");
}

void insert(Spec& spec, const Insertion& insertion) {
  insert_variables(spec["process"]);
  Spec& mounts = spec["mounts"];
  mounts.push_back(mount_of(kInitPath, insertion.init));
  mounts.push_back(mount_of(kLibraryPath, insertion.library));
  Spec& linux_part = spec["linux"];
  if (insertion.allow_userfaultfd && linux_part.contains("seccomp")) {
    allow_userfaultfd(linux_part["seccomp"]);
  }
  insert_arguments(spec, insertion.key);
}

}  // namespace gcr::container
