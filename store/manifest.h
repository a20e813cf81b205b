// Signed manifests. A file is parsed only after its signature was verified with an agent's
// certificate that was issued by the authority, is valid now and is not revoked.
//
//   byte  0  magic        "GCRCKPT1"
//         8  certificate  u32  bytes of the signer's certificate chain, PEM, at most 64 KiB
//        12  signature    u32  bytes of the signature, at most 4 KiB
//        16  body         u64  bytes of the Manifest, at most 1 GiB
//        24  checkpoint   16 bytes: its id, as in the Manifest
//        40  certificate, signature, body; nothing follows
//
// All numbers are little-endian. The signature covers "gcr-migrate checkpoint 1" and the body; its
// algorithm follows from the key (RSA and EC with SHA-256, Ed25519 and Ed448 without a digest).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "proto/checkpoint.pb.h"
#include "src/base/result.h"
#include "src/control/tls_files.h"
#include "store/directory.h"
#include "store/signing.h"

namespace gcr::store {

inline constexpr std::uint32_t kFormat = 1;
inline constexpr std::size_t kDigestBytes = 16;  ///< of a chunk

/// Writes a new file atomically and durably. Signs with certificate and key of `files`, and sets
/// `agent` to the name in the certificate. kInternal if read_manifest() would refuse the manifest;
/// kIo, kResourceExhausted on a full disk: then no file is left.
Status write_manifest(const Directory& directory, const std::string& file_name,
                      proto::Manifest manifest, const control::TlsFiles& files);

/// Reads and verifies a file. kNotFound; kPermissionDenied: not signed by an agent of the
/// authority, or one that `rule` does not accept; kDataLoss: altered, truncated, or inconsistent;
/// kUnsupported: another format version. On success all references inside the manifest are in
/// range, extents ascend, and all sizes are within limits.
Result<proto::Manifest> read_manifest(const Directory& directory, const std::string& file_name,
                                      const control::TlsFiles& files, const SignerRule& rule = {});

/// Finds the named checkpoint or, without a name, the newest one (by the time when it was taken)
/// that can be read and whose signer `rule` accepts. kNotFound if there is none; the rule's error
/// if it does not accept the signer of the named one.
Result<proto::Manifest> find_manifest(const Directory& directory, const std::string& name,
                                      const control::TlsFiles& files, const SignerRule& rule = {});

/// Parses the body of a file whose signature was verified, and checks it as read_manifest() does.
Result<proto::Manifest> parse_body(std::span<const std::byte> body);

/// Checks that the manifest is consistent. kDataLoss with the reason; kUnsupported: another format.
Status check_manifest(const proto::Manifest& manifest);

/// The checkpoint id in a file's header, which is not verified. Nullopt if there is no such file,
/// or it is no manifest; an error if the file cannot be read.
Result<std::optional<Uuid>> claimed_id(const Directory& directory, const std::string& file_name);

/// Whether `one` was taken before `other`, or has the lesser name.
bool is_older(const proto::Manifest& one, const proto::Manifest& other);

/// "NAME.checkpoint".
std::string file_of(const std::string& name);
/// "ID.voted".
std::string voted_file_of(const Uuid& checkpoint);
/// "ID.restoring".
std::string restoring_file_of(const Uuid& restore);
/// The restore that owns the file; nullopt unless the name is "ID.restoring".
std::optional<Uuid> restore_of(std::string_view file_name);

}  // namespace gcr::store
