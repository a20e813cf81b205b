#include "store/manifest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cstring>

#include "src/base/little_endian.h"
#include "src/base/log.h"
#include "src/control/wire.h"

namespace gcr::store {
namespace {

constexpr std::string_view kMagic = "GCRCKPT1";
constexpr std::string_view kContext = "gcr-migrate checkpoint 1";
constexpr std::string_view kRestoring = ".restoring";
constexpr std::size_t kHeaderBytes = 40;
constexpr std::uint64_t kMaxBodyBytes = 1024 * 1024 * 1024;

using Header = std::array<std::byte, kHeaderBytes>;

/// The lengths in a file's header.
struct Lengths {
  std::uint32_t chain = 0;
  std::uint32_t signature = 0;
  std::uint64_t body = 0;
  Uuid checkpoint;

  std::uint64_t file() const { return kHeaderBytes + chain + signature + body; }
};

Error damaged(std::string_view why) {
  return Error(Code::kDataLoss, fmt::format("it was altered or is not complete: {}", why));
}

Header header_of(const Lengths& lengths) {
  Header header{};
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  store_little_endian(&header[8], lengths.chain);
  store_little_endian(&header[12], lengths.signature);
  store_little_endian(&header[16], lengths.body);
  std::memcpy(&header[24], lengths.checkpoint.bytes.data(), lengths.checkpoint.bytes.size());
  return header;
}

Result<Lengths> parse_header(const Header& header) {
  const std::string_view magic(reinterpret_cast<const char*>(header.data()), kMagic.size());
  if (magic != kMagic && magic.substr(0, 7) == kMagic.substr(0, 7)) {
    return Error(Code::kUnsupported, "its format is not supported by this release");
  }
  if (magic != kMagic) return damaged("it does not begin like a checkpoint");
  Lengths lengths;
  lengths.chain = load_little_endian<std::uint32_t>(&header[8]);
  lengths.signature = load_little_endian<std::uint32_t>(&header[12]);
  lengths.body = load_little_endian<std::uint64_t>(&header[16]);
  std::memcpy(lengths.checkpoint.bytes.data(), &header[24], lengths.checkpoint.bytes.size());
  if (lengths.chain > kMaxChainBytes || lengths.signature > kMaxSignatureBytes ||
      lengths.body > kMaxBodyBytes) {
    return damaged("its lengths exceed the limits");
  }
  return lengths;
}

Result<Lengths> read_header(int file) {
  Header header{};
  const Status read = read_all(file, header, 0);
  if (!read && read.error().code() == Code::kDataLoss) return damaged("it is too short");
  GCR_TRY(read);
  return parse_header(header);
}

/// A buffer for the signed bytes: kContext, then space for the body.
std::vector<std::byte> signed_bytes(std::uint64_t body_bytes) {
  std::vector<std::byte> bytes(kContext.size() + body_bytes);
  std::memcpy(bytes.data(), kContext.data(), kContext.size());
  return bytes;
}

/// Reads a file, and verifies its signature before it parses the body.
Result<proto::Manifest> read_signed(int file, const control::TlsFiles& files) {
  GCR_ASSIGN(const Lengths lengths, read_header(file));
  struct stat facts {};
  if (::fstat(file, &facts) != 0 || static_cast<std::uint64_t>(facts.st_size) != lengths.file()) {
    return damaged(fmt::format("it has {} bytes instead of {}", facts.st_size, lengths.file()));
  }
  std::string chain(lengths.chain, '\0');
  GCR_TRY(read_all(file, std::as_writable_bytes(std::span(chain)), kHeaderBytes));
  GCR_ASSIGN(const Signer signer, Signer::verify(chain, files));
  std::vector<std::byte> signature(lengths.signature);
  GCR_TRY(read_all(file, signature, kHeaderBytes + lengths.chain));
  std::vector<std::byte> bytes = signed_bytes(lengths.body);
  const auto body = std::span(bytes).subspan(kContext.size());
  GCR_TRY(read_all(file, body, lengths.file() - lengths.body));
  if (!signer.has_signed(bytes, signature)) {
    return damaged(fmt::format("the signature of \"{}\" does not match its bytes", signer.name()));
  }
  GCR_ASSIGN(proto::Manifest manifest, parse_body(body));
  if (manifest.agent() != signer.name()) {
    return damaged(fmt::format("it was signed by \"{}\" but taken by \"{}\"", signer.name(),
                               manifest.agent()));
  }
  if (to_uuid(manifest.checkpoint_id()) != lengths.checkpoint) {
    return damaged("its header names another checkpoint");
  }
  return manifest;
}

/// Checks that a published file has the name in its manifest, so that no checkpoint can pass for
/// another. Files that a restore owns have no such name and are not checked.
Status check_name(const std::string& file_name, const proto::Manifest& manifest) {
  if (file_name == file_of(manifest.name()) ||
      file_name == voted_file_of(to_uuid(manifest.checkpoint_id())) || restore_of(file_name)) {
    return {};
  }
  return damaged(
      fmt::format("it was renamed: its manifest names the checkpoint {}", manifest.name()));
}

Status write_durably(const Directory& directory, const std::string& file_name,
                     std::span<const std::byte> head, std::span<const std::byte> body) {
  const std::string fresh = file_name + ".new";
  GCR_TRY(directory.remove(fresh));
  GCR_ASSIGN(const UniqueFd file, directory.open_file(fresh, O_RDWR | O_CREAT | O_EXCL));
  int error = write_all(file.get(), head, 0);
  if (error == 0) error = write_all(file.get(), body, head.size());
  if (error == 0) error = sync_file(file.get());
  Status done;
  if (error != 0) done = directory.failed(error, fmt::format("cannot write {}", file_name));
  if (done) done = directory.rename(fresh, file_name);
  if (done) done = directory.sync();
  if (!done) (void)directory.remove(fresh);
  return done;
}

}  // namespace

Status write_manifest(const Directory& directory, const std::string& file_name,
                      proto::Manifest manifest, const control::TlsFiles& files) {
  GCR_ASSIGN(*manifest.mutable_agent(), own_name(files));
  if (const Status consistent = check_manifest(manifest); !consistent) {
    return Error(Code::kInternal, fmt::format("the manifest for {} is inconsistent: {}", file_name,
                                              consistent.error().message()));
  }
  const std::uint64_t body_bytes = manifest.ByteSizeLong();
  if (body_bytes > kMaxBodyBytes) {
    return Error(Code::kUnsupported,
                 fmt::format("the manifest of {} would have {} bytes, more than {}", file_name,
                             body_bytes, kMaxBodyBytes));
  }
  std::vector<std::byte> bytes = signed_bytes(body_bytes);
  const auto body = std::span(bytes).subspan(kContext.size());
  manifest.SerializeToArray(body.data(), static_cast<int>(body.size()));
  GCR_ASSIGN(const Signed proof, sign(bytes, files));
  const Header header = header_of({static_cast<std::uint32_t>(proof.chain.size()),
                                   static_cast<std::uint32_t>(proof.signature.size()), body_bytes,
                                   to_uuid(manifest.checkpoint_id())});
  std::vector<std::byte> head(header.begin(), header.end());
  const auto chain = std::as_bytes(std::span(proof.chain));
  head.insert(head.end(), chain.begin(), chain.end());
  head.insert(head.end(), proof.signature.begin(), proof.signature.end());
  return write_durably(directory, file_name, head, body);
}

Result<proto::Manifest> read_manifest(const Directory& directory, const std::string& file_name,
                                      const control::TlsFiles& files, const SignerRule& rule) {
  GCR_ASSIGN(const UniqueFd file, directory.open_file(file_name, O_RDONLY));
  auto manifest = read_signed(file.get(), files);
  Status good;
  if (!manifest) good = manifest.error();
  if (good) good = check_name(file_name, *manifest);
  if (good && rule) good = rule(manifest->agent());
  if (good) return manifest;
  return good.error().while_doing(
      fmt::format("the checkpoint {}/{} cannot be used", directory.path().native(), file_name));
}

Result<proto::Manifest> find_manifest(const Directory& directory, const std::string& name,
                                      const control::TlsFiles& files, const SignerRule& rule) {
  if (!name.empty() && !is_name(name)) {
    return Error(Code::kInvalidArgument, fmt::format("\"{}\" is not a valid name of a checkpoint",
                                                     control::printable(name)));
  }
  if (!name.empty()) {
    auto named = read_manifest(directory, file_of(name), files, rule);
    if (named || named.error().code() != Code::kNotFound) return named;
    return Error(Code::kNotFound,
                 fmt::format("{} has no checkpoint {}", directory.path().native(), name));
  }
  GCR_ASSIGN(const auto names, directory.names());
  std::optional<proto::Manifest> newest;
  std::string problem;
  for (const std::string& one : names) {
    auto manifest = read_manifest(directory, file_of(one), files, rule);
    if (!manifest) {
      spdlog::warn("{}", manifest.error().message());
      problem = "; " + manifest.error().message();
    } else if (!newest || is_older(*newest, *manifest)) {
      newest = *std::move(manifest);
    }
  }
  if (newest) return *std::move(newest);
  return Error(Code::kNotFound, fmt::format("{} has no checkpoint that can be used{}",
                                            directory.path().native(), problem));
}

Result<std::optional<Uuid>> claimed_id(const Directory& directory, const std::string& file_name) {
  const auto is_another = [](const Error& error) {
    return error.code() == Code::kNotFound || error.code() == Code::kRefused ||
           error.code() == Code::kDataLoss || error.code() == Code::kUnsupported;
  };
  const auto file = directory.open_file(file_name, O_RDONLY);
  if (!file && is_another(file.error())) return std::nullopt;
  GCR_TRY(file);
  const auto lengths = read_header(file->get());
  if (!lengths && is_another(lengths.error())) return std::nullopt;
  GCR_TRY(lengths);
  return lengths->checkpoint;
}

bool is_older(const proto::Manifest& one, const proto::Manifest& other) {
  return std::pair(one.taken_unix_ms(), one.name()) <
         std::pair(other.taken_unix_ms(), other.name());
}

std::string file_of(const std::string& name) { return name + ".checkpoint"; }

std::string voted_file_of(const Uuid& checkpoint) { return checkpoint.to_string() + ".voted"; }

std::string restoring_file_of(const Uuid& restore) {
  return restore.to_string() + std::string(kRestoring);
}

std::optional<Uuid> restore_of(std::string_view file_name) {
  if (!file_name.ends_with(kRestoring)) return std::nullopt;
  const auto id = Uuid::parse(file_name.substr(0, file_name.size() - kRestoring.size()));
  return id && file_name == restoring_file_of(*id) ? id : std::nullopt;
}

}  // namespace gcr::store
