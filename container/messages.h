// What gcr-runtime, gcr-init and the agent agree on.
//
// Orders. The agent orders gcr-init by sigqueue(3): kOrderSignal, with a value:
//   N > 1    process N of gcr-init's PID namespace is the job's root: signals are passed on to it,
//            and its exit status is the container's
//   kMoved   the job has moved away: wait for the engine's stop, then end with 0
// gcr-init takes orders only from outside its PID namespace (si_pid is 0). A process that may
// signal gcr-init can forge one, which harms only its own container.
//
// The thread name of gcr-init says which order it took last, so a name is the answer to an order.
// Wait for it before anything that relies on the order: a standard signal, such as the engine's
// stop, overtakes a real-time signal. An order that names no process is not taken.
#pragma once

#include <signal.h>

#include <string_view>

namespace gcr::container {

// ---- agent and gcr-init ----

inline constexpr int kOrderSignal = NSIG - 2;  ///< SIGRTMAX - 1, which is no constant
inline constexpr int kMoved = -1;

// Thread names of gcr-init (/proc/PID/comm), of at most 15 characters.
inline constexpr char kNameWithRoot[] = "gcr-init";
inline constexpr char kNameReceiving[] = "gcr-receiving";  ///< no root yet
inline constexpr char kNameMoved[] = "gcr-moved";
/// Of the job's root: the only child of gcr-init that moves.
inline constexpr char kNameSupervisor[] = "gcr-supervisor";

// ---- command lines: PID 1 has kInitPath, a mode, the key after kModeReceive, the program ----

inline constexpr char kModeRun[] = "run";
/// As kModeRun; the container's seccomp filters allow userfaultfd(2). The job's root has the same
/// command line, and keeps it when it moves.
inline constexpr char kModeRunTracked[] = "run-tracked";
inline constexpr char kModeReceive[] = "receive";
/// Hexadecimal digits in the key of a migration that a container is to receive.
inline constexpr int kKeyDigits = 32;

/// Whether `text` can be such a key.
constexpr bool is_key(std::string_view text) {
  return text.size() == kKeyDigits &&
         text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

// ---- in every edited container ----

inline constexpr char kFolder[] = "/dev/.gcr";
inline constexpr char kInitPath[] = "/dev/.gcr/init";
inline constexpr char kLibraryPath[] = "/dev/.gcr/libgcr-preload.so";

// ---- what asks gcr-runtime for something ----

/// Annotation: the container waits for the job of the migration with this key.
inline constexpr char kReceiveAnnotation[] = "gcr-migrate.receive";
/// The same as an environment variable, for engines without annotations. The program does not get
/// it.
inline constexpr char kReceiveVariable[] = "GCR_RECEIVE";
/// Annotation: with the value "true" the container is left as it is.
inline constexpr char kOffAnnotation[] = "gcr-migrate.off";
/// Annotation: with the value "true" podman runs the hook `gcr-runtime precreate`.
inline constexpr char kJobAnnotation[] = "gcr-migrate.job";

}  // namespace gcr::container
