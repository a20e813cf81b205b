// Findings of preflight about a host, alone and compared with another one: a test for each, and two
// equal hosts have none.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/hostmem/memory_reservation.h"
#include "migrate-agent/preflight/compare/comparison.h"

namespace gcr::preflight {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;

std::vector<std::string> ids(const findings::Findings& findings) {
  std::vector<std::string> ids;
  for (const proto::Finding& finding : findings.list()) ids.push_back(finding.id());
  return ids;
}

/// Runs `body` in a child process, which it may damage; returns its result.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Makes the kernel reject `call` as unknown, for this process.
bool hide_call(unsigned call) {
  std::array<sock_filter, 4> filter = {{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog program{filter.size(), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

class Hosts : public testing::Test {
 protected:
  Hosts() {
    std::string path = "/dev/shm/gcr-preflight-test-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) directory_ = path;
    config_.criu.argv = {GCR_CRIU};
    config_.criu.reaper = GCR_REAPER;
    config_.state_dir = directory_ / "state";
    config_.runtime_dir = directory_ / "run";
    fs::create_directories(config_.state_dir);
    fs::create_directories(config_.runtime_dir);
  }
  ~Hosts() override { fs::remove_all(directory_); }

  void use_fake_criu(const std::string& version, const std::string& check) {
    config_.criu.argv = {"python3", GCR_FAKE_CRIU, version, check};
  }

  std::vector<std::string> found_by_survey() {
    findings::Findings findings(findings::Side::kSource);
    survey(config_, findings);
    return ids(findings);
  }

  /// A request from a host exactly like this one, for a process that needs next to nothing.
  proto::PreflightRequest request() {
    findings::Findings findings(findings::Side::kSource);
    here_ = survey(config_, findings);
    EXPECT_THAT(ids(findings), IsEmpty());
    proto::PreflightRequest request;
    *request.mutable_host() = here_.facts;
    request.add_members()->set_user("root");
    request.mutable_members(0)->set_group("root");
    return request;
  }

  std::vector<std::string> compared(const proto::PreflightRequest& request) {
    findings::Findings findings(findings::Side::kDestination);
    compare_hosts(request, here_.facts, config_, findings);
    return ids(findings);
  }

  std::vector<std::string> compared(const proto::ProcessFacts& process) {
    findings::Findings findings(findings::Side::kDestination);
    compare_process(process, here_.facts, false, findings);
    compare_place(process, process::Addresses("127.0.0.1"), {}, findings);
    compare_groups(process, findings);
    return ids(findings);
  }

  std::vector<std::string> mapped(const proto::PreflightRequest& request) {
    findings::Findings findings(findings::Side::kDestination);
    mover::IncomingVram vram(here_.driver, hostmem::HugepagePolicy::kNever);
    map_gpus(request, here_.facts, config_, vram, findings);
    return ids(findings);
  }

  fs::path directory_;
  worker::Config config_;
  Survey here_;
};

TEST_F(Hosts, HealthyHostHasNoFindingsAndAllFacts) {
  findings::Findings findings(findings::Side::kSource);
  const Survey survey = preflight::survey(config_, findings);
  EXPECT_THAT(ids(findings), IsEmpty()) << findings::reason_of(findings.list());
  EXPECT_NE(survey.driver, nullptr);
  EXPECT_EQ(survey.facts.gpus_size(), 1);
  EXPECT_GE(survey.facts.criu_version(), 40101u);
  EXPECT_FALSE(survey.facts.cpu_features().empty());
  EXPECT_GT(survey.facts.unix_ns(), 0);
  EXPECT_GT(survey.facts.monotonic_ns(), 0);
  EXPECT_NE(survey.facts.capabilities(), 0u);
  EXPECT_NE(survey.facts.kernel(), "");
  EXPECT_THAT(survey.facts.software(), HasSubstr("gcr-migrate "));
}

TEST_F(Hosts, EqualHostsHaveNoFindings) {
  const proto::PreflightRequest equal = request();
  EXPECT_THAT(compared(equal), IsEmpty());
  EXPECT_THAT(compared(equal.members(0)), IsEmpty());
  EXPECT_THAT(mapped(equal), IsEmpty());
}

TEST_F(Hosts, MissingCriuIsAFinding) {
  config_.criu.argv = {(directory_ / "no-criu").string()};
  EXPECT_THAT(found_by_survey(), ElementsAre("criu-missing"));
}

TEST_F(Hosts, MissingPartOfCriuIsAFinding) {
  config_.criu.reaper = directory_ / "no-reaper";
  EXPECT_THAT(found_by_survey(), ElementsAre("criu-missing"));
}

TEST_F(Hosts, OldCriuIsAFinding) {
  use_fake_criu("3.17.1", "good");
  EXPECT_THAT(found_by_survey(), ElementsAre("criu-too-old"));
}

TEST_F(Hosts, FailingCriuCheckIsAFinding) {
  use_fake_criu("9.0.0", "no ptrace here");
  findings::Findings findings(findings::Side::kSource);
  const Survey survey = preflight::survey(config_, findings);
  ASSERT_THAT(ids(findings), ElementsAre("criu-check"));
  EXPECT_THAT(findings.list()[0].found(), HasSubstr("no ptrace here"));
  EXPECT_THAT(survey.facts.criu_check(), HasSubstr("no ptrace here"));
}

std::vector<std::string> found_about_plugin(const proto::PreflightRequest& request,
                                            const Survey& here, const worker::Config& config) {
  findings::Findings findings(findings::Side::kDestination);
  const auto plugin = find_plugin(request, here.facts, config, findings);
  EXPECT_EQ(plugin == nullptr, !ids(findings).empty() || !request.members(0).needs_amdgpu_plugin());
  return ids(findings);
}

/// Built as CRIU's own would be, for the software GPU.
TEST_F(Hosts, AmdPluginMustFitIfAMemberNeedsIt) {
  proto::PreflightRequest asked = request();
  config_.criu.plugins = directory_;
  EXPECT_THAT(found_about_plugin(asked, here_, config_), IsEmpty());
  asked.mutable_members(0)->set_needs_amdgpu_plugin(true);
  EXPECT_THAT(found_about_plugin(asked, here_, config_), ElementsAre("criu-plugin"));
  fs::copy_file(GCR_SOFTGPU_PLUGIN, directory_ / "amdgpu_plugin.so");
  here_.facts.set_criu_version(40200);
  EXPECT_THAT(found_about_plugin(asked, here_, config_), IsEmpty());
  here_.facts.set_criu_version(40101);
  EXPECT_THAT(found_about_plugin(asked, here_, config_), ElementsAre("criu-plugin"));
}

TEST(PluginMap, NamesGpusByKfdId) {
  const Uuid one = Uuid::random();
  const Uuid other = Uuid::random();
  const Uuid nvidia = Uuid::random();
  proto::HostFacts source;
  proto::HostFacts here;
  const auto add = [](proto::HostFacts& host, const Uuid& uuid, std::uint32_t id) {
    proto::Gpu& gpu = *host.add_gpus();
    gpu.set_uuid(to_bytes(uuid));
    gpu.set_kfd_id(id);
  };
  add(source, nvidia, 0);
  add(source, one, 0x6f39);
  add(here, other, 0x1a2b);
  add(here, nvidia, 0);
  EXPECT_EQ(plugin_map(source, here, {{one, other}, {nvidia, nvidia}}),
            (criu::PluginMap{{0x6f39, 0x1a2b}}));
}

/// Whether a new process, with these variables, reports exactly this finding on the host: a driver
/// is loaded once.
bool is_found_with(const std::string& variables, const std::string& id) {
  const std::string command = variables + " GCR_EXPECTED=" + id + " exec " +
                              fs::read_symlink("/proc/self/exe").string() +
                              " --gtest_filter=Hosts.ExpectedFindingsAreReported >&2";
  return ::system(command.c_str()) == 0;
}

/// Does nothing, unless is_found_with() starts it.
TEST_F(Hosts, ExpectedFindingsAreReported) {
  const char* const expected = std::getenv("GCR_EXPECTED");
  if (expected == nullptr) {
    EXPECT_THAT(found_by_survey(), IsEmpty());
  } else {
    EXPECT_THAT(found_by_survey(), ElementsAre(expected));
  }
}

TEST_F(Hosts, DriverWithoutGpusIsAFinding) {
  EXPECT_TRUE(is_found_with("SOFTGPU_DEVICES=nonsense", "no-driver"));
}

TEST_F(Hosts, DriverWithoutCheckpointsIsTooOld) {
  EXPECT_TRUE(is_found_with("LD_LIBRARY_PATH=" GCR_OLD_DRIVER_DIRECTORY, "driver-too-old"));
}

TEST_F(Hosts, MpsDaemonIsFoundByItsControlPipe) {
  std::ofstream(directory_ / "control") << "";
  EXPECT_TRUE(is_found_with("CUDA_MPS_PIPE_DIRECTORY=" + directory_.string(), "mps"));
}

TEST_F(Hosts, MissingKernelFeaturesAreFindings) {
  EXPECT_EQ(missing_kernel_features(), "");
  EXPECT_TRUE(in_child([&] {
    if (!hide_call(SYS_close_range)) return false;
    findings::Findings findings(findings::Side::kSource);
    survey(config_, findings);
    const auto found = ids(findings);
    return std::ranges::find(found, "kernel-features") != found.end();
  }));
}

TEST_F(Hosts, MigAndExclusiveComputeModesAreFindings) {
  ::setenv("SOFTGPU_NAME", "NVIDIA H200 MIG 1g.18gb", 1);
  ::setenv("SOFTGPU_COMPUTE_MODE", "3", 1);
  proto::PreflightRequest same = request();
  same.add_buffers()->set_gpu_uuid(same.host().gpus(0).uuid());
  EXPECT_THAT(mapped(same), IsSupersetOf({"mig", "compute-mode"}));
  ::unsetenv("SOFTGPU_NAME");
  ::unsetenv("SOFTGPU_COMPUTE_MODE");
}

TEST_F(Hosts, DifferentDriversAreAFinding) {
  proto::PreflightRequest newer = request();
  newer.mutable_host()->set_driver_version(newer.host().driver_version() + 10);
  newer.mutable_host()->set_driver_release("999.1");
  EXPECT_THAT(compared(newer), ElementsAre("driver-older", "driver-release"));
}

TEST_F(Hosts, ReleaseIsReadFromTheDriversText) {
  EXPECT_EQ(
      driver_release("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n"),
      "550.54.15");
  EXPECT_EQ(driver_release("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  "
                           "Release Build\nGCC version: 12\n"),
            "580.159.03");
  EXPECT_EQ(driver_release(""), "");
  EXPECT_EQ(driver_release("Kernel Module"), "");
}

/// In CRIU's image each word of CPU features is a tag, then a varint; from here on.
constexpr std::size_t kFirstCapabilityWord = 24;
constexpr char kCapabilityTag = 6 << 3;

/// A CPU with every feature, as far as words of five bytes can describe it.
unsigned set_all_bits(std::string& image) {
  unsigned words = 0;
  for (std::size_t at = kFirstCapabilityWord; at + 5 < image.size(); ++at) {
    const auto follows = [&](std::size_t byte) { return (image[at + byte] & 0x80) != 0; };
    if (image[at] != kCapabilityTag || !follows(1) || !follows(2) || !follows(3) || !follows(4)) {
      continue;
    }
    image.replace(at + 1, 5, "\xff\xff\xff\xff\x0f");
    ++words;
  }
  return words;
}

TEST_F(Hosts, CpuLackingSourceFeaturesIsAFinding) {
  proto::PreflightRequest other = request();
  ASSERT_NE(set_all_bits(*other.mutable_host()->mutable_cpu_features()), 0u);
  EXPECT_THAT(compared(other), ElementsAre("cpu-features"));
}

TEST_F(Hosts, MalformedCpuFeaturesDoNotMatch) {
  proto::PreflightRequest hostile = request();
  hostile.mutable_host()->set_cpu_features(std::string(100'000, 'x'));
  EXPECT_THAT(compared(hostile), ElementsAre("cpu-features"));
}

TEST_F(Hosts, UncomparableCpuIsAFinding) {
  proto::PreflightRequest unknown = request();
  unknown.mutable_host()->clear_cpu_features();
  EXPECT_THAT(compared(unknown), ElementsAre("cpu-not-compared"));
}

TEST_F(Hosts, DifferentClocksAreAFinding) {
  proto::PreflightRequest ahead = request();
  ahead.mutable_host()->set_unix_ns(ahead.host().unix_ns() + 3'600'000'000'000);
  EXPECT_THAT(compared(ahead), ElementsAre("clock-skew"));
}

TEST_F(Hosts, DifferentAgentReleasesAreAFinding) {
  proto::PreflightRequest other = request();
  other.mutable_host()->set_software("gcr-migrate 0.0.1");
  EXPECT_THAT(compared(other), ElementsAre("software-differs"));
}

TEST_F(Hosts, TooLittleMemoryIsAFinding) {
  config_.landing_window_bytes = 64 * kMiB;
  proto::PreflightRequest large = request();
  proto::Buffer& buffer = *large.add_buffers();
  buffer.set_size_bytes(std::uint64_t{1} << 50);
  EXPECT_THAT(compared(large), IsEmpty()) << "VRAM lands in a window";
  large.set_no_prefill(true);
  EXPECT_THAT(compared(large), ElementsAre("memory-too-small"));
  large.set_no_prefill(false);
  config_.landing_window_bytes = std::uint64_t{1} << 50;
  EXPECT_THAT(compared(large), ElementsAre("memory-too-small"));
}

TEST_F(Hosts, HugepagesHoldVramButNoProcessMemory) {
  proto::PreflightRequest large = request();
  large.add_buffers()->set_size_bytes(2 * kGiB);
  here_.facts.set_memory_available_bytes(kGiB);
  here_.facts.set_hugepages_free_bytes(0);
  EXPECT_THAT(compared(large), ElementsAre("memory-too-small"));
  here_.facts.set_hugepages_free_bytes(64 * kGiB);
  EXPECT_THAT(compared(large), IsEmpty());
  large.mutable_members(0)->set_image_bytes(kGiB);
  EXPECT_THAT(compared(large), ElementsAre("memory-too-small"));
  large.mutable_members(0)->set_image_bytes(0);
  config_.hugepages = hostmem::HugepagePolicy::kNever;
  EXPECT_THAT(compared(large), ElementsAre("memory-too-small"));
}

TEST_F(Hosts, VramRestoredByTheDriverNeedsMemoryToo) {
  proto::PreflightRequest alone = request();
  ASSERT_GT(alone.host().gpus_size(), 0);
  proto::GpuUse& use = *alone.add_driver_vram();
  use.set_uuid(alone.host().gpus(0).uuid());
  use.set_vram_bytes(alone.host().gpus(0).total_bytes());
  EXPECT_THAT(mapped(alone), ElementsAre("vram-too-small"));
  use.set_uuid(to_bytes(Uuid::random()));
  EXPECT_THAT(mapped(alone), testing::Contains("gpu-unknown"));
}

TEST_F(Hosts, MemoryReservedByOthersIsNotFree) {
  const auto plenty = []() -> Result<hostmem::Memory> {
    return hostmem::Memory{.ordinary_bytes = std::uint64_t{1} << 60};
  };
  auto other =
      hostmem::MemoryReservation::create(hostmem::reservations_in(config_.runtime_dir), plenty);
  ASSERT_TRUE(other) << other.error().message();
  ASSERT_TRUE((*other)->add({.ordinary_bytes = std::uint64_t{1} << 50}));
  findings::Findings findings(findings::Side::kDestination);
  EXPECT_EQ(survey(config_, findings).facts.memory_available_bytes(), 0u);
  other->reset();
  EXPECT_GT(survey(config_, findings).facts.memory_available_bytes(), 0u);
}

/// As in a container, whose control groups are not its own.
TEST_F(Hosts, MissingFreezerIsAFinding) {
  const auto survey_without_groups = [&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::umount2("/sys/fs/cgroup", MNT_DETACH) != 0) {
      return std::vector<std::string>{"cannot take the groups away"};
    }
    return found_by_survey();
  };
  EXPECT_TRUE(
      in_child([&] { return survey_without_groups() == std::vector<std::string>{"no-freezer"}; }));
  config_.allow_unfrozen = true;
  EXPECT_TRUE(in_child([&] { return survey_without_groups().empty(); }));
}

TEST_F(Hosts, MissingRequiredHugepagesAreAFinding) {
  const proto::PreflightRequest any = request();
  config_.hugepages = hostmem::HugepagePolicy::kRequire;
  here_.facts.set_hugepages_free_bytes(0);
  EXPECT_THAT(compared(any), ElementsAre("no-hugepages"));
}

TEST_F(Hosts, FullStateDirectoryIsAFinding) {
  const proto::PreflightRequest any = request();
  ASSERT_EQ(::mount("tmpfs", config_.state_dir.c_str(), "tmpfs", 0, "size=64k"), 0);
  EXPECT_THAT(compared(any), ElementsAre("state-dir-full"));
  findings::Findings at_source(findings::Side::kSource);
  check_disk_space(config_, at_source);
  EXPECT_THAT(ids(at_source), ElementsAre("state-dir-full"));
  ::umount2(config_.state_dir.c_str(), MNT_DETACH);
}

TEST_F(Hosts, UnavailableTransportIsAFinding) {
  proto::PreflightRequest plain = request();
  plain.set_plaintext(true);
  EXPECT_THAT(compared(plain), ElementsAre("transport"));
}

TEST_F(Hosts, UnsuitableGpusAreAFinding) {
  const proto::PreflightRequest any = request();
  proto::PreflightRequest other_model = any;
  other_model.mutable_host()->mutable_gpus(0)->set_name("another model");
  proto::Buffer& buffer = *other_model.add_buffers();
  buffer.set_gpu_uuid(other_model.host().gpus(0).uuid());
  EXPECT_THAT(mapped(other_model), ElementsAre("gpu-map"));

  proto::PreflightRequest stranger = any;
  stranger.add_buffers()->set_gpu_uuid(std::string(16, 'x'));
  EXPECT_THAT(mapped(stranger), ElementsAre("gpu-unknown"));

  proto::PreflightRequest large = any;
  proto::Buffer& wanted = *large.add_buffers();
  wanted.set_gpu_uuid(large.host().gpus(0).uuid());
  wanted.set_size_bytes(std::uint64_t{1} << 40);
  EXPECT_THAT(mapped(large), ElementsAre("vram-too-small"));
}

TEST_F(Hosts, UnusableGpuIsAFinding) {
  proto::PreflightRequest any = request();
  const std::string gone(16, 'x');
  any.mutable_host()->mutable_gpus(0)->set_uuid(gone);
  here_.facts.mutable_gpus(0)->set_uuid(gone);  // the driver knows no such GPU
  any.add_buffers()->set_gpu_uuid(gone);
  EXPECT_THAT(mapped(any), ElementsAre("gpu-unusable"));
}

TEST_F(Hosts, UnavailableIdsAndLabelsAreFindings) {
  request();
  proto::ProcessFacts process;
  process.set_uid(4'000'000'000);
  process.set_user("alice");
  process.set_group("root");
  EXPECT_THAT(compared(process), ElementsAre("user-unknown"));
  process.set_uid(0);
  process.set_user("root");
  process.set_capabilities(std::uint64_t{1} << 63);
  EXPECT_THAT(compared(process), ElementsAre("capabilities"));
  process.clear_capabilities();
  process.set_apparmor_profile("a-profile-that-is-nowhere");
  EXPECT_THAT(compared(process), ElementsAre("security-label"));
  process.clear_apparmor_profile();
  process.set_selinux_context("user_u:user_r:user_t:s0");
  EXPECT_THAT(compared(process), ElementsAre("security-label"));
}

TEST_F(Hosts, CapabilitiesHaveNames) {
  EXPECT_EQ(capability_names(std::uint64_t{1} << CAP_SYS_ADMIN | std::uint64_t{1} << CAP_CHOWN),
            "CAP_CHOWN, CAP_SYS_ADMIN");
  EXPECT_EQ(capability_names(std::uint64_t{1} << CAP_CHECKPOINT_RESTORE), "CAP_CHECKPOINT_RESTORE");
  EXPECT_EQ(capability_names(std::uint64_t{1} << 60), "capability 60");
}

TEST_F(Hosts, ExceededKernelLimitsAreFindings) {
  proto::ProcessFacts process = request().members(0);
  process.set_open_files_limit(~std::uint64_t{0});
  process.set_mappings(~0U);
  process.add_used_pids(0x7fffffff);
  EXPECT_THAT(compared(process), ElementsAre("open-files-limit", "mapping-limit", "pid-limit"));
}

TEST_F(Hosts, UnsupportedGroupLimitsAreFindings) {
  proto::ProcessFacts process = request().members(0);
  process.mutable_limits()->set_processes(100);
  EXPECT_THAT(compared(process), IsEmpty());
  process.mutable_limits()->set_cpus("0-9000");
  EXPECT_THAT(compared(process), ElementsAre("cgroup-limits"));
}

TEST_F(Hosts, HugepagesOfTheProcessNeedFreeOnes) {
  proto::ProcessFacts process = request().members(0);
  proto::HugepageUse& use = *process.add_hugepages();
  use.set_page_bytes(2 * kMiB);
  use.set_bytes(std::uint64_t{1} << 50);
  EXPECT_THAT(compared(process), ElementsAre("hugepages-too-few"));
}

TEST_F(Hosts, TakenOrMissingAddressesAreFindings) {
  proto::ProcessFacts process = request().members(0);
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_TRUE(::bind(socket.get(), generic, length) == 0 &&
              ::getsockname(socket.get(), generic, &length) == 0);
  proto::BoundSocket& bound = *process.add_sockets();
  bound.set_protocol("udp");
  bound.set_port(ntohs(address.sin_port));
  bound.set_address("127.0.0.1");
  EXPECT_THAT(compared(process), ElementsAre("address-in-use"));
  bound.set_protocol("tcp");
  EXPECT_THAT(compared(process), IsEmpty());
  bound.set_address("192.0.2.77");  // becomes the address at which this host was reached
  EXPECT_THAT(compared(process), IsEmpty());
  bound.set_protocol("udp");
  EXPECT_THAT(compared(process), ElementsAre("address-in-use"));
  bound.set_address("2001:db8::77");  // which is of IPv4
  EXPECT_THAT(compared(process), ElementsAre("address-missing"));
}

TEST_F(Hosts, ExistingConnectionIsAFinding) {
  proto::ProcessFacts process = request().members(0);
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in own{};
  socklen_t length = sizeof(there);
  auto* const generic = reinterpret_cast<sockaddr*>(&there);
  ASSERT_TRUE(::bind(listener.get(), generic, length) == 0 && ::listen(listener.get(), 1) == 0 &&
              ::getsockname(listener.get(), generic, &length) == 0 &&
              ::connect(socket.get(), generic, length) == 0 &&
              ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0);
  proto::BoundSocket& end = *process.add_sockets();
  end.set_protocol("tcp");
  end.set_address("127.0.0.1");
  end.set_port(ntohs(own.sin_port));
  end.set_remote_address("127.0.0.1");
  end.set_remote_port(ntohs(there.sin_port));
  EXPECT_THAT(compared(process), ElementsAre("address-in-use"));
  end.set_remote_port(1);
  EXPECT_THAT(compared(process), IsEmpty());
}

TEST_F(Hosts, MissingFileOfTheProcessIsAFinding) {
  proto::ProcessFacts process = request().members(0);
  process.add_files()->set_path((directory_ / "no-such-file").string());
  EXPECT_THAT(compared(process), ElementsAre("file-missing"));
}

}  // namespace
}  // namespace gcr::preflight
