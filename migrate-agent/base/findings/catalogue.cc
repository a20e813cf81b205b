#include "migrate-agent/base/findings/catalogue.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace gcr::findings {
namespace {

constexpr auto kBlocker = proto::Finding::BLOCKER;
constexpr auto kWarning = proto::Finding::WARNING;

constexpr auto kCatalogue = std::to_array<Kind>({
    // the process
    {"no-process", kBlocker, "There is nothing to move.",
     "Give the PID of a running process as the agent at the source sees it."},
    {"cannot-inspect", kBlocker, "A process that cannot be inspected cannot be moved safely.",
     "Let the agent run as root with CAP_SYS_PTRACE, in a PID namespace that contains the "
     "process."},
    {"not-ours", kBlocker, "The host or the migration itself depends on this process.",
     "Give the PID of the GPU program."},
    {"in-migration", kBlocker, "A process takes part in one migration at a time.",
     "Wait for the other migration (gcr-migrate list), or cancel it."},
    {"traced", kBlocker, "A dump needs ptrace, and a process has at most one tracer.",
     "Detach the debugger or tracer."},
    {"stopped", kWarning,
     "A migrated process runs at the destination, even if it was stopped before.",
     "Nothing, or continue it first."},
    {"too-many-processes", kBlocker, "The number of processes that a job may have is limited.",
     "Split the job."},
    {"namespaces", kBlocker,
     "A process is restored in the network, UTS, user and cgroup namespaces of the agent; an IPC "
     "namespace moves with all its processes.",
     "Run the agent in the same container as the process, on both sides, or move all processes of "
     "the IPC namespace as one job."},
    {"mount-namespace", kBlocker,
     "CRIU works inside the mount namespace of the process, and relies on what it finds there.",
     "Make the namespace in the agent's user namespace, and mount nothing over /proc in it."},
    {"root-directory", kBlocker, "CRIU cannot dump a process whose root is not that of its mounts.",
     "Start it without chroot, or in a mount namespace of its own (pivot_root)."},
    {"foreign-mount", kBlocker, "CRIU finds open files by the mounts that the process itself has.",
     "Open the file inside the mount namespace: redirect streams after entering it."},
    {"proc-file", kBlocker,
     "CRIU opens a file of /proc again by its name, which leads to another process, or to another "
     "program.",
     "Close it, or open it again after an execve."},
    {"terminal", kBlocker, "A terminal stays on its host.",
     "Start the program with its streams on files or /dev/null."},
    {"outside-pipe", kBlocker, "The other end of the pipe would stay behind.",
     "Redirect it to a file or /dev/null, or end the process at the other end."},
    {"outside-socket", kBlocker, "The other end of the socket would stay behind.",
     "Close the connection, for example to the system's log or a message bus."},
    {"socket-kind", kBlocker, "CRIU cannot dump sockets of this kind.",
     "Have the program use TCP, UDP or Unix sockets."},
    {"tcp-established", kBlocker,
     "A TCP connection moves only if both ends do: a peer outside knows the source's address.",
     "Close the connection; or use --tcp close: at the destination the program sees that it was "
     "reset, and clients connect anew."},
    {"tcp-reset", kWarning, "At the destination the program sees that the connection was reset.",
     "Nothing, if the program and its clients connect anew; else leave --tcp close out."},
    {"address-in-use", kBlocker, "The process cannot be restored where its port is taken.",
     "End the program that has the port at the destination; within one network namespace a process "
     "that is bound to a port cannot be moved."},
    {"address-missing", kBlocker,
     "An address of the source's becomes the one at which the destination's agent is reached, "
     "which "
     "is of another family here.",
     "Bind the program to the wildcard address, give the destination the address, or name the "
     "destination by an address of that family."},
    {"device", kBlocker, "The state of a device stays in its host's kernel.",
     "Close the device before the migration."},
    {"io-uring", kBlocker, "CRIU cannot dump an io_uring.",
     "Start the program under the preload library and without GCR_IO_URING=allow: libuv, uvloop "
     "and PyTorch's TCPStore then get no ring and work without one; UV_USE_IO_URING=0 does not "
     "remove theirs. A ring that is made without libc's syscall(2), as by liburing, has to be "
     "denied before the program starts, by kernel.io_uring_disabled=2 (Linux 6.6) or a seccomp "
     "filter."},
    {"kernel-object", kBlocker, "CRIU cannot dump this object of the kernel.",
     "Close it before the migration; end profilers and monitors that run inside the process."},
    {"deleted-file", kBlocker, "A deleted file moves inside CRIU's images, and only a small one.",
     "Keep the file under its name and copy it to the destination, or close it."},
    {"deleted-file-access", kBlocker,
     "The content of a deleted file moves inside CRIU's images, and nobody gets one that they "
     "could not read.",
     "Let the process's user read the file, keep it under its name, or close it."},
    {"shared-memory", kBlocker,
     "Memory that is shared with processes outside the job would no longer be shared.",
     "End the sharing, end the other process, or move both as one job."},
    {"system-v", kBlocker,
     "System V objects move with the IPC namespace that they are in, and not out of the host's.",
     "Start the program in an IPC namespace of its own (unshare --ipc, or a container's)."},
    {"system-v-stays", kWarning,
     "Semaphores and message queues of the host's IPC namespace stay, and nobody can tell whose "
     "they "
     "are.",
     "Nothing, if the program does not use them; else start it in an IPC namespace of its own."},
    {"memory-file", kBlocker,
     "A file on a tmpfs that the job alone has moves with it: into the same directory, and never "
     "in "
     "the place of another file.",
     "Make the directory at the destination, or room in it; remove the file of that name there if "
     "nobody needs it."},
    {"file-by-size", kWarning, "A file that differs in content would not be noticed.",
     "Make sure that both hosts have the same file."},
    {"file-missing", kBlocker, "The restored process needs the same file under the same name.",
     "Install or copy the file, or mount the shared file system, at the destination."},
    {"file-differs", kBlocker,
     "The restored process opens the file of that name: it must be the same file.",
     "Give the destination the same version of the file, with the same owner, group and mode."},
    {"file-access", kBlocker,
     "A migration gives a process no file that it could not open by itself.",
     "Let the process's user use the file at the destination, and reach it through its "
     "directories."},
    {"cpu-affinity", kWarning, "CRIU does not carry over on which CPUs a process may run.",
     "Pin it again after the migration (taskset -p)."},
    {"landlock", kBlocker,
     "A domain of Landlock cannot be carried: the process would be free of it.",
     "Start the program without the sandbox, or let it go without: --accept landlock.", true},
    {"mdwe", kBlocker,
     "The destination's kernel cannot forbid the process memory that is writable and executable, "
     "as PR_SET_MDWE does.",
     "Choose a destination with Linux 6.3 or newer, or let the process go without: --accept mdwe.",
     true},
    {"mseal", kBlocker, "Seals on memory (mseal) cannot be carried: the process could change it.",
     "Start the program without the seals, or let it go without: --accept mseal.", true},
    {"numa-mappings", kWarning,
     "The NUMA policy of a thread is carried, that of a mapping (mbind) is not.",
     "Nothing, if the program need not be fast there; numactl gives threads a policy."},
    {"keyring", kWarning, "Keys stay in their host's kernel.",
     "Nothing, if the program needs none of them; else let it make them again."},
    {"cgroup-limits", kBlocker, "A process keeps what its control groups limit.",
     "Give the host the controllers, CPUs or memory nodes that are named, or lift the limit."},
    {"user-unknown", kWarning, "User and group ids are carried over as numbers.",
     "Create the user or group with the same id at the destination."},
    {"capabilities", kBlocker, "A process cannot get capabilities that the agent cannot hand on.",
     "Extend CapabilityBoundingSet= of the destination's agent."},
    {"agent-capabilities", kBlocker, "CRIU needs these capabilities for this process.",
     "Give the agent the capabilities: see CapabilityBoundingSet= of its unit."},
    {"security-label", kBlocker, "What confines the process must confine it at the destination.",
     "Load the AppArmor profile at the destination. Under SELinux, start the agent in the context "
     "of the job: SELinuxContext= of its unit."},
    {"open-files-limit", kBlocker, "The process's limit cannot be set.",
     "Raise fs.nr_open at the destination."},
    {"mapping-limit", kBlocker, "The process has more mappings than the kernel allows.",
     "Raise vm.max_map_count at the destination."},
    {"pid-limit", kBlocker, "The process keeps its numbers, which must be possible.",
     "Raise kernel.pid_max at the destination."},
    {"hugepages-too-few", kBlocker, "The process's own hugepages are allocated again.",
     "Raise vm.nr_hugepages at the destination."},
    // CUDA in the process
    {"in-vfork", kBlocker,
     "A process that waits in vfork cannot be stopped before its child has executed a program or "
     "ended.",
     "Let the child execute its program, or end it."},
    {"no-door", kBlocker,
     "VRAM is moved through the preload library, which is there from the first call of CUDA or HIP "
     "on.",
     "Start the program with `gcr-migrate run --`, and wait until it uses the GPU."},
    {"no-library", kBlocker,
     "What no library tracks cannot be copied while the program runs: its whole VRAM goes through "
     "the driver during the downtime.",
     "Start the program with `gcr-migrate run --`, or accept the downtime: --allow-slow."},
    {"no-library-slow", kWarning,
     "The program stands still while its whole VRAM goes through the driver and the network.",
     "Nothing, if it may; else start it with `gcr-migrate run --`."},
    {"downtime-limit", kBlocker, "Without the preload library the limit cannot be kept.",
     "Raise --downtime-limit or leave it out, or start the program with `gcr-migrate run --`."},
    {"unseen-memory", kBlocker,
     "The driver would lose memory that is shared or multicast, and without the preload library it "
     "cannot be seen.",
     "Start all programs that use CUDA with `gcr-migrate run --`, or end the others first."},
    {"cuda-state", kBlocker, "The driver moves a process only while its CUDA state is running.",
     "Restore and unlock it with the tool that checkpointed or locked it, for example "
     "cuda-checkpoint."},
    {"busy-gpu", kBlocker,
     "NVIDIA's driver does not interrupt the kernels of a restored process for other programs: "
     "kernels that wait for each other on several GPUs, as NCCL's do, would end with an error.",
     "Name GPUs that nobody else uses (--device-map), end the other program, or let it go there if "
     "its kernels do not wait for each other: --accept busy-gpu.",
     true},
    {"managed-memory", kBlocker, "The driver cannot checkpoint managed memory.",
     "Use cudaMalloc instead of cudaMallocManaged, and __device__ variables instead of "
     "__managed__ ones."},
    {"ipc-memory", kBlocker, "The driver's own IPC handles cannot be moved.",
     "Do not allocate what is shared while a stream is captured, or end the sharing "
     "(cudaIpcCloseMemHandle) first."},
    {"foreign-handles", kBlocker,
     "GPU memory that somebody outside the job has too would no longer be shared.",
     "Move all who share it as one job, or end the sharing first. With NCCL's multicast: start "
     "with NCCL_NVLS_ENABLE=0."},
    {"pool-memory", kBlocker,
     "The driver checkpoints a memory pool that is shared with other processes, or on the host, "
     "and cannot restore it.",
     "Use pools of one process on a GPU, and share memory by cuMemCreate or cudaIpcGetMemHandle."},
    {"profiler", kBlocker,
     "The driver does not checkpoint a process after a profiler has attached itself, not even when "
     "it has left.",
     "Start the program without torch.profiler's CUDA activities, nsys, ncu and the like."},
    {"past-gate", kBlocker,
     "What a library calls in the driver past the preload library cannot be held back while GPU "
     "memory moves. That is brought back by itself where it can be.",
     "Do not load a second driver (dlmopen, another libcuda.so.1); use a release of gcr-migrate "
     "that knows the function that is named."},
    {"too-many-buffers", kBlocker, "A migration takes a limited number of allocations.",
     "Use an allocator that pools, such as PyTorch's."},
    {"untracked-memory", kWarning,
     "GPU memory that is not tracked is copied by the driver while the process stands still: what "
     "graphs allocate, pools that can be exported, small allocations made during a capture.",
     "Nothing if it is little; else allocate outside of captures and from other pools."},
    {"withheld-functions", kWarning,
     "The preload library gives a program no driver function that it does not know, since that "
     "could use GPU memory during a migration. The program goes without it, as with an older "
     "driver.",
     "Nothing if the program works; else use a release of gcr-migrate that knows the function "
     "(GCR_PRELOAD_LOG=1 names it)."},
    {"mps", kBlocker, "The driver cannot checkpoint clients of the Multi-Process Service.",
     "Stop the MPS control daemon (echo quit | nvidia-cuda-mps-control) and restart the program."},
    // the hosts
    {"no-driver", kBlocker, "Both hosts need a working driver of their GPUs.",
     "Install NVIDIA's driver, and let the agent find libcuda.so.1 and /dev/nvidia*; or ROCm, and "
     "let it find libamdhip64.so and /dev/kfd."},
    {"driver-too-old", kBlocker, "The driver's checkpoint functions came with release 570.",
     "Install driver 570 or newer."},
    {"driver-older", kBlocker, "An older driver cannot restore what a newer one checkpointed.",
     "Upgrade the destination's driver to the source's."},
    {"driver-release", kWarning, "Checkpoints are tested between equal releases of the driver.",
     "Install the same release on both hosts."},
    {"mig", kBlocker, "The driver cannot checkpoint processes on MIG instances.",
     "Use GPUs without MIG (nvidia-smi -mig 0), or hide the instances from the agent."},
    {"compute-mode", kBlocker, "The agent and the process use the GPU at the same time.",
     "Set the default compute mode: nvidia-smi -c DEFAULT."},
    {"amd-unknown", kBlocker,
     "GPUs of AMD's are compared by what the kernel says of them in sysfs.",
     "Let the agent see the host's sysfs (`sysfs` in agent.toml), and all nodes of "
     "/sys/class/kfd/kfd/topology."},
    {"amd-partitions", kBlocker,
     "All partitions of a GPU have the same identifier, so none can be named.",
     "Use the GPU undivided (compute partition mode SPX)."},
    {"amd-partition-mode", kBlocker,
     "CRIU's plugin restores only onto a GPU with the same properties.",
     "Set the same compute and memory partition modes on both hosts."},
    {"amd-architecture", kBlocker, "The kernel does not save queues of a GPU of this architecture.",
     "Use a GPU of another architecture."},
    {"amd-dies", kBlocker,
     "The driver saves the queues of the first die only, and the restored process hangs.",
     "Install AMD's driver 6.16.13 or newer, or a kernel of 6.18 or newer."},
    {"amd-waves", kBlocker, "The kernel does not save the queues of a process without it.",
     "Load amdgpu with cwsr_enable=1, which is its default."},
    {"amd-no-vram", kBlocker, "CRIU's plugin does not take GPUs without VRAM of their own.",
     "Use a GPU with VRAM."},
    {"amd-firmware", kBlocker, "CRIU's plugin restores only onto firmware that is not older.",
     "Install the source's firmware at the destination."},
    {"amd-properties", kBlocker, "CRIU's plugin restores only onto a GPU with the same properties.",
     "Choose a destination with the same GPU, equally configured."},
    {"amd-xnack", kBlocker,
     "The kernel restores a process that retries page faults only where it "
     "can go on doing so.",
     "Choose a destination whose GPUs can retry page faults, or start the program without "
     "HSA_XNACK=1."},
    {"amd-render-only", kBlocker,
     "CRIU's plugin moves only what uses a GPU through /dev/kfd: no graphics, no video.",
     "Close what uses the GPU for graphics or video before the migration."},
    {"amd-render-order", kBlocker,
     "CRIU restores descriptors in their order, and its plugin needs /dev/kfd first.",
     "Start HIP before anything else that opens a render node."},
    {"amd-render-nodes", kBlocker,
     "CRIU's plugin finds GPUs by their render nodes, in the process's mount namespace.",
     "Give the container all of /dev/dri."},
    {"amd-mapping", kBlocker, "CRIU's plugin restores a buffer's mapping by its address alone.",
     "Do not map memory of the GPU twice."},
    {"amd-inherited", kBlocker, "A /dev/kfd belongs to the process that has opened it.",
     "Start child processes by executing a program, or close /dev/kfd in them."},
    {"amd-queue", kBlocker, "The kernel does not save queues of this kind.",
     "Start the program with HSA_ENABLE_SDMA=0, or with one GPU."},
    {"gpu-map", kBlocker, "The driver restores only onto GPUs of the same model and size.",
     "Choose a destination with as many GPUs of that model, allow them (`gpus` in agent.toml), or "
     "order other pairs (--device-map)."},
    {"gpu-unknown", kBlocker, "The driver needs a pair for every GPU that the process uses.",
     "Let the source's agent see all GPUs of the process."},
    {"gpu-unusable", kBlocker, "The process's VRAM must be created there.",
     "See the reason in what was found; nvidia-smi tells the GPU's state."},
    {"vram-too-small", kBlocker, "The process's VRAM and its context must fit.",
     "Free VRAM at the destination, or use --no-prefill if it will be free by the switchover."},
    {"memory-too-small", kBlocker, "VRAM and images pass through main memory.",
     "Free memory on that host."},
    {"checkpoint-room", kBlocker, "A checkpoint is written whole.",
     "Free space there, or choose another directory."},
    {"checkpoint-room-short", kWarning,
     "What earlier checkpoints in the directory have is not written again; how much that is, is "
     "known when it is written.",
     "Free space there: a checkpoint that finds no room is given up, and the process goes on."},
    {"no-hugepages", kBlocker, "The destination's configuration demands hugepages.",
     "Raise vm.nr_hugepages, or set hugepages = \"auto\" in agent.toml."},
    {"no-dirty-tracking", kBlocker, "Images in rounds need to know which pages were written.",
     "Use --image-mode auto, or a kernel of 6.7 or newer, or with CONFIG_MEM_SOFT_DIRTY."},
    {"criu-missing", kBlocker, "CRIU dumps and restores the process.",
     "Install CRIU, or name it in criu.command of agent.toml."},
    {"criu-too-old", kBlocker, "Older releases of CRIU fail on this kernel.",
     "Install the release that was named, or a newer one."},
    {"criu-check", kBlocker, "CRIU's own check says that it cannot work on this host.",
     "Run `criu check` there and follow what it says."},
    {"criu-plugin", kBlocker, "CRIU's plugin moves all state of AMD's GPUs that is not in VRAM.",
     "Install gcr-migrate-criu, which has it, or name the directory of an amdgpu_plugin.so of "
     "CRIU's own release in criu.plugins of agent.toml."},
    {"cpu-features", kBlocker,
     "The process detected its CPU's features when it started, and keeps using them.",
     "Choose a destination with the same model of CPU; newer ones may differ in their registers."},
    {"cpu-not-compared", kWarning, "A CPU without features of the source's would be noticed late.",
     "Make sure that the destination has the same model of CPU."},
    {"kernel-features", kBlocker, "The agent cannot work without these functions of the kernel.",
     "Run Linux 5.10 or newer, without a filter on the agent's system calls."},
    {"no-freezer", kBlocker,
     "A copy that must not run would run as soon as anybody sends it SIGCONT.",
     "Give the agent a writable control group hierarchy (version 2, or the freezer of version 1), "
     "or set allow_unfrozen = true in agent.toml."},
    {"state-dir-full", kBlocker, "A migration is only begun when its journal can be written.",
     "Free space in state_dir."},
    {"runtime-dir-full", kBlocker, "CRIU's images are kept there.",
     "Enlarge the file system of runtime_dir, or free space in it."},
    {"too-many-migrations", kBlocker, "The agent's configuration limits how many run at a time.",
     "Wait for one to end, or raise max_migrations in agent.toml."},
    {"transport", kBlocker, "The requested transport cannot be used between these hosts.",
     "Leave out --transport and --plaintext, or set unencrypted_data = true on both hosts."},
    {"clock-skew", kWarning, "The program sees the wall clock jump by this difference.",
     "Synchronise the clocks of both hosts (NTP)."},
    {"software-differs", kWarning, "Only equal releases of the agent are tested.",
     "Install the same release on both hosts."},
    {"destination-not-asked", kWarning,
     "The destination is not told about a process that cannot leave the source.",
     "Remove the source's blockers, and ask again: then the destination is asked too."},
    {"slurm-job", kBlocker,
     "From the commit on the job of Slurm's that --slurm-job names owns the processes: it has to "
     "run at the destination, for their user.",
     "Describe Slurm in the destination's agent.toml ([slurm]); set PrologFlags=contain in "
     "slurm.conf; name a job of the same user that runs on that node."},
    {"destination-unreachable", kBlocker, "The destination's side could not be examined.",
     "Start the agent there; check the address, the port and the firewall."},
    {"destination-refused", kBlocker, "The destination's side could not be examined.",
     "Give both agents certificates of one authority, and the same release."},
});

constexpr std::string_view kWithoutInfiniBand =
    "Start the program with NCCL_IB_DISABLE=1 and, if it uses UCX, UCX_TLS=^ib and "
    "UCX_SOCKADDR_TLS_PRIORITY=tcp.";

constexpr auto kObjectRemedies = std::to_array<ObjectRemedy>({
    {"/dev/infiniband/", kWithoutInfiniBand},
    {"anon_inode:[infinibandevent]", kWithoutInfiniBand},
    {"/dev/gdrdrv",
     "Start the program with NCCL_GDRCOPY_ENABLE=0 and, if it uses UCX, UCX_TLS=^gdr_copy "
     "(UCX_TLS=^ib,gdr_copy without InfiniBand too)."},
});

const char* host_name(Side side) { return side == Side::kSource ? "source" : "destination"; }

}  // namespace

