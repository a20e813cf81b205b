// gcr-slurm-jobs prints every job that slurmctld knows, in the format of `squeue --all --json` of
// Slurm 22.05, with the fields that python/gcr_moves/slurm.py reads. It is for clusters whose
// squeue cannot print JSON. It opens the library of the Slurm release against which it was
// compiled, and works only with that release. If slurmctld does not answer, it prints the reason
// and exits with 1.
#include <dlfcn.h>
#include <errno.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;

// Names of enum job_states, in its order.
constexpr std::array kStates{"PENDING",   "RUNNING",   "SUSPENDED", "COMPLETED",
                             "CANCELLED", "FAILED",    "TIMEOUT",   "NODE_FAIL",
                             "PREEMPTED", "BOOT_FAIL", "DEADLINE",  "OUT_OF_MEMORY"};
static_assert(kStates.size() == JOB_END);
constexpr std::pair<std::uint32_t, const char*> kFlags[] = {
    {JOB_CONFIGURING, "CONFIGURING"},   {JOB_COMPLETING, "COMPLETING"},
    {JOB_REQUEUE, "REQUEUED"},          {JOB_REQUEUE_HOLD, "REQUEUE_HOLD"},
    {JOB_SPECIAL_EXIT, "SPECIAL_EXIT"}, {JOB_STOPPED, "STOPPED"},
    {JOB_STAGE_OUT, "STAGE_OUT"},       {JOB_SIGNALING, "SIGNALING"}};

constexpr std::array kShared{"none", "shared", "user", "mcs"};  // by JOB_SHARED_NONE and so on

void set(Struct& job, const char* name, const char* text) {
  (*job.mutable_fields())[name].set_string_value(text != nullptr ? text : "");
}

void set(Struct& job, const char* name, double number) {
  (*job.mutable_fields())[name].set_number_value(number);
}

ListValue& add_list(Struct& job, const char* name) {
  return *(*job.mutable_fields())[name].mutable_list_value();
}

void set_states(Struct& job, std::uint32_t state) {
  ListValue& states = add_list(job, "job_state");
  const std::uint32_t base = state & JOB_STATE_BASE;
  states.add_values()->set_string_value(base < kStates.size() ? kStates[base] : "UNKNOWN");
  for (const auto& [flag, name] : kFlags) {
    if ((state & flag) != 0) states.add_values()->set_string_value(name);
  }
}

Struct to_struct(const slurm_job_info_t& from) {
  Struct job;
  const std::pair<const char*, const char*> texts[] = {{"nodes", from.nodes},
                                                       {"dependency", from.dependency},
                                                       {"comment", from.comment},
                                                       {"admin_comment", from.admin_comment},
                                                       {"tres_req_str", from.tres_req_str},
                                                       {"current_working_directory", from.work_dir},
                                                       {"name", from.name},
                                                       {"account", from.account},
                                                       {"partition", from.partition},
                                                       {"qos", from.qos},
                                                       {"resv_name", from.resv_name},
                                                       {"features", from.features},
                                                       {"licenses", from.licenses},
                                                       {"wckey", from.wckey}};
  for (const auto& [name, text] : texts) set(job, name, text);
  const std::pair<const char*, double> numbers[] = {
      {"job_id", from.job_id},
      {"node_count", from.num_nodes},
      {"het_job_id", from.het_job_id},
      {"array_job_id", from.array_job_id},
      {"user_id", from.user_id},
      {"group_id", from.group_id},
      {"start_time", static_cast<double>(from.start_time)}};
  for (const auto& [name, number] : numbers) set(job, name, number);
  auto& fields = *job.mutable_fields();
  fields["shared"].set_null_value({});
  if (from.shared < kShared.size()) set(job, "shared", kShared[from.shared]);
  if (from.time_limit == INFINITE || from.time_limit == NO_VAL) {
    fields["time_limit"].set_null_value({});
  } else {
    set(job, "time_limit", from.time_limit);
  }
  fields["batch_flag"].set_bool_value(from.batch_flag != 0);
  fields["requeue"].set_bool_value(from.requeue != 0);
  set_states(job, from.job_state);
  ListValue& gres = add_list(job, "gres_detail");
  for (std::uint32_t i = 0; i < from.gres_detail_cnt; ++i) {
    gres.add_values()->set_string_value(from.gres_detail_str[i]);
  }
  return job;
}

/// The functions of libslurm that are used.
struct Library {
  decltype(&slurm_init) init;
  decltype(&slurm_load_jobs) load_jobs;
  decltype(&slurm_free_job_info_msg) free_jobs;
  decltype(&slurm_strerror) error_text;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool open(Library& library) {
  void* const file = ::dlopen(GCR_LIBSLURM, RTLD_NOW | RTLD_GLOBAL);
  return file != nullptr && find(file, "slurm_init", library.init) &&
         find(file, "slurm_load_jobs", library.load_jobs) &&
         find(file, "slurm_free_job_info_msg", library.free_jobs) &&
         find(file, "slurm_strerror", library.error_text);
}

int fail(const char* reason) {
  std::fprintf(stderr, "gcr-slurm-jobs: %s\n", reason);
  return 1;
}

}  // namespace

int main() {
  Library library{};
  if (!open(library)) return fail(::dlerror());
  library.init(nullptr);
  job_info_msg_t* answer = nullptr;
  if (library.load_jobs(0, &answer, SHOW_ALL | SHOW_DETAIL) != SLURM_SUCCESS) {
    return fail(library.error_text(errno));
  }
  Struct all;
  ListValue& jobs = add_list(all, "jobs");
  for (std::uint32_t i = 0; i < answer->record_count; ++i) {
    *jobs.add_values()->mutable_struct_value() = to_struct(answer->job_array[i]);
  }
  library.free_jobs(answer);
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(all, &text).ok())
    return fail("cannot convert the jobs to JSON");
  std::puts(text.c_str());
  return 0;
}
