// Signed manifests. A file is parsed only after its signature was verified: by a certificate of an
// agent that the authority has issued, that is valid today and not revoked.
//
//   byte  0  magic        "GCRCKPT1"
//         8  certificate  u32  bytes of the signer's certificate chain, PEM, at most 64 KiB
//        12  signature    u32  bytes of the signature, at most 4 KiB
//        16  body         u64  bytes of the Manifest, at most 1 GiB
//        24  checkpoint   16 bytes: its id, as in the Manifest
//        40  certificate, signature, body; nothing follows
//
// All numbers are little-endian. The signature is over "gcr-migrate checkpoint 1" and the body: of
// the key's own kind (RSA and EC with SHA-256, Ed25519 and Ed448 as they are).
#pragma once

#include <cstddef>
#include <memory>
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

/// Writes the file whole and durable; it does not exist yet. The certificate and key are `files`',
/// and `agent` becomes the name in the certificate. kInternal if read_manifest would refuse it;
/// kIo, kResourceExhausted on a full disk: then nothing is left of it.
Status write_manifest(const Directory& directory, const std::string& file_name,
                      proto::Manifest manifest, const control::TlsFiles& files);

/// Reads the file and verifies it. kNotFound; kPermissionDenied: not signed by an agent of the
/// authority; kDataLoss: altered, cut, or not consistent in itself; kUnsupported: of another format
/// version. On success every number in it that refers to another part of it is in range, extents
/// ascend, and all sizes are within limits.
Result<proto::Manifest> read_manifest(const Directory& directory, const std::string& file_name,
                                      const control::TlsFiles& files);

/// The newest by the time when it was taken, of those that can be read and whose signer is
/// accepted; or the one named. kNotFound if there is none; the rule's error if it does not accept
/// the signer of the one named.
Result<proto::Manifest> find_manifest(const Directory& directory, const std::string& name,
                                      const control::TlsFiles& files, const SignerRule& rule = {});

/// The body of a file, whose signature was verified: parsed, and consistent as read_manifest says.
Result<proto::Manifest> parse_body(std::span<const std::byte> body);

/// kDataLoss, with what is wrong, unless it is consistent in itself. kUnsupported: another format.
Status check_manifest(const proto::Manifest& manifest);

/// The id that a file claims to have; nothing of it is verified. None if there is no such file, or
/// it is none of these; an error if that cannot be told.
Result<std::optional<Uuid>> claimed_id(const Directory& directory, const std::string& file_name);

/// "NAME.checkpoint".
std::string file_of(const std::string& name);
/// "ID.voted".
std::string voted_file_of(const Uuid& checkpoint);
/// "ID.restoring".
std::string restoring_file_of(const Uuid& restore);
/// The restore that has the file; none unless it is such a name.
std::optional<Uuid> restore_of(std::string_view file_name);

}  // namespace gcr::store