std::span<const Kind> catalogue() { return kCatalogue; }

std::span<const ObjectRemedy> object_remedies() { return kObjectRemedies; }

bool can_be_accepted(std::string_view id) {
  const auto kind = std::ranges::find(kCatalogue, id, &Kind::id);
  return kind != kCatalogue.end() && kind->acceptable;
}

proto::Finding make_finding(std::string_view id, Side side, std::string found) {
  const auto kind = std::ranges::find(kCatalogue, id, &Kind::id);
  if (kind == kCatalogue.end()) throw std::logic_error("no such finding: " + std::string(id));
  proto::Finding finding;
  finding.set_id(std::string(kind->id));
  finding.set_severity(kind->severity);
  finding.set_found(std::move(found));
  finding.set_why(std::string(kind->why));
  finding.set_remedy(std::string(kind->remedy));
  finding.set_host(host_name(side));
  return finding;
}

bool Findings::has(std::string_view id, std::string_view found) const {
  return std::ranges::any_of(
      list_, [&](const proto::Finding& one) { return one.id() == id && one.found() == found; });
}

proto::Finding* Findings::append(std::string_view id, std::string found) {
  if (has(id, found)) return nullptr;
  const std::size_t number = ++added_[std::string(id)];
  if (number > kMostOfAKind) return nullptr;
  if (number == kMostOfAKind) found += ", and there are more like this";
  return &list_.emplace_back(make_finding(id, side_, std::move(found)));
}

void Findings::add(std::string_view id, std::string found) { append(id, std::move(found)); }

void Findings::add_object(std::string_view id, std::string found, std::string_view name) {
  proto::Finding* const finding = append(id, std::move(found));
  const auto known = std::ranges::find_if(
      kObjectRemedies, [name](const ObjectRemedy& one) { return name.starts_with(one.name); });
  if (finding == nullptr || known == kObjectRemedies.end()) return;
  finding->set_remedy(std::string(known->remedy));
}

void Findings::take(std::vector<proto::Finding> findings) {
  for (proto::Finding& finding : findings) {
    if (!has(finding.id(), finding.found())) list_.push_back(std::move(finding));
  }
}

void Findings::accept(const google::protobuf::RepeatedPtrField<std::string>& ids) {
  for (proto::Finding& finding : list_) {
    if (!can_be_accepted(finding.id()) || std::ranges::find(ids, finding.id()) == ids.end()) {
      continue;
    }
    finding.set_severity(proto::Finding::WARNING);
  }
}

bool Findings::has_blocker() const { return std::ranges::any_of(list_, is_blocker); }

bool is_blocker(const proto::Finding& finding) {
  return finding.severity() != proto::Finding::WARNING;
}

std::string reason_of(const std::vector<proto::Finding>& findings) {
  std::string text;
  for (const proto::Finding& finding : findings) {
    if (!is_blocker(finding)) continue;
    if (!text.empty()) text += "; ";
    text += note_of(finding);
  }
  return text;
}

std::string note_of(const proto::Finding& finding) {
  return finding.found() + " [" + finding.id() + "]";
}

}  // namespace gcr::findings
